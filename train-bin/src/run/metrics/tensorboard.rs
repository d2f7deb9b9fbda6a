//! Event files for TensorBoard, with the tags of transformers' `Trainer`.
//!
//! A file is a series of records (TensorFlow's `record_writer.h`): length, its checksum, a message, its checksum. A message
//! is an `Event` (`event.proto`). Only a wall time, a step and scalars by tag (`summary.proto`) are needed, so they are
//! encoded here by hand.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::run::event::Event;
use crate::run::files::TENSORBOARD_FOLDER;
use crate::run::metrics::row::{EvalRow, values};

/// Prefix of an event file's name, by which TensorBoard finds it.
const FILE_PREFIX: &str = "events.out.tfevents.";

/// Content of a file's first event.
const FILE_VERSION: &str = "brain.Event:2";

/// Metrics without a curve.
const NOT_WRITTEN: [&str; 5] =
    ["step", "supervised_tokens", "tokens", "padding", "eval_supervised_tokens"];

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

/// Writes the event files of a run.
#[derive(Debug)]
pub struct RunEvents {
    folder: PathBuf,
    resumed: bool,
    file: Option<EventFile>,
}

impl RunEvents {
    /// For the run in a run folder. The first event creates a file. A new run removes the files of the run that it replaces;
    /// a resumed one keeps them, and marks the step from which TensorBoard is to ignore them.
    pub fn new(run_folder: &Path, resumed: bool) -> Self {
        Self { folder: run_folder.join(TENSORBOARD_FOLDER), resumed, file: None }
    }

    /// Writes the metrics of an event, if it has any.
    ///
    /// # Errors
    /// Of the file system.
    pub fn record(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Step { row } => {
                let step = row.metrics.step;
                self.scalars(step, step, &scalars(values(row)))
            }
            // The evaluation of a resumed run may repeat the one at the checkpoint; the step itself was made before.
            Event::Evaluated { step, evaluation, .. } => {
                let row = EvalRow::new(*step, evaluation);
                self.scalars(*step, step + 1, &scalars(values(&row)))
            }
            _ => Ok(()),
        }
    }

    /// `from`: the step from which files of an earlier part are to be ignored, if this creates the file of a resumed run.
    fn scalars(&mut self, step: u64, from: u64, scalars: &[(String, f64)]) -> io::Result<()> {
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

/// The metrics with a curve, under their tags: `eval/…` and `train/…`, as `Trainer`'s `rewrite_logs` has them.
fn scalars(metrics: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let tag = |name: &str| match name.strip_prefix("eval_") {
        Some(name) => format!("eval/{name}"),
        None if name == "tokens_per_s" => "train/tokens_per_second".to_owned(),
        None => format!("train/{name}"),
    };
    let written = metrics.into_iter().filter(|(name, _)| !NOT_WRITTEN.contains(&name.as_str()));
    written.map(|(name, value)| (tag(&name), value)).collect()
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
    /// Creates a file in a folder. `from`: the step from which the folder's other files are to be ignored.
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

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes values by tag, after `step` steps.
    ///
    /// # Errors
    /// Of the file system.
    pub fn scalars(&mut self, step: u64, scalars: &[(String, f64)]) -> io::Result<()> {
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
        // One write per record: a reader, or a crash, sees complete ones.
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

/// CRC-32C, rotated and shifted, as TensorFlow stores it (`crc32c.h`).
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Protocol buffers' wire types.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

/// An `Event` at the present time, with the fields that `content` writes.
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

/// Seven bits per byte, the lowest first; all but the last have their highest bit set.
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
    use crate::eval::evaluate::Evaluation;
    use crate::run::metrics::row::StepRow;
    use crate::trainer::metrics::StepMetrics;

    /// The messages of a file; checks their checksums.
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
    fn checksums_equal_tensorflows() {
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        // The frame of a length of 24, which starts event files.
        assert_eq!(framed(&[0; 24])[8..12], [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn numbers_are_protocol_buffer_varints() {
        for (value, bytes) in [(1, &[1][..]), (127, &[127]), (300, &[0xac, 0x02])] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out, bytes);
        }
    }

    fn one(tag: &str, value: f64) -> Vec<(String, f64)> {
        vec![(tag.to_owned(), value)]
    }

    #[test]
    fn metrics_are_written_under_trainers_tags() {
        let row = StepRow {
            metrics: StepMetrics { step: 3, loss: 2.5, ..StepMetrics::default() },
            tokens_per_s: 40.0,
            peak_memory_mib: Some(100),
        };
        let tags: Vec<String> = scalars(values(&row)).into_iter().map(|(tag, _)| tag).collect();
        for name in ["epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second"] {
            assert!(tags.contains(&format!("train/{name}")), "no {name} in {tags:?}");
        }
        assert!(tags.contains(&"train/peak_memory_mib".to_owned()));
        assert!(!tags.iter().any(|tag| tag == "train/step" || tag == "train/tokens"), "{tags:?}");
        let evaluation =
            Evaluation { loss: 1.0, perplexity: 2.7, supervised_tokens: 5, examples: 1 };
        let row = EvalRow::new(3, &evaluation);
        let expected = [("eval/loss".to_owned(), 1.0), ("eval/perplexity".to_owned(), 2.7)];
        assert_eq!(scalars(values(&row)), expected);
    }

    #[test]
    fn a_resumed_run_adds_a_file_and_a_new_run_removes_the_old_ones() {
        let place = tempfile::tempdir().unwrap();
        let mut run = RunEvents::new(place.path(), false);
        run.scalars(0, 1, &one("eval/loss", 1.0)).unwrap();
        let two = [one("train/loss", 2.5), one("train/epoch", 0.5)].concat();
        run.scalars(300, 300, &two).unwrap();
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
        resumed.scalars(200, 200, &one("train/loss", 2.0)).unwrap();
        let both = files(place.path());
        assert_eq!(both.len(), 2);
        let second = both.iter().find(|file| !first.contains(file)).unwrap();
        assert!(has(&messages(second)[1], &[0x10, 0xc8, 0x01, 0x3a, 2, 0x08, 1]), "starts at 200");

        fs::write(place.path().join(TENSORBOARD_FOLDER).join("mine"), "mine").unwrap();
        let mut again = RunEvents::new(place.path(), false);
        again.scalars(1, 1, &one("train/loss", 2.0)).unwrap();
        let left = files(place.path());
        let (mine, events): (Vec<_>, Vec<_>) = left.iter().partition(|file| file.ends_with("mine"));
        assert_eq!((mine.len(), events.len()), (1, 1), "{left:?}");
        assert_eq!(messages(events[0]).len(), 2, "no events of earlier runs");
    }
}
