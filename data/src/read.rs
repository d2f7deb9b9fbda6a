//! Rows from files: JSON Lines, JSON arrays, CSV and plain text.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::{DataError, Faults, RowError};
use crate::row::{Format, Row, Source, SourcedRow};
use crate::shape::row_from_value;

/// Reads the rows of a file: `.jsonl`, `.json`, `.csv`, or `.txt` (one document).
///
/// # Errors
/// A file that cannot be read or holds no row; faults in rows, up to twenty told at once, as `file:line`.
pub fn read_rows(path: &Path, format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_lowercase();
    if !["jsonl", "ndjson", "json", "csv", "txt"].contains(&extension.as_str()) {
        return Err(DataError::UnknownExtension {
            path: path.to_owned(),
            found: if extension.is_empty() { "none".into() } else { format!(".{extension}") },
        });
    }
    let bytes = fs::read(path).map_err(|cause| DataError::Read { path: path.to_owned(), cause })?;
    let mut reader = Reader::new(path, format);
    match std::str::from_utf8(&bytes) {
        Err(error) => {
            let at = error.valid_up_to();
            let line = 1 + newlines(&bytes[..at]);
            reader.fault(line, RowError::Utf8 { byte: bytes[at] });
        }
        Ok(text) => {
            let text = without_mark(text);
            match extension.as_str() {
                // Some tools write JSON Lines under the name .json.
                "json" if text.trim_start().starts_with('[') => reader.json_array(text),
                "csv" => reader.csv(text),
                "txt" => reader.document(text),
                _ => reader.json_lines(text),
            }
        }
    }
    reader.finish(path)
}

/// Reads JSON Lines held in memory; `name` stands for the file in messages.
///
/// # Errors
/// No row, or faults in rows.
pub fn parse_rows(text: &str, name: &str, format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let path = Path::new(name);
    let mut reader = Reader::new(path, format);
    reader.json_lines(without_mark(text));
    reader.finish(path)
}

struct Reader {
    file: Arc<Path>,
    format: Format,
    rows: Vec<SourcedRow>,
    faults: Faults,
}

impl Reader {
    fn new(path: &Path, format: Format) -> Self {
        Self { file: path.into(), format, rows: Vec::new(), faults: Faults::default() }
    }

    fn source(&self, line: usize) -> Source {
        Source { file: Arc::clone(&self.file), line }
    }

    fn fault(&mut self, line: usize, cause: RowError) {
        self.faults.push(self.source(line), cause);
    }

    fn value(&mut self, line: usize, value: &Value) {
        match row_from_value(value, self.format) {
            Ok(row) => self.rows.push(SourcedRow { row, source: self.source(line) }),
            Err(cause) => self.fault(line, cause),
        }
    }

    /// Split at `\n` only: a JSON string may hold U+2028, which other splitters take for a line's end.
    fn json_lines(&mut self, text: &str) {
        for (index, line) in text.split('\n').enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Value>(line) {
                Ok(value) => self.value(index + 1, &value),
                Err(error) => self.fault(index + 1, json_error(&error)),
            }
        }
    }

    /// One element after the other, so that each has its line.
    fn json_array(&mut self, text: &str) {
        let mut at = text.find('[').map_or(0, |open| open + 1);
        let mut line = 1 + newlines(&text.as_bytes()[..at]);
        let mut first = true;
        loop {
            let skip = |from: usize, also: Option<char>| {
                let rest = &text[from..];
                let trimmed = rest.trim_start();
                let trimmed = also
                    .map_or(trimmed, |c| trimmed.strip_prefix(c).unwrap_or(trimmed).trim_start());
                from + rest.len() - trimmed.len()
            };
            let next = skip(at, if first { None } else { Some(',') });
            let comma = text[at..next].contains(',');
            line += newlines(&text.as_bytes()[at..next]);
            at = next;
            if text[at..].starts_with(']') {
                let rest = text[at + 1..].trim();
                if !rest.is_empty() {
                    let detail = "text after the list's end".to_owned();
                    self.fault(line, RowError::Json { column: 1, detail });
                }
                return;
            }
            if !first && !comma {
                let column = column(text, at);
                let detail = "expected `,` or `]` between the elements of the list".to_owned();
                return self.fault(line, RowError::Json { column, detail });
            }
            first = false;
            let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            match stream.next() {
                Some(Ok(value)) => {
                    let end = at + stream.byte_offset();
                    self.value(line, &value);
                    line += newlines(&text.as_bytes()[at..end]);
                    at = end;
                }
                Some(Err(error)) => {
                    // Where one element is broken, where the next begins is a guess: stop here.
                    let line = line + error.line().saturating_sub(1);
                    return self.fault(line, json_error(&error));
                }
                None => {
                    let detail = "the list is not closed".to_owned();
                    let column = column(text, at);
                    return self.fault(line, RowError::Json { column, detail });
                }
            }
        }
    }

    /// Columns carry the keys of JSON rows; a cell that holds a list is JSON.
    fn csv(&mut self, text: &str) {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let headers = match reader.headers() {
            Ok(headers) => headers.clone(),
            Err(error) => return self.fault(1, RowError::Csv(error.to_string())),
        };
        for record in reader.records() {
            match record {
                Err(error) => {
                    let line = error.position().map_or(0, csv::Position::line);
                    self.fault(
                        usize::try_from(line).unwrap_or(0),
                        RowError::Csv(error.to_string()),
                    );
                }
                Ok(record) => {
                    let line = record.position().map_or(0, csv::Position::line);
                    let object: Map<String, Value> = headers
                        .iter()
                        .zip(record.iter())
                        .map(|(key, cell)| (key.trim().to_owned(), cell_value(key.trim(), cell)))
                        .collect();
                    self.value(usize::try_from(line).unwrap_or(0), &Value::Object(object));
                }
            }
        }
    }

    fn document(&mut self, text: &str) {
        if !text.trim().is_empty() {
            let source = self.source(1);
            let row = Row::Text(text.to_owned());
            self.rows.push(SourcedRow { row, source });
        }
    }

    fn finish(self, path: &Path) -> Result<Vec<SourcedRow>, DataError> {
        if !self.faults.is_empty() {
            Err(DataError::Faults(self.faults))
        } else if self.rows.is_empty() {
            Err(DataError::EmptyFile { path: path.to_owned() })
        } else {
            Ok(self.rows)
        }
    }
}

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

pub(crate) fn json_error(error: &serde_json::Error) -> RowError {
    // The parser ends its message with its own line and column, which are those of the row: the file's stand before.
    let text = error.to_string();
    let detail = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
    RowError::Json { column: error.column(), detail: detail.to_owned() }
}

fn column(text: &str, at: usize) -> usize {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    1 + text[line..at].chars().count()
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Windows tools begin a file with a byte order mark.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &[SourcedRow]) -> Vec<usize> {
        rows.iter().map(|row| row.source.line).collect()
    }

    fn written(name: &str, text: &str) -> Result<Vec<SourcedRow>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        read_rows(&path, Format::Auto)
    }

    #[test]
    fn json_lines_know_marks_blank_lines_and_line_separators() {
        let text = "\u{feff}{\"text\":\"a\u{2028}b\"}\r\n\r\n{\"text\":\"c\"}\n";
        let rows = parse_rows(text, "x.jsonl", Format::Auto).unwrap();
        assert_eq!(lines(&rows), [1, 3]);
        assert_eq!(rows[0].row, Row::Text("a\u{2028}b".into()));
    }

    #[test]
    fn faults_are_told_together_with_file_line_and_column() {
        let mut text = "{\"text\":\"fine\"}\n".repeat(16);
        text += "{\"text\": oops}\n{\"txt\":\"b\"}\n";
        let error = parse_rows(&text, "rows.jsonl", Format::Auto).unwrap_err().to_string();
        assert!(error.contains("2 rows at fault"), "{error}");
        assert!(error.contains("rows.jsonl:17: column 10: not JSON"), "{error}");
        assert!(
            error.contains("rows.jsonl:18: ") && error.contains("Did you mean `text`?"),
            "{error}"
        );
        let many = parse_rows(&"{}\n".repeat(25), "x", Format::Auto).unwrap_err().to_string();
        assert!(many.contains("25 rows at fault") && many.contains("and 5 more"), "{many}");
    }

    #[test]
    fn arrays_keep_the_line_of_each_element() {
        let rows =
            written("x.json", "[\n {\"text\":\"a\"},\n {\n\"text\":\"b\"}\n,{\"text\":\"c\"}]\n")
                .unwrap();
        assert_eq!(lines(&rows), [2, 3, 5]);
        let error =
            written("x.json", "[\n{\"text\":\"a\"},\n{\"text\" 1}]").unwrap_err().to_string();
        assert!(error.contains("x.json:3: column 9"), "{error}");
        let error = written("x.json", "[{\"text\":\"a\"}\n").unwrap_err().to_string();
        assert!(error.contains("x.json:2"), "{error}");
    }

    #[test]
    fn csv_text_and_empty_files() {
        let rows = written("x.csv", "question,answer\n\"a\nb\",c\nd,e\n").unwrap();
        assert_eq!(lines(&rows), [2, 4]);
        assert!(matches!(written("x.jsonl", "\n \n"), Err(DataError::EmptyFile { .. })));
        assert!(matches!(written("x.parquet", ""), Err(DataError::UnknownExtension { .. })));
        assert_eq!(written("x.txt", "one\ntwo").unwrap()[0].row, Row::Text("one\ntwo".into()));
    }
}
