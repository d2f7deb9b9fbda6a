//! Parquet: column names are the keys of JSON rows. Read page by page; a row's line is its number, from 1.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::record::{Record, cell_value};
use crate::error::{DataError, Fault, RowError};
use crate::location::Source;

/// The rows of a Parquet file.
pub(crate) struct Columns {
    rows: Option<RowIter<'static>>,
    file: Arc<Path>,
    read: usize,
}

impl Columns {
    pub(crate) fn open(path: &Path, file: Arc<Path>) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Read { path: path.to_owned(), cause };
        let opened = File::open(path).map_err(unreadable)?;
        let rows = guarded(|| {
            let reader = SerializedFileReader::new(opened)?;
            Ok(RowIter::from_file_into(Box::new(reader)))
        });
        let rows = rows.map_err(|detail| {
            unreadable(std::io::Error::other(format!("not a Parquet file: {detail}")))
        })?;
        Ok(Self { rows: Some(rows), file, read: 0 })
    }

    pub(crate) fn next(&mut self) -> Option<Result<Record, Fault>> {
        let rows = self.rows.as_mut()?;
        let found = guarded(|| rows.next().transpose()).transpose()?;
        self.read += 1;
        let source = Source { file: Arc::clone(&self.file), line: self.read };
        let value = found.and_then(|row| guarded(|| Ok(object(&row))));
        Some(match value {
            Ok(object) => Ok(Record { value: Value::Object(object), text: None, source }),
            Err(detail) => {
                // The reader would retry a damaged page forever.
                self.rows = None;
                Err(Fault::new(source, RowError::Broken(detail)))
            }
        })
    }
}

fn object(row: &Row) -> Map<String, Value> {
    row.get_column_iter()
        .map(|(key, field)| {
            let value = match field {
                Field::Str(text) => cell_value(key, text),
                // Some writers don't mark text columns as text.
                Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                    Ok(text) => cell_value(key, text),
                    Err(_) => field.to_json_value(),
                },
                _ => field.to_json_value(),
            };
            (key.clone(), value)
        })
        .collect()
}

/// The reader panics on some damaged files and on unsupported types; here that becomes an error.
fn guarded<T>(work: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(payload) => {
            let message = payload.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
            Err(message.unwrap_or("the file is damaged").to_owned())
        }
    }
}
