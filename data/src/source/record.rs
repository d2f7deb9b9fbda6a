//! The objects of data files.

use std::sync::Arc;

use serde_json::Value;

use super::fields::RowShape;
use crate::error::{Fault, RowError};
use crate::format::{Format, is_list};
use crate::location::Source;
use crate::row::Row;

/// An object of a file, before it becomes a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The object; for plain text `{"text": …}`.
    pub value: Value,
    /// The line it was parsed from, if it was a line.
    pub text: Option<Box<str>>,
    /// Where it was read.
    pub source: Source,
}

impl Record {
    /// The object as a row, and its format.
    ///
    /// # Errors
    /// Keys that match no format; a field that is missing or of the wrong type.
    pub fn row(&self, shape: &RowShape) -> Result<(Row, Format), Fault> {
        shape.row(&self.value).map_err(|cause| Fault {
            source_row: self.source.clone(),
            cause,
            text: Some(self.json_line().into()),
        })
    }

    /// The object in one line; for JSON Lines, the line of the file.
    pub fn json_line(&self) -> String {
        match &self.text {
            Some(text) => text.to_string(),
            None => self.value.to_string(),
        }
    }
}

/// The bytes as text; the error names the line of the first invalid one.
pub(super) fn utf8<'a>(bytes: &'a [u8], source: &Source) -> Result<&'a str, Fault> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let newlines = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        let source_row = Source { file: Arc::clone(&source.file), line: source.line + newlines };
        let byte = bytes.get(at).copied().unwrap_or_default();
        let text = Some(String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).into());
        Fault { source_row, cause: RowError::Utf8 { byte }, text }
    })
}

/// A cell of a table: a list for keys of lists, else text.
pub(super) fn cell_value(key: &str, cell: &str) -> Value {
    let list = is_list(key);
    if list && cell.trim().is_empty() {
        return Value::Null;
    }
    match serde_json::from_str(cell) {
        Ok(value @ Value::Array(_)) if list => value,
        _ => Value::String(cell.to_owned()),
    }
}
