//! JSON Lines: one row per line.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::open::{Input, LineRead, line};
use super::record::{Record, utf8};
use crate::error::{Fault, RowError};
use crate::location::Source;

/// The rows of a JSON Lines file. Split at `\n` only: a JSON string may contain U+2028, which other splitters treat as
/// a line break.
pub(crate) struct JsonLines {
    pub(crate) input: Input,
    pub(crate) file: Arc<Path>,
    /// Lines read so far.
    pub(crate) read: usize,
    pub(crate) limit: usize,
    pub(crate) buffer: Vec<u8>,
}

impl JsonLines {
    pub(crate) fn next(&mut self) -> Option<Result<Record, Fault>> {
        loop {
            let piece = line(&mut self.input, self.limit, &mut self.buffer);
            if matches!(piece, Ok(LineRead::End)) {
                return None;
            }
            self.read += 1;
            let source = Source { file: Arc::clone(&self.file), line: self.read };
            match piece {
                Err(cause) => {
                    return Some(Err(Fault::new(source, RowError::Broken(cause.to_string()))));
                }
                Ok(LineRead::TooLong) => {
                    let cause = RowError::TooLong { limit: self.limit };
                    return Some(Err(Fault::new(source, cause)));
                }
                Ok(_) => {}
            }
            let text = match utf8(&self.buffer, &source) {
                Ok(text) => text.trim_end_matches(['\n', '\r']),
                Err(fault) => return Some(Err(fault)),
            };
            if text.trim().is_empty() {
                continue;
            }
            return Some(match serde_json::from_str::<Value>(text) {
                Ok(value) => Ok(Record { value, text: Some(text.into()), source }),
                Err(error) => {
                    let cause = json_error(&error, 0);
                    Err(Fault { source_row: source, cause, text: Some(text.into()) })
                }
            });
        }
    }
}

/// The parser's message without its line and column, which are relative to the row. `before`: columns of the line
/// before the row.
pub(crate) fn json_error(error: &serde_json::Error, before: usize) -> RowError {
    let text = error.to_string();
    let detail = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
    let before = if error.line() == 1 { before } else { 0 };
    RowError::Json { column: before + error.column(), detail: detail.to_owned() }
}
