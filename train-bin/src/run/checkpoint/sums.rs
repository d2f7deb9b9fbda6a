//! Checksums of a folder: the mark that it is whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use emberlm_quant::atomic_file::write_atomically;

use crate::base::file_hash::{hash_file, hex};

/// A line a file: its hash, two spaces, its name, as `xxhsum -H2` writes them and `xxhsum -c` reads them.
pub const SUMS_FILE: &str = "checksums.xxh128";

/// Hashes every file of a folder, and writes the list into it.
pub(super) fn seal(folder: &Path) -> io::Result<()> {
    let mut lines = String::new();
    for name in files_of(folder)? {
        let path = folder.join(&name);
        // What was written without syncing is synced here.
        File::open(&path)?.sync_all()?;
        let (_, hash) = hash_file(&path)?;
        lines.push_str(&format!("{}  {name}\n", hex(hash)));
    }
    write_atomically(&folder.join(SUMS_FILE), |out| out.write_all(lines.as_bytes()))
}

/// Whether every file of the list is there as it was written; what is wrong, if not.
///
/// # Errors
/// What is wrong.
pub fn verify(folder: &Path) -> Result<(), String> {
    let list = fs::read_to_string(folder.join(SUMS_FILE)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("it has no {SUMS_FILE}, so it was never finished"),
        _ => format!("{SUMS_FILE}: {error}"),
    })?;
    let mut expected = BTreeMap::new();
    for line in list.lines() {
        let Some((hash, name)) = line.split_once("  ") else {
            return Err(format!("{SUMS_FILE} holds a line that is none: {line:?}"));
        };
        expected.insert(name, hash);
    }
    for needed in [super::STATE_FILE, super::OPTIMIZER_FILE, super::CONFIG_FILE] {
        if !expected.contains_key(needed) {
            return Err(format!("{SUMS_FILE} doesn't tell of {needed}"));
        }
    }
    for (name, hash) in expected {
        let found = hash_file(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        if hex(found.1) != hash {
            return Err(format!("{name} isn't as it was written"));
        }
    }
    Ok(())
}

fn files_of(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let name = entry.file_name().into_string();
        names.push(name.map_err(|name| io::Error::other(format!("a file named {name:?}")))?);
    }
    names.sort_unstable();
    Ok(names)
}
