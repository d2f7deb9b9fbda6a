//! Rows from files, one after the other: a file of 100 GB needs no more memory than a small one.
//!
//! [`Records`] gives JSON objects (from JSON Lines, JSON lists, CSV, Parquet or plain text, compressed or not);
//! [`RowShape`] makes rows of them; [`Rows`] is both.

mod array;
mod batches;
mod columns;
mod documents;
mod fields;
mod lines;
mod open;
mod paths;
mod rejects;
mod row_template;
mod table;

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

pub use batches::{Read, ReadRow, for_each_batch};
pub use documents::TextBy;
pub(crate) use fields::at_path;
pub use fields::{FieldMap, RowShape};
pub(crate) use lines::json_error;
pub use paths::data_files;
pub use rejects::{OnError, Rejects};
pub(crate) use rejects::{reject, rejected};
pub use row_template::{RowTemplate, RowTemplates};

use crate::error::{DataError, Fault, RowError};
use crate::row::{Format, Row, Source, SourcedRow};
use open::Kind;

/// Bytes of a row at most: what is longer is a broken file, and must not fill the memory.
const LONGEST_ROW: usize = 64 << 20;

/// How rows are read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Which keys make a row.
    pub shape: RowShape,
    /// What is a document in plain text.
    pub text_by: TextBy,
}

/// An object of a file, before it is known what row it makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The object; for plain text `{"text": …}`.
    pub value: Value,
    /// The line it was parsed from, if it was a line.
    pub text: Option<Box<str>>,
    /// Where it stands.
    pub source: Source,
}

impl Record {
    /// The row that the object makes, and by which keys.
    ///
    /// # Errors
    /// Keys that make no row.
    pub fn row(&self, shape: &RowShape) -> Result<(Row, Format), Fault> {
        shape.row(&self.value).map_err(|cause| Fault {
            source_row: self.source.clone(),
            cause,
            text: Some(self.json_line().into()),
        })
    }

    /// The object in one line: as it stood in the file, if that was JSON Lines.
    pub fn json_line(&self) -> String {
        match &self.text {
            Some(text) => text.to_string(),
            None => self.value.to_string(),
        }
    }
}

/// The objects of a file, in order.
pub struct Records {
    reader: Reader,
    ended: bool,
}

enum Reader {
    Lines(lines::JsonLines),
    Array(array::JsonArray),
    Table(table::Table),
    Columns(columns::Columns),
    Documents(documents::Documents),
}

impl Reader {
    /// A reader of anything but Parquet, which is no stream of bytes.
    fn of(kind: Kind, mut input: open::Input, file: Arc<Path>, by: TextBy, limit: usize) -> Self {
        let buffer = Vec::new();
        match kind {
            Kind::Csv { delimiter } => {
                Self::Table(table::Table::new(input, file, limit, delimiter))
            }
            Kind::Text => {
                Self::Documents(documents::Documents { input, file, by, read: 0, limit, buffer })
            }
            Kind::Json => {
                let read = open::blank_lines(&mut input);
                // Some tools write JSON Lines under the name .json.
                if open::starts_with(&mut input, b'[') {
                    Self::Array(array::JsonArray::new(input, file, limit, read + 1))
                } else {
                    Self::Lines(lines::JsonLines { input, file, read, limit, buffer })
                }
            }
            Kind::JsonLines | Kind::Parquet => {
                Self::Lines(lines::JsonLines { input, file, read: 0, limit, buffer })
            }
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Records {
    /// Opens a file: `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv` or `.txt`, each also compressed (`.gz`, `.zst`), or
    /// `.parquet`.
    ///
    /// # Errors
    /// A file of another kind, or one that cannot be read.
    pub fn open(path: &Path, text_by: TextBy) -> Result<Self, DataError> {
        Self::open_within(path, text_by, LONGEST_ROW)
    }

    fn open_within(path: &Path, by: TextBy, limit: usize) -> Result<Self, DataError> {
        let reader = match open::kind(path)? {
            Kind::Parquet => Reader::Columns(columns::Columns::open(path, path.into())?),
            kind => Reader::of(kind, open::open(path)?, path.into(), by, limit),
        };
        Ok(Self { reader, ended: false })
    }

    /// JSON Lines in memory; `name` stands for the file in messages.
    pub fn of_text(text: String, name: &str) -> Self {
        let text_mark = text.starts_with('\u{feff}');
        let mut input: open::Input = Box::new(std::io::Cursor::new(text.into_bytes()));
        if text_mark {
            input.consume('\u{feff}'.len_utf8());
        }
        let reader =
            Reader::of(Kind::JsonLines, input, Path::new(name).into(), TextBy::File, LONGEST_ROW);
        Self { reader, ended: false }
    }
}

impl Iterator for Records {
    type Item = Result<Record, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let found = match &mut self.reader {
            Reader::Lines(lines) => lines.next(),
            Reader::Array(array) => array.next(),
            Reader::Table(table) => table.next(),
            Reader::Columns(columns) => columns.next(),
            Reader::Documents(documents) => documents.next(),
        };
        self.ended = match &found {
            None => true,
            Some(Err(fault)) => fault.ends_file(),
            Some(Ok(_)) => false,
        };
        found
    }
}

/// The rows of a file, in order.
#[derive(Debug)]
pub struct Rows {
    records: Records,
    shape: RowShape,
}

impl Rows {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`Records::open`].
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, DataError> {
        let shape = match open::kind(path)? {
            Kind::Text => options.shape.of_plain_text(),
            _ => options.shape.clone(),
        };
        Ok(Self { records: Records::open(path, options.text_by)?, shape })
    }

    pub(crate) fn of(records: Records, shape: RowShape) -> Self {
        Self { records, shape }
    }

    /// The next row with the object it was made from, and by which keys.
    pub fn next_with_record(&mut self) -> Option<Result<(SourcedRow, Format, Record), Fault>> {
        let record = match self.records.next()? {
            Ok(record) => record,
            Err(fault) => return Some(Err(fault)),
        };
        Some(record.row(&self.shape).map(|(row, format)| {
            let source = record.source.clone();
            let marks = self.shape.marks(&record.value);
            (SourcedRow { row, source, marks }, format, record)
        }))
    }
}

impl Iterator for Rows {
    type Item = Result<SourcedRow, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_with_record()?.map(|(row, _, _)| row))
    }
}

/// The bytes as text; a fault names the line of the first that does not fit.
fn utf8<'a>(bytes: &'a [u8], source: &Source) -> Result<&'a str, Fault> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let newlines = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        let source_row = Source { file: Arc::clone(&source.file), line: source.line + newlines };
        let byte = bytes.get(at).copied().unwrap_or_default();
        let text = Some(String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).into());
        Fault { source_row, cause: RowError::Utf8 { byte }, text }
    })
}

/// A cell of a table: a list where the key wants one, else text.
fn cell_value(key: &str, cell: &str) -> Value {
    let list = ["messages", "conversations", "history", "tools"].contains(&key);
    if list && cell.trim().is_empty() {
        return Value::Null;
    }
    match serde_json::from_str(cell) {
        Ok(value @ Value::Array(_)) if list => value,
        _ => Value::String(cell.to_owned()),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
