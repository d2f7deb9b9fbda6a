//! Hashes of files: XXH3 with 128 bits, as `xxhsum -H2` prints them. They detect damage and change, not malice.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// A file by name, size and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashedFile {
    /// Its name, without folders.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// 32 hexadecimal digits.
    pub xxh128: String,
}

impl HashedFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`io::Error`] of the file system.
    pub fn read(path: &Path) -> io::Result<Self> {
        let (bytes, hash) = hash_file(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, bytes, xxh128: hex(hash) })
    }

    /// Bytes that are not in a file but in the program.
    pub fn of_bytes(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.into(), bytes: bytes.len() as u64, xxh128: hex(xxh3_128(bytes)) }
    }
}

/// A combined hash of several files: names, sizes and contents.
pub fn combined(files: &[HashedFile]) -> String {
    let mut text = String::new();
    for HashedFile { name, bytes, xxh128 } in files {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{xxh128} {bytes} {name}");
    }
    hex(xxh3_128(text.as_bytes()))
}

/// A hash as 32 hexadecimal digits.
pub fn hex(hash: u128) -> String {
    format!("{hash:032x}")
}

/// Size and hash of a file.
///
/// # Errors
/// [`io::Error`] of the file system.
pub fn hash_file(path: &Path) -> io::Result<(u64, u128)> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => {
                tracing::debug!(path = %path.display(), bytes, "file hashed");
                return Ok((bytes, hasher.digest128()));
            }
            Ok(read) => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Files that are hashed in the background.
pub struct Hashing {
    thread: Option<JoinHandle<io::Result<Vec<HashedFile>>>>,
    files: Vec<HashedFile>,
}

impl Hashing {
    /// Starts hashing; files that are already `known` come first.
    pub fn begin(known: Vec<HashedFile>, paths: Vec<PathBuf>) -> Self {
        let read = move || {
            let read = paths.iter().map(|path| HashedFile::read(path));
            known.into_iter().map(Ok).chain(read).collect()
        };
        Self { thread: Some(std::thread::spawn(read)), files: Vec::new() }
    }

    /// The files; waits until they are hashed.
    ///
    /// # Errors
    /// [`io::Error`] of the file system.
    pub fn files(&mut self) -> io::Result<&[HashedFile]> {
        if let Some(thread) = self.thread.take() {
            let aborted = |_| Err(io::Error::other("hashing files was aborted"));
            self.files = thread.join().unwrap_or_else(aborted)?;
        }
        Ok(&self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_xxhsum() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a"), "emberlm\n").unwrap();
        let file = HashedFile::read(&place.path().join("a")).unwrap();
        assert_eq!(file, HashedFile::of_bytes("a", b"emberlm\n"));
        assert_eq!(file.bytes, 8);
        // xxhsum -H2, of an empty file.
        let empty = HashedFile::of_bytes("e", b"");
        assert_eq!(empty.xxh128, "99aa06d3014798d86001c324468d497f");
        let both = [file.clone(), empty];
        let mut hashing = Hashing::begin(both[1..].to_vec(), vec![place.path().join("a")]);
        for _ in 0..2 {
            assert_eq!(hashing.files().unwrap(), [both[1].clone(), file.clone()]);
        }
        assert_ne!(combined(&both), combined(&both[..1]));
        let mut missing = Hashing::begin(Vec::new(), vec![place.path().join("b")]);
        assert!(missing.files().is_err());
    }
}
