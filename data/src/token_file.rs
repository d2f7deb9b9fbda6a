//! Tokenized examples in a file that is mapped into memory.
//!
//! ```text
//! header   8 words of 8 bytes: magic, version, ids, ranges, examples, bytes of the faults, bytes of the tail, checksum of
//!          all else
//! ids      4 bytes each, filled up to 8
//! ranges   trained tokens, 2 words for each range of one weight: first, one past the last, weight, 0; 4 bytes each
//! records  5 words for each example: its first id; its ids (and flags above them); its first range; its ranges (and its
//!          file above them); its line
//! faults   JSON Lines: the rows that were skipped, as a file of rejects has them
//! tail     JSON: the names of the data files, and the counts
//! ```
//! In the byte order of the machine: a cache isn't for carrying around, and another order reads as another magic.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

use crate::dataset::Summary;
use crate::error::Fault;
use crate::example::Example;
use crate::examples::{TrainedRange, View};
use crate::mix::beside;
use crate::row::Source;
use crate::source::{reject, rejected};

const MAGIC: u64 = u64::from_le_bytes(*b"EMBERTOK");
/// Changes with the layout above.
pub(crate) const VERSION: u64 = 2;
const WORD: usize = 8;
const HEADER: usize = 8 * WORD;
const RECORD: usize = 5;
/// Words of a range.
const RANGE: usize = 2;
const TRUNCATED: u64 = 1 << 32;
const DOCUMENT: u64 = 1 << 33;

/// An open file.
#[derive(Debug)]
pub(crate) struct TokenFile {
    map: Mmap,
    ids: usize,
    ranges: usize,
    examples: usize,
    faults: usize,
    files: Vec<Arc<Path>>,
    summary: Summary,
}

impl TokenFile {
    /// Maps a file and checks all of it against its checksum; what is wrong with it, if something is.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        Self::read(path, true)
    }

    /// Maps a file to say what is in it, without reading all of it; what is wrong with it, if something is.
    pub(crate) fn look(path: &Path) -> Result<Self, String> {
        Self::read(path, false)
    }

    fn read(path: &Path, is_checked: bool) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot be read: {error}");
        let mut file = File::open(path).map_err(cannot)?;
        // SAFETY: the map is only read. Files are replaced by renaming, never written to; a file that another program
        // cuts short while it is mapped is outside of what any reader of mapped files can guard against.
        let map = unsafe { Mmap::map(&file) }.map_err(cannot)?;
        let damaged = || "is cut short or not a token file".to_owned();
        let header: &[u64] =
            map.get(..HEADER).and_then(|h| bytemuck::try_cast_slice(h).ok()).ok_or_else(damaged)?;
        if header[0] != MAGIC {
            return Err(damaged());
        }
        if header[1] != VERSION {
            return Err("was made by another version of emberlm".to_owned());
        }
        let count = |n: usize| usize::try_from(header[n]).map_err(|_| damaged());
        let [ids, ranges, examples, faults, tail] =
            [count(2)?, count(3)?, count(4)?, count(5)?, count(6)?];
        let length = ids
            .div_ceil(2)
            .checked_add(ranges.saturating_mul(RANGE))
            .and_then(|words| words.checked_add(examples.checked_mul(RECORD)?))
            .and_then(|words| words.checked_mul(WORD)?.checked_add(HEADER))
            .and_then(|bytes| bytes.checked_add(faults)?.checked_add(tail));
        if length != Some(map.len()) {
            return Err(damaged());
        }
        if is_checked {
            // Read, not through the map: what is touched there counts as this program's memory.
            file.seek(SeekFrom::Start(HEADER as u64)).map_err(cannot)?;
            let (_, hasher) = hashed(&mut file).map_err(cannot)?;
            if checksum(header, hasher.digest()) != header[7] {
                return Err("is damaged: its checksum is another".to_owned());
            }
        }
        let told: Value = serde_json::from_slice(&map[map.len() - tail..])
            .map_err(|error| format!("is damaged: {error}"))?;
        let names = told["files"].as_array().ok_or_else(damaged)?;
        let files = names.iter().filter_map(Value::as_str).map(|name| Path::new(name).into());
        let files = files.collect();
        let summary = summary_of(&told["summary"]).ok_or_else(damaged)?;
        Ok(Self { ids, ranges, examples, faults, files, summary, map })
    }

    pub(crate) fn len(&self) -> usize {
        self.examples
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(crate) fn view(&self, index: usize) -> View<'_> {
        let [first_id, ids, first_range, ranges, _] = self.record(index);
        // Places in what is mapped into memory: they fit.
        let ids_from = HEADER + first_id as usize * 4;
        let ids_to = ids_from + ids as u32 as usize * 4;
        let ranges_from = self.after_ids() + first_range as usize * RANGE * WORD;
        let ranges_to = ranges_from + ranges as u32 as usize * RANGE * WORD;
        View::in_file(
            cast(&self.map[ids_from..ids_to]),
            cast(&self.map[ranges_from..ranges_to]),
            ids & TRUNCATED != 0,
            ids & DOCUMENT != 0,
        )
    }

    pub(crate) fn source(&self, index: usize) -> Source {
        let [_, _, _, ranges, line] = self.record(index);
        let file = self.files.get((ranges >> 32) as usize).cloned();
        Source { file: file.unwrap_or_else(|| Path::new("?").into()), line: line as usize }
    }

    /// The rows that were skipped when the file was made.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Fault> + '_ {
        let from = self.after_ids() + (self.ranges * RANGE + self.examples * RECORD) * WORD;
        let lines = self.map[from..from + self.faults].split(|byte| *byte == b'\n');
        lines.filter_map(|line| rejected(&serde_json::from_slice(line).ok()?))
    }

    /// The names of the data files, as far as they gave examples.
    pub(crate) fn files(&self) -> &[Arc<Path>] {
        &self.files
    }

    fn after_ids(&self) -> usize {
        HEADER + self.ids.div_ceil(2) * WORD
    }

    fn record(&self, index: usize) -> [u64; RECORD] {
        let from = self.after_ids() + (self.ranges * RANGE + index * RECORD) * WORD;
        let words: &[u64] = cast(&self.map[from..from + RECORD * WORD]);
        std::array::from_fn(|n| words[n])
    }
}

/// Bytes of the map as numbers. Each region begins at a multiple of 8 in a map that begins at a page.
fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).expect("regions are aligned, and whole numbers of elements")
}

/// Of the header and of the hash of what follows it.
fn checksum(header: &[u64], body: u64) -> u64 {
    let mut hasher = Xxh3::new();
    header[..7].iter().for_each(|word| hasher.update(&word.to_ne_bytes()));
    hasher.update(&body.to_ne_bytes());
    hasher.digest()
}

/// Writes a token file, example by example. It appears under its name when it is finished.
pub(crate) struct TokenWriter {
    out: BufWriter<NamedTempFile>,
    hasher: Xxh3,
    /// What follows the ids, written beside them for now.
    ranges: BufWriter<File>,
    records: BufWriter<File>,
    faults: BufWriter<File>,
    fault_bytes: u64,
    ids: u64,
    range_count: u64,
    examples: u64,
    files: Vec<Arc<Path>>,
}

impl TokenWriter {
    /// Begins a file, whose folder is made if need be.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 18, beside(path)?);
        let folder = out.get_ref().path().parent().unwrap_or(Path::new("")).to_owned();
        let nameless = || Ok::<_, io::Error>(BufWriter::new(tempfile::tempfile_in(&folder)?));
        out.write_all(&[0; HEADER])?;
        Ok(Self {
            out,
            hasher: Xxh3::new(),
            ranges: nameless()?,
            records: nameless()?,
            faults: nameless()?,
            fault_bytes: 0,
            ids: 0,
            range_count: 0,
            examples: 0,
            files: Vec::new(),
        })
    }

    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }

    fn range(&mut self, range: TrainedRange) -> io::Result<()> {
        self.range_count += 1;
        self.ranges.write_all(bytemuck::cast_slice(&range))
    }

    pub(crate) fn push(&mut self, example: &Example) -> io::Result<()> {
        let Example { ids, source, truncated, is_document, .. } = example;
        let count = u32::try_from(ids.len()).map_err(|_| {
            io::Error::other(format!("{source}: more tokens than a token file holds (2³²)"))
        })?;
        let file = match self.files.iter().position(|file| *file == source.file) {
            Some(file) => file,
            None => {
                self.files.push(Arc::clone(&source.file));
                self.files.len() - 1
            }
        };
        let first_range = self.range_count;
        let mut range: Option<TrainedRange> = None;
        for (token, weight) in View::of(example).trained_in(0..ids.len()) {
            let (token, weight) = (token as u32, weight.to_bits());
            match &mut range {
                Some([_, end, same, _]) if *end == token && *same == weight => *end += 1,
                other => {
                    let ended = other.replace([token, token + 1, weight, 0]);
                    ended.map_or(Ok(()), |range| self.range(range))?;
                }
            }
        }
        range.map_or(Ok(()), |range| self.range(range))?;
        let flags =
            if *truncated { TRUNCATED } else { 0 } | if *is_document { DOCUMENT } else { 0 };
        let record = [
            self.ids,
            u64::from(count) | flags,
            first_range,
            (self.range_count - first_range) | (file as u64) << 32,
            source.line as u64,
        ];
        self.records.write_all(bytemuck::cast_slice(&record))?;
        self.body(bytemuck::cast_slice(ids))?;
        self.ids += u64::from(count);
        self.examples += 1;
        Ok(())
    }

    /// Notes a row that was skipped.
    pub(crate) fn fault(&mut self, fault: &Fault) -> io::Result<()> {
        let Fault { source_row, cause, text } = fault;
        let line = reject(source_row, &cause.to_string(), text.as_deref()).to_string();
        self.fault_bytes += line.len() as u64 + 1;
        self.faults.write_all(line.as_bytes())?;
        self.faults.write_all(b"\n")
    }

    /// Completes the file and puts it in place, replacing one that is there.
    pub(crate) fn finish(mut self, path: &Path, summary: &Summary) -> io::Result<()> {
        if self.ids % 2 == 1 {
            self.body(&[0; 4])?;
        }
        let Self { mut out, mut hasher, ranges, records, faults, files, .. } = self;
        let Self { ids, range_count, examples, fault_bytes, .. } = self;
        let mut block = vec![0; 1 << 18];
        for part in [ranges, records, faults] {
            let mut part = part.into_inner().map_err(io::IntoInnerError::into_error)?;
            part.seek(SeekFrom::Start(0))?;
            let mut part = BufReader::new(part);
            loop {
                let read = part.read(&mut block)?;
                if read == 0 {
                    break;
                }
                hasher.update(&block[..read]);
                out.write_all(&block[..read])?;
            }
        }
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let tail = json!({"files": names, "summary": summary_value(summary)}).to_string();
        hasher.update(tail.as_bytes());
        out.write_all(tail.as_bytes())?;
        let tail = tail.len() as u64;
        let mut header = [MAGIC, VERSION, ids, range_count, examples, fault_bytes, tail, 0];
        header[7] = checksum(&header, hasher.digest());
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(bytemuck::cast_slice(&header))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// The summary's counts by name.
fn summary_value(summary: &Summary) -> Value {
    let Summary {
        rows,
        examples,
        tokens,
        supervised_tokens,
        truncated,
        split,
        dropped,
        dropped_by_truncation,
        longest,
    } = summary;
    json!({
        "rows": rows, "examples": examples, "tokens": tokens, "supervised_tokens": supervised_tokens,
        "truncated": truncated, "split": split, "dropped": dropped,
        "dropped_by_truncation": dropped_by_truncation, "longest": longest,
    })
}

fn summary_of(value: &Value) -> Option<Summary> {
    let count = |key: &str| usize::try_from(value.get(key)?.as_u64()?).ok();
    Some(Summary {
        rows: count("rows")?,
        examples: count("examples")?,
        tokens: count("tokens")?,
        supervised_tokens: count("supervised_tokens")?,
        truncated: count("truncated")?,
        split: count("split")?,
        dropped: count("dropped")?,
        dropped_by_truncation: count("dropped_by_truncation")?,
        longest: count("longest")?,
    })
}

/// The length and the hash of what is left of a file.
pub(crate) fn hashed(file: &mut File) -> io::Result<(u64, Xxh3)> {
    let mut hasher = Xxh3::new();
    let mut block = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok((length, hasher));
        }
        length += read as u64;
        hasher.update(&block[..read]);
    }
}

/// Whether a file has the name of a token file.
pub(crate) fn is_token_file(path: &Path) -> bool {
    let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.extension().is_some_and(|extension| extension == "tokens")
        && path.file_stem().and_then(|name| name.to_str()).is_some_and(is_key)
}

/// The name of a token file in a folder of such.
pub(crate) fn path_in(folder: &Path, key: u128) -> PathBuf {
    folder.join(format!("{key:032x}.tokens"))
}
