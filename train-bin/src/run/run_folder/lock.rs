//! One process per run folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;

use super::error::{RunFolderError, io_at};
use crate::config::shown;
use crate::run::files::LOCK_FILE;

/// A lock of the system on an open file: released when the process ends, however it ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self, RunFolderError> {
        let path = folder.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let mut file = file.map_err(io_at(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(&path).ok();
                let pid = pid.map(|pid| pid.trim().to_owned()).filter(|pid| !pid.is_empty());
                return Err(RunFolderError::Locked { path: shown(folder), pid });
            }
            // A file system without locks: run without one.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io_at(&path)(error)),
        }
        // Only for the message that another process shows.
        let pid = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all(pid.as_bytes())).map_err(io_at(&path))?;
        Ok(Self { _file: file })
    }
}
