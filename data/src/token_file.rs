//! Tokenized examples in a memory-mapped file.
//!
//! ```text
//! header   8 words of 8 bytes: magic, version, number of ids, ranges and examples, bytes of the faults and of the tail,
//!          checksum of everything else
//! ids      4 bytes each, padded to 8
//! ranges   supervised tokens, 2 words for each range of one weight: start, end (exclusive), weight, 0; 4 bytes each
//! records  5 words for each example: index of its first id; number of ids (low half) and flags (high half); index of its
//!          first range; number of ranges (low half) and index of its file (high half); its line
//! faults   JSON Lines: the skipped rows, in the format of a file of rejects
//! tail     JSON: the names of the data files, and the summary
//! ```
//! Numbers are in the machine's byte order: a cache is not portable, and the magic differs in another order.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

use crate::error::Fault;
use crate::example::Example;
use crate::example_view::{ExampleView, SupervisedRange};
use crate::location::Source;
use crate::output::{persist, temporary_file};
use crate::source::{from_reject_line, reject_line};
use crate::summary::Summary;

const MAGIC: u64 = u64::from_le_bytes(*b"EMBERTOK");
/// Changes with the layout described above.
pub(crate) const VERSION: u64 = 2;
const WORD: usize = 8;
const HEADER: usize = 8 * WORD;
const RECORD: usize = 5;
/// Words of a range of supervised tokens.
const RANGE: usize = 2;
const TRUNCATED: u64 = 1 << 32;
const DOCUMENT: u64 = 1 << 33;

/// The JSON at the end of the file.
#[derive(Serialize, Deserialize)]
struct Tail {
    files: Vec<String>,
    summary: Summary,
}

/// An open token file.
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
    /// Maps a file and verifies its checksum. The error says why the file can't be used.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        Self::read(path, true)
    }

    /// Maps a file to list its content, without verifying the checksum. The error says why the file can't be used.
    pub(crate) fn inspect(path: &Path) -> Result<Self, String> {
        Self::read(path, false)
    }

    fn read(path: &Path, verify: bool) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot be read: {error}");
        let mut file = File::open(path).map_err(cannot)?;
        // SAFETY: the map is only read. emberlm replaces files by renaming and never writes to them; no reader of mapped
        // files can guard against another program that truncates them.
        let map = unsafe { Mmap::map(&file) }.map_err(cannot)?;
        let damaged = || "is truncated or not a token file".to_owned();
        let header: &[u64] =
            map.get(..HEADER).and_then(|h| bytemuck::try_cast_slice(h).ok()).ok_or_else(damaged)?;
        if header[0] != MAGIC {
            return Err(damaged());
        }
        if header[1] != VERSION {
            return Err("was written by another version of emberlm".to_owned());
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
        if verify {
            // Not read through the map: its pages would count as memory of this process.
            file.seek(SeekFrom::Start(HEADER as u64)).map_err(cannot)?;
            let (_, hasher) = hashed(&mut file).map_err(cannot)?;
            if checksum(header, hasher.digest()) != header[7] {
                return Err("is damaged: its checksum does not match".to_owned());
            }
        }
        let Tail { files, summary } = serde_json::from_slice(&map[map.len() - tail..])
            .map_err(|error| format!("is damaged: {error}"))?;
        let files = files.iter().map(|name| Path::new(name).into()).collect();
        Ok(Self { ids, ranges, examples, faults, files, summary, map })
    }

    pub(crate) fn len(&self) -> usize {
        self.examples
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(crate) fn view(&self, index: usize) -> ExampleView<'_> {
        let [first_id, ids, first_range, ranges, _] = self.record(index);
        // Offsets in mapped memory fit into usize.
        let ids_from = HEADER + first_id as usize * 4;
        let ids_to = ids_from + ids as u32 as usize * 4;
        let ranges_from = self.after_ids() + first_range as usize * RANGE * WORD;
        let ranges_to = ranges_from + ranges as u32 as usize * RANGE * WORD;
        ExampleView::in_file(
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

    /// The rows that were skipped when the file was written.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Fault> + '_ {
        let from = self.after_ids() + (self.ranges * RANGE + self.examples * RECORD) * WORD;
        let lines = self.map[from..from + self.faults].split(|byte| *byte == b'\n');
        lines.filter_map(|line| from_reject_line(&serde_json::from_slice(line).ok()?))
    }

    /// The names of the data files that have examples.
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

/// Bytes of the map as numbers. Each region is aligned to 8 bytes in a map that is aligned to a page.
fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).expect("regions are aligned, and whole numbers of elements")
}

/// Checksum of the header and of the hash of the rest.
fn checksum(header: &[u64], body: u64) -> u64 {
    let mut hasher = Xxh3::new();
    header[..7].iter().for_each(|word| hasher.update(&word.to_ne_bytes()));
    hasher.update(&body.to_ne_bytes());
    hasher.digest()
}

/// Writes a token file, example by example. The file appears under its name when it is complete.
pub(crate) struct TokenWriter {
    out: Hashed<BufWriter<NamedTempFile>>,
    /// The parts after the ids, in temporary files until the number of ids is known.
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
    /// Starts a file; its folder is created if needed.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 18, temporary_file(path)?);
        let folder = out.get_ref().path().parent().unwrap_or(Path::new("")).to_owned();
        let unnamed = || Ok::<_, io::Error>(BufWriter::new(tempfile::tempfile_in(&folder)?));
        out.write_all(&[0; HEADER])?;
        Ok(Self {
            out: Hashed { out, hasher: Xxh3::new() },
            ranges: unnamed()?,
            records: unnamed()?,
            faults: unnamed()?,
            fault_bytes: 0,
            ids: 0,
            range_count: 0,
            examples: 0,
            files: Vec::new(),
        })
    }

    fn range(&mut self, range: SupervisedRange) -> io::Result<()> {
        self.range_count += 1;
        self.ranges.write_all(bytemuck::cast_slice(&range))
    }

    pub(crate) fn push(&mut self, example: &Example) -> io::Result<()> {
        let Example { ids, source, truncated, is_document, .. } = example;
        let count = u32::try_from(ids.len()).map_err(|_| {
            io::Error::other(format!("{source}: more tokens than a token file can hold (2³²)"))
        })?;
        let file = match self.files.iter().position(|file| *file == source.file) {
            Some(file) => file,
            None => {
                self.files.push(Arc::clone(&source.file));
                self.files.len() - 1
            }
        };
        let first_range = self.range_count;
        let mut range: Option<SupervisedRange> = None;
        for (token, weight) in ExampleView::of(example).supervised_in(0..ids.len()) {
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
        self.out.write_all(bytemuck::cast_slice(ids))?;
        self.ids += u64::from(count);
        self.examples += 1;
        Ok(())
    }

    /// Records a skipped row.
    pub(crate) fn fault(&mut self, fault: &Fault) -> io::Result<()> {
        let Fault { source_row, cause, text } = fault;
        let line = reject_line(source_row, &cause.to_string(), text.as_deref()).to_string();
        self.fault_bytes += line.len() as u64 + 1;
        self.faults.write_all(line.as_bytes())?;
        self.faults.write_all(b"\n")
    }

    /// Completes the file and moves it to its path, replacing an existing one.
    pub(crate) fn finish(mut self, path: &Path, summary: &Summary) -> io::Result<()> {
        if self.ids % 2 == 1 {
            self.out.write_all(&[0; 4])?;
        }
        let Self { mut out, ranges, records, faults, files, .. } = self;
        let Self { ids, range_count, examples, fault_bytes, .. } = self;
        for part in [ranges, records, faults] {
            let mut part = part.into_inner().map_err(io::IntoInnerError::into_error)?;
            part.seek(SeekFrom::Start(0))?;
            io::copy(&mut BufReader::with_capacity(1 << 18, part), &mut out)?;
        }
        let files = files.iter().map(|file| file.display().to_string()).collect();
        let tail = serde_json::to_vec(&Tail { files, summary: summary.clone() })?;
        out.write_all(&tail)?;
        let Hashed { out, hasher } = out;
        let tail = tail.len() as u64;
        let mut header = [MAGIC, VERSION, ids, range_count, examples, fault_bytes, tail, 0];
        header[7] = checksum(&header, hasher.digest());
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(bytemuck::cast_slice(&header))?;
        persist(file, path)
    }
}

/// Passes bytes on and hashes them.
struct Hashed<W> {
    out: W,
    hasher: Xxh3,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Length and hash of the rest of a file.
pub(crate) fn hashed(file: &mut File) -> io::Result<(u64, Xxh3)> {
    let mut hasher = Xxh3::new();
    let length = io::copy(&mut BufReader::with_capacity(1 << 20, file), &mut hasher)?;
    Ok((length, hasher))
}

/// Whether a path has the form of [`path_in`].
pub(crate) fn is_token_file(path: &Path) -> bool {
    let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.extension().is_some_and(|extension| extension == "tokens")
        && path.file_stem().and_then(|name| name.to_str()).is_some_and(is_key)
}

/// The path of a token file in a cache folder.
pub(crate) fn path_in(folder: &Path, key: u128) -> PathBuf {
    folder.join(format!("{key:032x}.tokens"))
}
