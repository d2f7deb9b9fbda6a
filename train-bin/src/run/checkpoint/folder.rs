//! Where checkpoints lie: folders `checkpoint-N` in a run folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use emberlm_quant::atomic_file::{move_folder, sync_folder};

use super::sums::seal;

/// What the name of a checkpoint begins with.
pub const PREFIX: &str = "checkpoint-";
/// What the name of one that is being written begins and ends with.
const UNFINISHED: (&str, &str) = (".checkpoint-", ".tmp");
/// What the name of one that makes room for another begins and ends with.
const REPLACED: (&str, &str) = (".checkpoint-", ".old");

/// The checkpoints in a run folder by step, oldest first.
///
/// # Errors
/// What the file system says.
pub fn all_in(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(step) = step.and_then(|step| step.parse().ok()) {
            found.push((step, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// What a process that was killed left behind while it saved.
///
/// # Errors
/// What the file system says.
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

/// Makes the checkpoint of `step` in `folder`: `write` fills a folder beside its place, which is sealed, synced and
/// renamed. One of the same step that is there already makes room.
///
/// # Errors
/// What `write` returns, or what the file system says, as `E`. Then nothing has changed.
pub fn put<E: From<io::Error>>(
    folder: &Path,
    step: u64,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let path = folder.join(format!("{PREFIX}{step}"));
    let beside = |(begin, end): (&str, &str)| folder.join(format!("{begin}{step}{end}"));
    let (unfinished, replaced) = (beside(UNFINISHED), beside(REPLACED));
    let made = fs::create_dir_all(&unfinished)
        .map_err(E::from)
        .and_then(|()| write(&unfinished))
        .and_then(|()| Ok(seal(&unfinished)?))
        .and_then(|()| Ok(sync_folder(&unfinished)?))
        .and_then(|()| Ok(put_in_place(&unfinished, &path, &replaced)?));
    if made.is_err() {
        // The first error is the one to report; half a checkpoint is of no use to anybody.
        let _ = fs::remove_dir_all(&unfinished);
    }
    made.map(|()| path)
}

fn put_in_place(from: &Path, to: &Path, replaced: &Path) -> io::Result<()> {
    if to.exists() && !to.join(super::STATE_FILE).is_file() {
        let why = "it is in the way of a checkpoint, and is none itself; move it away";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    move_folder(from, to, replaced)
}

/// Gives a damaged checkpoint another name, `checkpoint-N.damaged`, so that it is neither used nor lost.
///
/// # Errors
/// What the file system says.
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
