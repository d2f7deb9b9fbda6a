//! Listing the token files of a cache folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::DataError;
use crate::summary::Summary;
use crate::token_file::{TokenFile, is_token_file};

/// A token file in a cache folder.
#[derive(Debug, Clone)]
pub struct TokenFileInfo {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written or last used.
    pub used: SystemTime,
    /// Its content, or why it can't be read: written by another version, or damaged. The checksum is verified only when
    /// the file is used.
    pub content: Result<TokenFileContent, String>,
}

/// The content of a token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFileContent {
    /// The data files that have examples in it.
    pub files: Vec<PathBuf>,
    /// Counts.
    pub summary: Summary,
}

/// The token files in a folder, the most recently used first. Other files are ignored.
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
        let metadata = fs::metadata(&path).and_then(|file| Ok((file.len(), file.modified()?)));
        let (bytes, used) = match metadata {
            Ok(metadata) => metadata,
            // Removed by another process in the meantime.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(DataError::Read { path, cause }),
        };
        let content = TokenFile::inspect(&path).map(|file| TokenFileContent {
            files: file.files().iter().map(|file| file.to_path_buf()).collect(),
            summary: file.summary().clone(),
        });
        found.push(TokenFileInfo { path, bytes, used, content });
    }
    found.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
}
