//! Folders of checkpoints: `checkpoint-N` in a run folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use emberlm_quant::atomic_file::{move_folder, sync_folder};

use super::sums::seal;
use crate::run::files::{CHECKPOINT_PREFIX, STATE_FILE};

/// Prefix and suffix of a checkpoint that is being written.
const UNFINISHED: (&str, &str) = (".checkpoint-", ".tmp");
/// Prefix and suffix of a checkpoint that is being replaced.
const REPLACED: (&str, &str) = (".checkpoint-", ".old");

/// The checkpoints in a run folder by step, oldest first.
///
/// # Errors
/// Of the file system.
pub fn all_in(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(CHECKPOINT_PREFIX));
        if let Some(step) = step.and_then(|step| step.parse().ok()) {
            found.push((step, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Folders left by a process that was killed while it saved.
///
/// # Errors
/// Of the file system.
pub fn unfinished_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is = |(begin, end): (&str, &str)| name.starts_with(begin) && name.ends_with(end);
        if is(UNFINISHED) || is(REPLACED) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Saves the checkpoint of `step` in `folder`: `write` fills a temporary folder, which is then sealed, synced and renamed.
/// It replaces an older checkpoint of the same step.
///
/// # Errors
/// Of `write` and of the file system. Then nothing has changed.
pub fn save<E: From<io::Error>>(
    folder: &Path,
    step: u64,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let path = folder.join(format!("{CHECKPOINT_PREFIX}{step}"));
    let named = |(begin, end): (&str, &str)| folder.join(format!("{begin}{step}{end}"));
    let (unfinished, replaced) = (named(UNFINISHED), named(REPLACED));
    let saved = fs::create_dir_all(&unfinished)
        .map_err(E::from)
        .and_then(|()| write(&unfinished))
        .and_then(|()| Ok(seal(&unfinished)?))
        .and_then(|()| Ok(sync_folder(&unfinished)?))
        .and_then(|()| Ok(replace(&unfinished, &path, &replaced)?));
    if saved.is_err() {
        // The first error is the one to report; an incomplete checkpoint is useless.
        let _ = fs::remove_dir_all(&unfinished);
    }
    saved.map(|()| path)
}

fn replace(from: &Path, to: &Path, replaced: &Path) -> io::Result<()> {
    if to.exists() && !to.join(STATE_FILE).is_file() {
        let why =
            "cannot save a checkpoint here: this exists and is not a checkpoint; move it away";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    move_folder(from, to, replaced)
}

/// Renames a damaged checkpoint to `checkpoint-N.damaged`, so that it is neither used nor lost.
///
/// # Errors
/// Of the file system.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".damaged");
    let aside = path.with_file_name(name);
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}
