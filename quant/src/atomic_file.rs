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

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
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
}
