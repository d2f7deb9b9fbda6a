//! Reading the rows of one file.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use super::documents::TextBy;
use super::fields::RowShape;
use super::open::Kind;
use super::record::Record;
use super::{array, columns, documents, lines, open, table};
use crate::error::{DataError, Fault};
use crate::format::Format;
use crate::row::SourcedRow;

/// Maximum bytes of a row: a longer one is a broken file, and must not exhaust the memory.
const LONGEST_ROW: usize = 64 << 20;

/// How rows are read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// How objects become rows.
    pub shape: RowShape,
    /// How plain text is split into documents.
    pub text_by: TextBy,
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
    /// A reader for all types but Parquet, which isn't read as a stream of bytes.
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
                // Some tools write JSON Lines to files named .json.
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
    /// Opens a file: `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv` or `.txt`, each optionally compressed (`.gz`, `.zst`),
    /// or `.parquet`.
    ///
    /// # Errors
    /// A file of another type, or one that cannot be read.
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

    /// Reads JSON Lines from memory; messages name the file `name`.
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

    /// The next row with its format and the object it was read from.
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

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
