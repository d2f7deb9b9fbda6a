//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes `path` by way of a temporary file beside it: written, synced, renamed, and the folder synced.
///
/// A reader sees the old content or the new, whatever interrupts the write; on an error the temporary file is removed.
///
/// # Errors
/// Whatever `write` or the file system reports.
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
/// Whatever `write` or the file system reports.
pub fn replace_atomically(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary_name(path);
    let result = write(&temporary)
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_folder_of(path));
    if result.is_err() {
        // The first error is the one to report; a temporary file that can't be removed either is harmless.
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Writes the folder `path` by way of one beside it, and puts it in its place only when `write` has succeeded.
///
/// A folder that was there is moved aside first and removed last: whatever fails, it is there again afterwards.
///
/// # Errors
/// What `write` returns, or what the file system says, as `E`.
pub fn replace_folder<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let (temporary, aside) = (beside(path, "tmp"), beside(path, "old"));
    let result = write(&temporary).and_then(|written| {
        let was_there = path.exists();
        if was_there {
            fs::rename(path, &aside)?;
        }
        if let Err(error) = fs::rename(&temporary, path) {
            if was_there {
                fs::rename(&aside, path)?;
            }
            return Err(error.into());
        }
        sync_folder_of(path)?;
        if was_there {
            fs::remove_dir_all(&aside)?;
        }
        Ok(written)
    });
    if result.is_err() {
        // The first error is the one to report; what was half-written is of no use to anybody.
        let _ = fs::remove_dir_all(&temporary);
    }
    result
}

fn temporary_name(path: &Path) -> PathBuf {
    beside(path, "tmp")
}

/// A name in the same folder that no other process uses.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{what}", std::process::id()));
    path.with_file_name(name)
}

/// Makes a rename in the folder of `path` last through a power cut (a no-op where folders can't be synced).
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
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
            out.write_all(b"half of the new")?;
            Err(io::Error::other("disk full"))
        });
        assert!(result.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_replaced_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        let write = |text: &'static str, fails: bool| {
            replace_folder(&path, |folder| {
                fs::create_dir(folder)?;
                fs::write(folder.join(text), text)?;
                // The old one is untouched while the new one is being made.
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
        assert_eq!(files(), ["third"], "nothing of the old one is left in it");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_folder_that_was_never_made_takes_nobodys_place() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("mine"), "mine").unwrap();
        // Writes nothing, so that putting it in place fails after the old one was moved aside.
        assert!(replace_folder(&path, |_| Ok::<_, io::Error>(())).is_err());
        assert_eq!(fs::read(path.join("mine")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
