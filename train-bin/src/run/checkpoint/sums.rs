//! Checksums of a folder, which mark it as complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use emberlm_quant::atomic_file::write_atomically;

use crate::base::file_hash::{hash_file, hex};
use crate::run::files::{CONFIG_FILE, OPTIMIZER_FILE, STATE_FILE, SUMS_FILE};

/// Hashes every file of a folder and writes the list into it: per line a hash, two spaces and a name.
pub(super) fn seal(folder: &Path) -> io::Result<()> {
    let mut lines = String::new();
    for name in files_of(folder)? {
        let path = folder.join(&name);
        // Not every writer syncs its file.
        File::open(&path)?.sync_all()?;
        let (_, hash) = hash_file(&path)?;
        lines.push_str(&format!("{}  {name}\n", hex(hash)));
    }
    write_atomically(&folder.join(SUMS_FILE), |out| out.write_all(lines.as_bytes()))
}

/// Verifies the checksums of a folder.
///
/// # Errors
/// What is wrong, as text.
pub fn verify(folder: &Path) -> Result<(), String> {
    let list = fs::read_to_string(folder.join(SUMS_FILE)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{SUMS_FILE} is missing, so it was never completed"),
        _ => format!("{SUMS_FILE}: {error}"),
    })?;
    let mut expected = BTreeMap::new();
    for line in list.lines() {
        let Some((hash, name)) = line.split_once("  ") else {
            return Err(format!(
                "{SUMS_FILE}: expected a hash, two spaces and a file name, found {line:?}"
            ));
        };
        expected.insert(name, hash);
    }
    for needed in [STATE_FILE, OPTIMIZER_FILE, CONFIG_FILE] {
        if !expected.contains_key(needed) {
            return Err(format!("{SUMS_FILE} does not list {needed}"));
        }
    }
    for (name, hash) in expected {
        let found = hash_file(&folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        if hex(found.1) != hash {
            return Err(format!("the checksum of {name} does not match"));
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
