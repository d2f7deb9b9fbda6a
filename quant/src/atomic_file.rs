//! Atomic writes: a file or folder is complete, or unchanged.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes `path` through a temporary file next to it: written, synced, renamed, and the folder synced.
///
/// Whenever the write is interrupted, a reader sees the old content or the new. On an error the temporary file is removed.
///
/// # Errors
/// What `write` or the file system reports.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    replace_atomically(path, |temporary| {
        let mut out = BufWriter::new(File::create(temporary)?);
        write(&mut out)?;
        out.flush()
    })
}

/// As [`write_atomically`], for writers that take a path.
///
/// # Errors
/// What `write` or the file system reports.
pub fn replace_atomically(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = sibling(path, "tmp");
    let result = write(&temporary)
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_parent(path));
    if result.is_err() {
        // The first error is the one to report; a temporary file that can't be removed either is harmless.
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Writes the folder `path`: `write` fills a temporary folder next to it, which then replaces `path` ([`move_folder`]).
///
/// # Errors
/// What `write` returns, or what the file system reports, as `E`. The old folder is then unchanged.
pub fn replace_folder<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let (temporary, old) = (sibling(path, "tmp"), sibling(path, "old"));
    let result = write(&temporary).and_then(|written| {
        move_folder(&temporary, path, &old)?;
        Ok(written)
    });
    if result.is_err() {
        // The first error is the one to report; a partial folder is useless.
        let _ = fs::remove_dir_all(&temporary);
    }
    result
}

/// Renames the folder `from` to `to`, in the same parent folder, and syncs that. An existing `to` is first renamed to
/// `old` and removed last.
///
/// # Errors
/// What the file system reports. An existing `to` is then unchanged.
pub fn move_folder(from: &Path, to: &Path, old: &Path) -> io::Result<()> {
    let replaces = to.exists();
    if replaces {
        fs::rename(to, old)?;
    }
    if let Err(error) = fs::rename(from, to) {
        if replaces {
            fs::rename(old, to)?;
        }
        return Err(error);
    }
    sync_parent(to)?;
    if replaces { fs::remove_dir_all(old) } else { Ok(()) }
}

/// A name in the same folder that no other process uses.
fn sibling(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{extension}", std::process::id()));
    path.with_file_name(name)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// Makes renames in a folder survive a power failure (does nothing where folders can't be synced).
///
/// # Errors
/// What the file system reports.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write_atomically(&path, |out| out.write_all(b"old")).unwrap();
        let result = write_atomically(&path, |out| {
            out.write_all(b"part of the new")?;
            Err(io::Error::other("disk full"))
        });
        assert!(result.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_replaced_completely_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        let write = |text: &'static str, fails: bool| {
            replace_folder(&path, |folder| {
                fs::create_dir(folder)?;
                fs::write(folder.join(text), text)?;
                // The old folder is untouched while the new one is written.
                assert_eq!(path.exists(), text != "first");
                if fails { Err(io::Error::other("disk full")) } else { Ok(()) }
            })
        };
        let files = || -> Vec<_> {
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        write("first", false).unwrap();
        assert!(write("second", true).is_err());
        assert_eq!(files(), ["first"]);
        write("third", false).unwrap();
        assert_eq!(files(), ["third"], "no file of the old folder is left");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "no temporary folder is left");
    }

    #[test]
    fn a_folder_that_cannot_be_replaced_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("mine"), "mine").unwrap();
        // Writes nothing, so that the rename fails after the old folder was moved away.
        assert!(replace_folder(&path, |_| Ok::<_, io::Error>(())).is_err());
        assert_eq!(fs::read(path.join("mine")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
