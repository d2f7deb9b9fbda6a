//! One process a run folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;

use super::{RunFolderError, io_at};
use crate::config::shown;

const LOCK_FILE: &str = ".lock";

/// A lock that the system holds for an open file: it is gone with its process, however that ends.
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
                return Err(RunFolderError::LockedRunFolder { path: shown(folder), pid });
            }
            // File systems without locks: better a run than none.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io_at(&path)(error)),
        }
        // Only for the message that another process shows.
        let pid = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all(pid.as_bytes())).map_err(io_at(&path))?;
        Ok(Self { _file: file })
    }
}
