//! Plain text: each file, paragraph or line is a document.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};

use super::open::{Input, LineRead, line};
use super::record::{Record, utf8};
use crate::error::{Fault, RowError};
use crate::location::Source;

/// How plain text is split into documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TextBy {
    /// Each file is one document
    #[default]
    File,
    /// Documents are separated by blank lines
    Paragraph,
    /// Each line that is not blank is a document
    Line,
}

/// The documents of a file of plain text.
pub(crate) struct Documents {
    pub(crate) input: Input,
    pub(crate) file: Arc<Path>,
    pub(crate) by: TextBy,
    /// Lines read so far.
    pub(crate) read: usize,
    pub(crate) limit: usize,
    pub(crate) buffer: Vec<u8>,
}

impl Documents {
    pub(crate) fn next(&mut self) -> Option<Result<Record, Fault>> {
        match self.by {
            TextBy::File => self.whole(),
            TextBy::Paragraph | TextBy::Line => self.part(),
        }
    }

    fn whole(&mut self) -> Option<Result<Record, Fault>> {
        if self.read > 0 {
            return None;
        }
        self.read = 1;
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(self.limit as u64 + 1).read_to_end(&mut bytes);
        let source = self.source(1);
        match read {
            Err(cause) => {
                return Some(Err(Fault::new(source, RowError::Broken(cause.to_string()))));
            }
            Ok(read) if read > self.limit => {
                let cause = RowError::TooLong { limit: self.limit };
                return Some(Err(Fault::new(source, cause)));
            }
            Ok(_) => {}
        }
        record(&bytes, source)
    }

    fn part(&mut self) -> Option<Result<Record, Fault>> {
        let mut document: Vec<u8> = Vec::new();
        let mut start = 0;
        let mut too_long = false;
        loop {
            let piece = line(&mut self.input, self.limit, &mut self.buffer);
            let ended = match piece {
                Err(cause) => {
                    let source = self.source(self.read + 1);
                    return Some(Err(Fault::new(source, RowError::Broken(cause.to_string()))));
                }
                Ok(LineRead::End) => true,
                Ok(LineRead::TooLong) => {
                    too_long = true;
                    false
                }
                Ok(LineRead::Whole) => false,
            };
            let blank =
                !matches!(piece, Ok(LineRead::TooLong)) && self.buffer.trim_ascii().is_empty();
            if !ended {
                self.read += 1;
            }
            if start == 0 && !blank {
                start = self.read;
            }
            if !blank {
                too_long |= document.len() + self.buffer.len() > self.limit;
                if too_long {
                    document.clear();
                } else {
                    document.extend_from_slice(&self.buffer);
                }
            }
            let closed = ended || blank || self.by == TextBy::Line;
            if closed && start > 0 {
                let source = self.source(start);
                if too_long {
                    let cause = RowError::TooLong { limit: self.limit };
                    return Some(Err(Fault::new(source, cause)));
                }
                if let Some(found) = record(document.trim_ascii_end(), source) {
                    return Some(found);
                }
                document.clear();
                start = 0;
            }
            if ended {
                return None;
            }
        }
    }

    fn source(&self, line: usize) -> Source {
        Source { file: Arc::clone(&self.file), line }
    }
}

fn record(bytes: &[u8], source: Source) -> Option<Result<Record, Fault>> {
    let text = match utf8(bytes, &source) {
        Ok(text) => text,
        Err(fault) => return Some(Err(fault)),
    };
    if text.trim().is_empty() {
        return None;
    }
    let value = Value::Object(Map::from_iter([("text".to_owned(), Value::from(text))]));
    Some(Ok(Record { value, text: None, source }))
}
