//! Files and lines of rows, in eight bytes per row.

use std::path::Path;
use std::sync::Arc;

use crate::location::Source;

/// Files and lines of rows by number.
#[derive(Debug, Default)]
pub(crate) struct Places {
    files: Vec<Arc<Path>>,
    rows: Vec<(u32, u32)>,
}

impl Places {
    /// Adds a row and returns its number.
    pub(crate) fn push(&mut self, source: &Source) -> u32 {
        // The rows of a file are added one after another.
        if self.files.last().is_none_or(|last| *last != source.file) {
            self.files.push(Arc::clone(&source.file));
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.rows.push((number(self.files.len() - 1), number(source.line)));
        number(self.rows.len() - 1)
    }

    /// File and line of the row with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Source> {
        let (file, line) = self.rows.get(number as usize)?;
        let file = Arc::clone(self.files.get(*file as usize)?);
        Some(Source { file, line: *line as usize })
    }
}
