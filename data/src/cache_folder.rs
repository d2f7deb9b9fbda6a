//! What lies in a folder of token files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::dataset::Summary;
use crate::error::DataError;
use crate::token_file::{TokenFile, is_token_file};

/// A token file in a cache folder.
#[derive(Debug, Clone)]
pub struct TokenFileInfo {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was made or used last.
    pub used: SystemTime,
    /// What is in it; or why that can't be told: a file of another version, or a damaged one. (The whole file is not
    /// checked: that is done when it is used.)
    pub holds: Result<TokenFileHolds, String>,
}

/// What is in a token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFileHolds {
    /// The data files it was made of, as far as they gave examples.
    pub files: Vec<PathBuf>,
    /// Counts.
    pub summary: Summary,
}

/// The token files in a folder, those used last first. Other files are passed over.
///
/// # Errors
/// A folder that can't be read.
pub fn token_files(folder: &Path) -> Result<Vec<TokenFileInfo>, DataError> {
    let failed = |cause: io::Error| DataError::Read { path: folder.to_owned(), cause };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if !is_token_file(&path) {
            continue;
        }
        let about = fs::metadata(&path).and_then(|about| Ok((about.len(), about.modified()?)));
        let (bytes, used) = match about {
            Ok(about) => about,
            // Another run has just removed it.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(DataError::Read { path, cause }),
        };
        let holds = TokenFile::look(&path).map(|file| TokenFileHolds {
            files: file.files().iter().map(|file| file.to_path_buf()).collect(),
            summary: file.summary().clone(),
        });
        found.push(TokenFileInfo { path, bytes, used, holds });
    }
    found.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
}
