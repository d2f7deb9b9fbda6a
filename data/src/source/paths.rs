//! Finding data files: files, folders and patterns.

use std::fs;
use std::path::{Path, PathBuf};

use super::open::kind;
use crate::error::DataError;

/// Expands paths to data files, in order: a file is itself; a folder is the data files in and below it, sorted by
/// name; a pattern (`data/*.jsonl`, `data/**/part-?.parquet`) is the matching files, sorted by name. No file is listed
/// twice.
///
/// # Errors
/// A folder or pattern without data files, an invalid pattern.
pub fn data_files<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, DataError> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let text = path.to_string_lossy();
        let mut found = if path.is_dir() {
            let mut found = Vec::new();
            let mut others = 0;
            below(path, &mut found, &mut others)?;
            if found.is_empty() {
                let found = format!("the folder contains {others} files of other types");
                return Err(DataError::NoFiles { path: path.to_owned(), found });
            }
            found
        } else if path.exists() || !text.contains(['*', '?', '[']) {
            vec![path.to_owned()]
        } else {
            matching(path, &text)?
        };
        found.sort();
        files.extend(found);
    }
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| seen.insert(file.clone()));
    Ok(files)
}

fn matching(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let none = |found: String| DataError::NoFiles { path: path.to_owned(), found };
    // Hidden files match only if the pattern starts with a dot.
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let paths = glob::glob_with(pattern, options)
        .map_err(|error| none(format!("invalid pattern: {error}")))?;
    let mut found = Vec::new();
    for entry in paths {
        let entry = entry.map_err(|error| DataError::Read {
            path: error.path().to_owned(),
            cause: error.into(),
        })?;
        if entry.is_file() {
            found.push(entry);
        }
    }
    if found.is_empty() {
        return Err(none("no file matches the pattern".into()));
    }
    Ok(found)
}

fn below(folder: &Path, found: &mut Vec<PathBuf>, others: &mut usize) -> Result<(), DataError> {
    let unreadable = |cause| DataError::Read { path: folder.to_owned(), cause };
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        // Links to folders are not followed: they may form a loop.
        let is_link = entry.file_type().map_err(unreadable)?.is_symlink();
        if hidden {
            continue;
        }
        if path.is_dir() && !is_link {
            below(&path, found, others)?;
        } else if path.is_file() && kind(&path).is_ok() {
            found.push(path);
        } else {
            *others += 1;
        }
    }
    Ok(())
}
