//! Mixing several data files into one, by weights.
//!
//! Lines are copied byte for byte. Only their positions are in memory (24 bytes per line), so files may be larger than
//! the memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{DataError, Faults, RowError};
use crate::location::Source;
use crate::order::{Order, Share};
use crate::output::{persist, temporary_file};

/// A file to draw from.
#[derive(Debug, Clone, PartialEq)]
pub struct MixSource {
    /// JSON Lines.
    pub path: PathBuf,
    /// Relative weight of drawing from it; finite and greater than 0.
    pub weight: f64,
}

/// Counts of one file of a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixed {
    /// The file.
    pub path: PathBuf,
    /// Rows in it.
    pub rows: usize,
    /// Rows drawn from it. If that exceeds `rows`, some were drawn repeatedly.
    pub drawn: usize,
}

/// The report of mixing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixReport {
    /// Rows written.
    pub rows: usize,
    /// The files, in the given order.
    pub sources: Vec<Mixed>,
}

/// Draws `rows` rows (`None`: the number of rows in all files) from JSON Lines files by weight and writes them to `out`,
/// in an order determined by `seed`. Each file is drawn from in a shuffled order; no row repeats before all others of its
/// file were drawn.
///
/// # Errors
/// No file; a weight that isn't finite and greater than 0; a file that isn't JSON Lines, has no rows, or can't be read or
/// written; drawn rows that aren't JSON objects. `out` is then unchanged.
pub fn mix(
    sources: &[MixSource],
    rows: Option<usize>,
    seed: u64,
    out: &Path,
) -> Result<MixReport, DataError> {
    if sources.is_empty() {
        return Err(DataError::NothingToMix);
    }
    let mut files = Vec::with_capacity(sources.len());
    for source in sources {
        check_weight(&source.path, source.weight)?;
        files.push(LineFile::open(&source.path)?);
    }
    let shares: Vec<Share> = files
        .iter()
        .zip(sources)
        .map(|(file, source)| Share { examples: file.lines.len(), weight: source.weight })
        .collect();
    let rows = rows.unwrap_or_else(|| shares.iter().map(|share| share.examples).sum());
    let order = Order::mixed(&shares, rows, seed, true).epoch(0);
    let mut drawn = vec![0; files.len()];
    let mut faults = Faults::default();
    let mut copy = |writer: &mut dyn Write| -> Result<(), DataError> {
        let mut line = Vec::new();
        for &index in &order {
            let (file, row) = place(&shares, index);
            drawn[file] += 1;
            let place = files[file].read(row, &mut line)?;
            if let Err(cause) = is_object(&line) {
                faults.push(place, cause);
            }
            let written = writer.write_all(&line).and_then(|()| writer.write_all(b"\n"));
            written.map_err(|cause| write_error(out, cause))?;
        }
        Ok(())
    };
    let file = {
        let mut writer =
            BufWriter::new(temporary_file(out).map_err(|cause| write_error(out, cause))?);
        copy(&mut writer)?;
        writer.into_inner().map_err(|error| write_error(out, error.into_error()))?
    };
    if !faults.is_empty() {
        return Err(DataError::Faults(faults));
    }
    persist(file, out).map_err(|cause| write_error(out, cause))?;
    let sources = files.into_iter().zip(drawn).map(|(file, drawn)| {
        let LineFile { path, lines, .. } = file;
        Mixed { path, rows: lines.len(), drawn }
    });
    Ok(MixReport { rows, sources: sources.collect() })
}

/// Checks that a weight is finite and greater than 0.
pub(crate) fn check_weight(path: &Path, weight: f64) -> Result<(), DataError> {
    if weight.is_finite() && weight > 0.0 {
        return Ok(());
    }
    Err(DataError::Weight { path: path.to_owned(), found: weight })
}

/// The source of an example, and its number within it.
fn place(shares: &[Share], index: usize) -> (usize, usize) {
    let mut row = index;
    for (source, share) in shares.iter().enumerate() {
        if row < share.examples {
            return (source, row);
        }
        row -= share.examples;
    }
    (shares.len().saturating_sub(1), row)
}

/// A file whose lines can be read in any order.
struct LineFile {
    path: PathBuf,
    reader: BufReader<File>,
    lines: Vec<Line>,
}

struct Line {
    offset: u64,
    bytes: usize,
    /// From 1, including blank lines.
    number: usize,
}

impl LineFile {
    fn open(path: &Path) -> Result<Self, DataError> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_lowercase();
        if !["jsonl", "ndjson"].contains(&extension.as_str()) {
            let found = if extension.is_empty() { "none".into() } else { format!(".{extension}") };
            return Err(DataError::NotJsonLines { path: path.to_owned(), found });
        }
        let read_error = |cause| DataError::Read { path: path.to_owned(), cause };
        let file = File::open(path).map_err(read_error)?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let lines = index(&mut reader).map_err(read_error)?;
        if lines.is_empty() {
            return Err(DataError::EmptyFile { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), reader, lines })
    }

    /// Reads a line and returns its location.
    fn read(&mut self, line: usize, into: &mut Vec<u8>) -> Result<Source, DataError> {
        let Line { offset, bytes, number } = self.lines[line];
        into.resize(bytes, 0);
        let read = self.reader.seek(SeekFrom::Start(offset));
        read.and_then(|_| self.reader.read_exact(into))
            .map_err(|cause| DataError::Read { path: self.path.clone(), cause })?;
        Ok(Source::new(&self.path, number))
    }
}

/// The lines that are not blank, without line endings and byte order mark.
fn index(reader: &mut impl BufRead) -> io::Result<Vec<Line>> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut offset = 0;
    for number in 1.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let skipped = if number == 1 && line.starts_with(MARK) { MARK.len() } else { 0 };
        let text = line[skipped..].trim_ascii_end();
        if !text.trim_ascii().is_empty() {
            let bytes = text.len();
            lines.push(Line { offset: offset + skipped as u64, bytes, number });
        }
        offset += read as u64;
    }
    Ok(lines)
}

fn is_object(line: &[u8]) -> Result<(), RowError> {
    match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(_)) => Ok(()),
        Ok(other) => Err(RowError::NotAnObject { found: crate::format::kind(&other) }),
        Err(error) => Err(crate::source::json_error(&error, 0)),
    }
}

fn write_error(path: &Path, cause: io::Error) -> DataError {
    DataError::Write { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn rows(name: &str, count: usize) -> String {
        (0..count).map(|row| format!("{{\"text\": \"{name}{row}\"}}\n")).collect()
    }

    fn source(dir: &Path, name: &str, text: &str, weight: f64) -> MixSource {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        MixSource { path, weight }
    }

    fn count(text: &str, what: &str) -> usize {
        text.lines().filter(|line| line.contains(what)).count()
    }

    #[test]
    fn rows_are_drawn_by_weight_and_none_repeats_before_its_file_is_exhausted() {
        let dir = tempfile::tempdir().unwrap();
        let a = source(dir.path(), "a.jsonl", &rows("a", 10), 3.0);
        // A byte order mark, blank lines, Windows line endings, and none after the last line.
        let text = format!("\u{feff}{}", rows("b", 10).replace('\n', "\r\n\r\n"));
        let b = source(dir.path(), "b.jsonl", text.trim_end(), 1.0);
        let out = dir.path().join("new").join("mixed.jsonl");
        let report = mix(&[a.clone(), b.clone()], Some(16), 7, &out).unwrap();
        let drawn: Vec<_> = report.sources.iter().map(|mixed| (mixed.rows, mixed.drawn)).collect();
        assert_eq!((report.rows, drawn), (16, vec![(10, 12), (10, 4)]));
        let mixed = fs::read_to_string(&out).unwrap();
        assert_eq!(mixed.lines().count(), 16);
        let counts: Vec<usize> = (0..10).map(|i| count(&mixed, &format!("\"a{i}\""))).collect();
        assert_eq!((counts.iter().sum::<usize>(), counts.iter().min()), (12, Some(&1)));
        assert!((0..10).all(|i| count(&mixed, &format!("\"b{i}\"")) <= 1));
        assert!(mixed.lines().all(|line| line.starts_with('{') && line.ends_with('}')));

        mix(&[a.clone(), b.clone()], Some(16), 7, &out).unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), mixed, "the same seed gives the same file");
        mix(&[a.clone(), b.clone()], Some(16), 8, &out).unwrap();
        assert_ne!(fs::read_to_string(&out).unwrap(), mixed);
        assert_eq!(mix(&[a, b], None, 7, &out).unwrap().rows, 20);
    }

    #[test]
    fn errors_leave_the_output_file_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.jsonl");
        fs::write(&out, "old").unwrap();
        let good = source(dir.path(), "a.jsonl", &rows("a", 3), 1.0);
        let broken = source(dir.path(), "b.jsonl", "{\"text\": 1}\n\n[1]\noops\n", 1.0);
        let empty = source(dir.path(), "c.jsonl", " \n", 1.0);
        let csv = source(dir.path(), "d.csv", "text\nx\n", 1.0);
        let heavy = MixSource { weight: f64::NAN, ..good.clone() };
        for (sources, expected) in [
            (vec![good.clone(), broken], "b.jsonl:3: expected a JSON object, found a list"),
            (vec![good.clone(), empty], "c.jsonl: no rows"),
            (vec![good, csv], "d.csv: expected JSON Lines"),
            (vec![heavy], "a.jsonl: expected a weight greater than 0, found NaN"),
            (vec![], "nothing to mix"),
        ] {
            let error = mix(&sources, None, 0, &out).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(fs::read_to_string(&out).unwrap(), "old");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5, "no temporary file is left");
        }
    }
}
