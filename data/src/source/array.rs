//! A JSON list, read element by element: each has its line, and the whole list is never in memory.

use std::io::{self, BufRead};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::lines::json_error;
use super::open::Input;
use super::record::{Record, utf8};
use crate::error::{Fault, RowError};
use crate::location::Source;

/// The elements of a file with a JSON list.
pub(crate) struct JsonArray {
    input: Input,
    file: Arc<Path>,
    limit: usize,
    /// Line and column of the next byte, from 1.
    line: usize,
    column: usize,
    state: State,
    element: Vec<u8>,
}

enum State {
    /// Before the list's `[`.
    Start,
    /// After an element.
    Next,
    End,
}

/// The state of scanning an element for its end.
#[derive(Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// A number, boolean or null: ends before a delimiter.
    bare: bool,
    started: bool,
}

impl Scan {
    /// Number of bytes that belong to the element, and whether it ends there. Only brackets and quotes are looked
    /// at; the parser checks the rest.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, &byte) in bytes.iter().enumerate() {
            if !self.started {
                self.started = true;
                match byte {
                    b'{' | b'[' => self.depth = 1,
                    b'"' => self.in_string = true,
                    _ => self.bare = true,
                }
                continue;
            }
            if self.bare {
                if matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') {
                    return (at, true);
                }
                continue;
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if !self.in_string && self.depth == 0 {
                return (at + 1, true);
            }
        }
        (bytes.len(), false)
    }
}

impl JsonArray {
    /// `line`: the line of the input's next byte.
    pub(crate) fn new(input: Input, file: Arc<Path>, limit: usize, line: usize) -> Self {
        Self { input, file, limit, line, column: 1, state: State::Start, element: Vec::new() }
    }

    pub(crate) fn next(&mut self) -> Option<Result<Record, Fault>> {
        if matches!(self.state, State::End) {
            return None;
        }
        match self.advance() {
            Ok(found) => found,
            Err(error) => Some(Err(self.broken(error.to_string()))),
        }
    }

    fn advance(&mut self) -> io::Result<Option<Result<Record, Fault>>> {
        let mut byte = self.peek()?;
        if matches!(self.state, State::Start) {
            self.skip(1);
            byte = self.peek()?;
        }
        let comma = byte == Some(b',');
        if comma && matches!(self.state, State::Next) {
            self.skip(1);
            byte = self.peek()?;
        }
        match byte {
            None => return Ok(Some(Err(self.broken("the list is not closed".into())))),
            Some(b']') => {
                self.skip(1);
                let rest = self.peek()?;
                self.state = State::End;
                let detail = "text after the end of the list".to_owned();
                return Ok(rest.map(|_| Err(self.fault(self.line, self.column, detail))));
            }
            Some(_) if matches!(self.state, State::Next) && !comma => {
                let detail = format!(
                    "expected `,` or `]` between the elements of the list at column {}",
                    self.column
                );
                return Ok(Some(Err(self.broken(detail))));
            }
            Some(b',' | b'}') => {
                let detail = format!("expected an element of the list at column {}", self.column);
                return Ok(Some(Err(self.broken(detail))));
            }
            Some(_) => {}
        }
        self.state = State::Next;
        self.element().map(Some)
    }

    fn element(&mut self) -> io::Result<Result<Record, Fault>> {
        let source = self.source(self.line);
        let before = self.column - 1;
        let mut scan = Scan::default();
        let mut too_long = false;
        self.element.clear();
        loop {
            let bytes = self.input.fill_buf()?;
            if bytes.is_empty() {
                if scan.bare {
                    break;
                }
                let fault = self.broken("the list is not closed".into());
                return Ok(Err(Fault { source_row: source, ..fault }));
            }
            let (taken, ended) = scan.take(bytes);
            let bytes = &bytes[..taken];
            too_long |= self.element.len() + taken > self.limit;
            if too_long {
                self.element.clear();
            } else {
                self.element.extend_from_slice(bytes);
            }
            count(bytes, &mut self.line, &mut self.column);
            self.input.consume(taken);
            if ended {
                break;
            }
        }
        if too_long {
            return Ok(Err(Fault::new(source, RowError::TooLong { limit: self.limit })));
        }
        let text = match utf8(&self.element, &source) {
            Ok(text) => text,
            Err(fault) => return Ok(Err(fault)),
        };
        Ok(match serde_json::from_str::<Value>(text) {
            Ok(value) => Ok(Record { value, text: None, source }),
            Err(error) => {
                let line = source.line + error.line().saturating_sub(1);
                let source_row = Source { line, ..source };
                let cause = json_error(&error, before);
                Err(Fault { source_row, cause, text: Some(text.into()) })
            }
        })
    }

    /// The next byte that isn't white space.
    fn peek(&mut self) -> io::Result<Option<u8>> {
        loop {
            let bytes = self.input.fill_buf()?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let white = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let found = bytes.get(white).copied();
            count(&bytes[..white], &mut self.line, &mut self.column);
            self.input.consume(white);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Skips bytes without line breaks.
    fn skip(&mut self, bytes: usize) {
        self.input.consume(bytes);
        self.column += bytes;
    }

    fn source(&self, line: usize) -> Source {
        Source { file: Arc::clone(&self.file), line }
    }

    fn fault(&self, line: usize, column: usize, detail: String) -> Fault {
        Fault::new(self.source(line), RowError::Json { column, detail })
    }

    /// The start of the next element is unknown, so nothing more is read.
    fn broken(&mut self, detail: String) -> Fault {
        self.state = State::End;
        Fault::new(self.source(self.line), RowError::Broken(detail))
    }
}

/// Updates line and column; columns count characters.
fn count(bytes: &[u8], line: &mut usize, column: &mut usize) {
    for &byte in bytes {
        match byte {
            b'\n' => {
                *line += 1;
                *column = 1;
            }
            0x80..=0xbf => {}
            _ => *column += 1,
        }
    }
}
