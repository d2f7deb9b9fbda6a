//! A file of JSON rows, appended to during a run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use emberlm_quant::atomic_file::write_atomically;
use serde::{Deserialize, Serialize};

use super::error::{RunFolderError, io_at};

pub(super) struct Rows {
    path: PathBuf,
    file: File,
}

impl Rows {
    /// Opens the file, keeping the complete rows up to `step`.
    pub(super) fn open(path: &Path, step: Option<u64>) -> Result<Self, RunFolderError> {
        let kept = match step {
            None => String::new(),
            Some(step) => rows_until(path, step).map_err(io_at(path))?,
        };
        write_atomically(path, |out| out.write_all(kept.as_bytes())).map_err(io_at(path))?;
        let file = OpenOptions::new().append(true).open(path).map_err(io_at(path))?;
        Ok(Self { path: path.into(), file })
    }

    /// Appends a row.
    pub(super) fn add(&mut self, row: &impl Serialize) -> Result<(), RunFolderError> {
        let mut line = serde_json::to_vec(row).map_err(|e| io_at(&self.path)(e.into()))?;
        line.push(b'\n');
        // One write per row: a reader, or a crash, sees complete rows.
        self.file.write_all(&line).map_err(io_at(&self.path))
    }

    /// Makes the appended rows survive a power cut.
    pub(super) fn sync(&self) -> Result<(), RunFolderError> {
        self.file.sync_data().map_err(io_at(&self.path))
    }
}

fn rows_until(path: &Path, step: u64) -> io::Result<String> {
    #[derive(Deserialize)]
    struct Row {
        step: u64,
    }
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_kept = |line: &&str| {
        line.ends_with('\n') && serde_json::from_str(line).is_ok_and(|row: Row| row.step <= step)
    };
    Ok(text.split_inclusive('\n').filter(is_kept).collect())
}
