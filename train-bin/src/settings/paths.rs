//! Paths in settings and messages.

use std::path::{Path, PathBuf};

/// `path`, from the root; unchanged where the working directory is not known.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `path` in its shortest form: relative to the working directory if it is below it.
#[must_use]
pub fn shown(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    match here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned)) {
        Some(below) if below.as_os_str().is_empty() => PathBuf::from("."),
        Some(below) => below,
        None => path.to_owned(),
    }
}
