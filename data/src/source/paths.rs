//! Which files are meant: files, folders and patterns.

use std::fs;
use std::path::{Path, PathBuf};

use super::open::kind;
use crate::error::DataError;

/// The data files that paths stand for, in order: a file for itself; a folder for the data files in and below it, by
/// name; a pattern (`data/*.jsonl`, `data/**/part-?.parquet`) for the files that match, by name. No file comes twice.
///
/// # Errors
/// A path that does not exist, a folder or pattern without a data file, a pattern that is none.
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
                let found = format!("the folder holds {others} files of other kinds");
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
    // Hidden files are no data, unless the pattern says so.
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let paths = glob::glob_with(pattern, options)
        .map_err(|error| none(format!("not a pattern: {error}")))?;
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
        return Err(none("nothing matches the pattern".into()));
    }
    Ok(found)
}

fn below(folder: &Path, found: &mut Vec<PathBuf>, others: &mut usize) -> Result<(), DataError> {
    let unreadable = |cause| DataError::Read { path: folder.to_owned(), cause };
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        // A folder behind a link may lead back here.
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
