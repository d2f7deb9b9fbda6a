//! Where a row was read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File and line of a row, shown as `file:line`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file, or a name for rows that were not read from a file.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
}

impl Source {
    /// A line of a file.
    pub fn new(file: impl Into<PathBuf>, line: usize) -> Self {
        Self { file: file.into().into(), line }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}
