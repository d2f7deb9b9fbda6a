//! CSV and TSV: column names are the keys of JSON rows; lists in cells are JSON.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::ByteRecord;
use serde_json::{Map, Value};

use super::open::Input;
use super::record::{Record, cell_value, utf8};
use crate::error::{Fault, RowError};
use crate::location::Source;

/// The rows of a table with a header.
pub(crate) struct Table {
    reader: csv::Reader<Limited>,
    headers: Option<Vec<String>>,
    read: Arc<AtomicUsize>,
    limit: usize,
    file: Arc<Path>,
    record: ByteRecord,
}

/// Limits the bytes of a record: an unclosed quote would make one record of the rest of the file.
struct Limited {
    input: Input,
    read: Arc<AtomicUsize>,
    limit: usize,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let before = self.read.load(Ordering::Relaxed);
        if before > self.limit {
            return Err(io::Error::other(RowError::TooLong { limit: self.limit }));
        }
        let read = self.input.read(buffer)?;
        self.read.store(before + read, Ordering::Relaxed);
        Ok(read)
    }
}

impl Table {
    pub(crate) fn new(input: Input, file: Arc<Path>, limit: usize, delimiter: u8) -> Self {
        let read = Arc::new(AtomicUsize::new(0));
        let limited = Limited { input, read: Arc::clone(&read), limit };
        let reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(limited);
        Self { reader, headers: None, read, limit, file, record: ByteRecord::new() }
    }

    pub(crate) fn next(&mut self) -> Option<Result<Record, Fault>> {
        if self.headers.is_none() {
            match self.header() {
                Ok(headers) => self.headers = Some(headers),
                Err(cause) => {
                    return Some(Err(Fault::new(self.source(1), RowError::Broken(cause))));
                }
            }
        }
        self.read.store(0, Ordering::Relaxed);
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => None,
            Ok(true) => Some(self.row()),
            Err(error) => {
                let at = error.position().map_or(self.reader.position().line(), |at| at.line());
                let cause = match error.kind() {
                    csv::ErrorKind::Io(cause) => RowError::Broken(cause.to_string()),
                    _ => RowError::Csv(error.to_string()),
                };
                Some(Err(Fault::new(self.source(usize::try_from(at).unwrap_or(0)), cause)))
            }
        }
    }

    fn header(&mut self) -> Result<Vec<String>, String> {
        let headers = self.reader.byte_headers().map_err(|error| error.to_string())?;
        let mut names: Vec<String> = Vec::with_capacity(headers.len());
        for cell in headers {
            let name = std::str::from_utf8(cell).map_err(|_| "its header is not UTF-8")?.trim();
            if names.iter().any(|known| known == name) {
                return Err(format!("its header names the column `{name}` twice"));
            }
            names.push(name.to_owned());
        }
        Ok(names)
    }

    fn row(&self) -> Result<Record, Fault> {
        let line = self.record.position().map_or(0, csv::Position::line);
        let source = self.source(usize::try_from(line).unwrap_or(0));
        let mut object = Map::new();
        for (key, cell) in self.headers.iter().flatten().zip(&self.record) {
            object.insert(key.clone(), cell_value(key, utf8(cell, &source)?));
        }
        if self.record.as_slice().len() > self.limit {
            return Err(Fault::new(source, RowError::TooLong { limit: self.limit }));
        }
        Ok(Record { value: Value::Object(object), text: None, source })
    }

    fn source(&self, line: usize) -> Source {
        Source { file: Arc::clone(&self.file), line }
    }
}
