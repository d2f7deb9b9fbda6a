//! Event files for TensorBoard, with the names that transformers' `Trainer` gives its curves.
//!
//! A file is a series of records (TensorFlow's `record_writer.h`): length, its checksum, a message, its checksum. A message
//! is an `Event` (`event.proto`), of which few fields are needed, so that they are written here by hand: a wall time, a
//! step, and scalars by name (`summary.proto`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::memory::peak_memory_mib;
use crate::run::Event;

/// Folder of event files in a run folder.
pub const TENSORBOARD_FOLDER: &str = "tensorboard";

/// What the name of an event file begins with; TensorBoard looks for it.
const FILE_PREFIX: &str = "events.out.tfevents.";

/// What the first event of a file says.
const FILE_VERSION: &str = "brain.Event:2";

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

/// What is written for a run, as it goes.
#[derive(Debug)]
pub struct RunEvents {
    folder: PathBuf,
    resumed: bool,
    file: Option<EventFile>,
}

impl RunEvents {
    /// For the run in a run folder. With the first event a new file is begun. A run that is begun anew removes the files of
    /// the one that it replaces; one that goes on (`resumed`) keeps them, and tells TensorBoard from which step on they no
    /// longer count.
    pub fn new(run_folder: &Path, resumed: bool) -> Self {
        Self { folder: run_folder.join(TENSORBOARD_FOLDER), resumed, file: None }
    }

    /// Writes what is to be written of an event.
    ///
    /// # Errors
    /// Of the file system.
    pub fn take(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Step { log, tokens_per_s } => {
                let mut scalars = vec![
                    ("train/loss", log.loss),
                    ("train/grad_norm", log.grad_norm),
                    ("train/learning_rate", log.learning_rate),
                    ("train/epoch", log.epoch),
                    ("train/tokens_per_second", *tokens_per_s),
                ];
                let peak = peak_memory_mib();
                scalars.extend(peak.map(|mib| ("train/peak_memory_mib", mib as f64)));
                self.scalars(log.step, log.step, &scalars)
            }
            // A run that goes on may evaluate again where it was saved; the step itself was made before.
            Event::Evaluated { step, evaluation, .. } => self.scalars(
                *step,
                step + 1,
                &[("eval/loss", evaluation.loss), ("eval/perplexity", evaluation.perplexity)],
            ),
            _ => Ok(()),
        }
    }

    /// `from`: the step from which on files of an earlier part no longer count, if this begins the file of a new one.
    fn scalars(&mut self, step: u64, from: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                fs::create_dir_all(&self.folder)?;
                if !self.resumed {
                    remove_event_files(&self.folder)?;
                }
                none.insert(EventFile::create(&self.folder, self.resumed.then_some(from))?)
            }
        };
        file.scalars(step, scalars)
    }
}

/// Removes the event files in a folder, and nothing else.
fn remove_event_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(FILE_PREFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl EventFile {
    /// Begins a new file in a folder. `from`: what other files of the folder have from this step on no longer counts.
    ///
    /// # Errors
    /// Of the file system.
    pub fn create(folder: &Path, from: Option<u64>) -> io::Result<Self> {
        let seconds = now() as u64;
        let process = std::process::id();
        let mut number = 0;
        let (file, path) = loop {
            let name = format!("{FILE_PREFIX}{seconds}.emberlm.{process}.{number}");
            let path = folder.join(name);
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        let mut events = Self { file, path };
        events.record(&event(0, |out| bytes_field(out, 3, FILE_VERSION.as_bytes())))?;
        if let Some(step) = from {
            // A session that starts (`SessionLog.START`).
            events.record(&event(step, |out| bytes_field(out, 7, &[0x08, 1])))?;
        }
        Ok(events)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the values of curves after `step` steps.
    ///
    /// # Errors
    /// Of the file system.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let summary = |out: &mut Vec<u8>| {
            let mut values = Vec::new();
            for (tag, value) in scalars {
                let mut one = Vec::new();
                bytes_field(&mut one, 1, tag.as_bytes());
                key(&mut one, 2, FIXED_32);
                one.extend((*value as f32).to_le_bytes());
                bytes_field(&mut values, 1, &one);
            }
            bytes_field(out, 5, &values);
        };
        self.record(&event(step, summary))
    }

    fn record(&mut self, message: &[u8]) -> io::Result<()> {
        // One write a record: a reader, or a crash, sees whole ones.
        self.file.write_all(&framed(message))
    }
}

/// A message with its length and checksums.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(message.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(message);
    record.extend(masked_crc(message).to_le_bytes());
    record
}

/// CRC-32C, rotated and shifted, as it is stored beside what it is of (TensorFlow's `crc32c.h`).
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Protocol buffers' wire types.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

/// An `Event` of now, with what `content` adds.
fn event(step: u64, content: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    key(&mut out, 1, FIXED_64);
    out.extend(now().to_le_bytes());
    key(&mut out, 2, VARINT);
    varint(&mut out, step);
    content(&mut out);
    out
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn key(out: &mut Vec<u8>, field: u8, wire_type: u8) {
    out.push(field << 3 | wire_type);
}

fn bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    key(out, field, BYTES);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Seven bits a byte, the lowest first; all but the last have their highest bit set.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a file, their checksums checked.
    fn messages(path: &Path) -> Vec<Vec<u8>> {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let (crc, after) = after.split_at(4);
            assert_eq!(crc, masked_crc(length).to_le_bytes());
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            let (message, after) = after.split_at(length);
            let (crc, after) = after.split_at(4);
            assert_eq!(crc, masked_crc(message).to_le_bytes());
            messages.push(message.to_vec());
            rest = after;
        }
        messages
    }

    fn files(run_folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(run_folder.join(TENSORBOARD_FOLDER)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn checksums_are_those_of_tensorflow() {
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        // The frame of a length of 24, as it stands at the beginning of event files.
        assert_eq!(framed(&[0; 24])[8..12], [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn numbers_are_written_as_protocol_buffers_have_them() {
        for (value, bytes) in [(1, &[1][..]), (127, &[127]), (300, &[0xac, 0x02])] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_run_that_goes_on_opens_a_file_of_its_own_and_a_new_one_begins_anew() {
        let place = tempfile::tempdir().unwrap();
        let mut run = RunEvents::new(place.path(), false);
        run.scalars(0, 1, &[("eval/loss", 1.0)]).unwrap();
        run.scalars(300, 300, &[("train/loss", 2.5), ("train/epoch", 0.5)]).unwrap();
        let first = files(place.path());
        let written = messages(&first[0]);
        assert_eq!((first.len(), written.len()), (1, 3));
        let has = |message: &[u8], part: &[u8]| message.windows(part.len()).any(|w| w == part);
        assert!(has(&written[0], FILE_VERSION.as_bytes()));
        assert!(has(&written[1], b"eval/loss"));
        // Tag, then the value's key, then 2.5 in 32 bits; after the wall time the step.
        let loss = [&b"train/loss"[..], &[0x15], &2.5f32.to_le_bytes()].concat();
        assert!(has(&written[2], &loss));
        assert_eq!(written[2][9..12], [0x10, 0xac, 0x02]);

        let mut resumed = RunEvents::new(place.path(), true);
        resumed.scalars(200, 200, &[("train/loss", 2.0)]).unwrap();
        let both = files(place.path());
        assert_eq!(both.len(), 2);
        let second = both.iter().find(|file| !first.contains(file)).unwrap();
        assert!(has(&messages(second)[1], &[0x10, 0xc8, 0x01, 0x3a, 2, 0x08, 1]), "starts at 200");

        fs::write(place.path().join(TENSORBOARD_FOLDER).join("mine"), "mine").unwrap();
        let mut again = RunEvents::new(place.path(), false);
        again.scalars(1, 1, &[("train/loss", 2.0)]).unwrap();
        let left = files(place.path());
        let (mine, events): (Vec<_>, Vec<_>) = left.iter().partition(|file| file.ends_with("mine"));
        assert_eq!((mine.len(), events.len()), (1, 1), "{left:?}");
        assert_eq!(messages(events[0]).len(), 2, "nothing of the runs before");
    }
}
