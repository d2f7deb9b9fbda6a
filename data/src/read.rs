//! Reading all rows of files into memory.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::format::Format;
use crate::row::SourcedRow;
use crate::source::{OnError, ReadOptions, Records, Rejects, RowShape, Rows, data_files};

/// Reads the rows of a file of a type that [`Records::open`] supports.
///
/// # Errors
/// A file that cannot be read or has no rows; invalid rows, of which the first twenty are listed by `file:line`.
pub fn read_rows(path: &Path, format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let options = ReadOptions { shape: RowShape::Keys(format), ..ReadOptions::default() };
    let mut rejects = Rejects::new(OnError::Fail, None)?;
    let rows = collect(Rows::open(path, &options)?, path, &mut rejects)?;
    rejects.finish().map(|_| rows)
}

/// Reads the rows of files, folders and patterns, in order. Invalid rows go to `rejects`, which the caller finishes
/// after the last files.
///
/// # Errors
/// The errors of [`data_files`]; a file that cannot be read or has no rows; invalid rows that `rejects` doesn't skip.
pub fn read_all_rows(
    paths: &[PathBuf],
    options: &ReadOptions,
    rejects: &mut Rejects,
) -> Result<Vec<SourcedRow>, DataError> {
    let mut rows = Vec::new();
    for path in data_files(paths)? {
        rows.extend(collect(Rows::open(&path, options)?, &path, rejects)?);
    }
    Ok(rows)
}

/// Reads JSON Lines from memory; messages name the file `name`.
///
/// # Errors
/// No rows, or invalid rows.
pub fn parse_rows(text: &str, name: &str, format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let mut rejects = Rejects::new(OnError::Fail, None)?;
    let rows = Rows::of(Records::of_text(text.to_owned(), name), RowShape::Keys(format));
    let rows = collect(rows, Path::new(name), &mut rejects)?;
    rejects.finish().map(|_| rows)
}

fn collect(stream: Rows, path: &Path, rejects: &mut Rejects) -> Result<Vec<SourcedRow>, DataError> {
    let mut rows = Vec::new();
    let mut empty = true;
    for row in stream {
        empty = false;
        match row {
            Ok(row) => rows.push(row),
            Err(fault) => rejects.take(fault)?,
        }
    }
    if empty { Err(DataError::EmptyFile { path: path.to_owned() }) } else { Ok(rows) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::row::Row;

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
    fn json_lines_may_have_a_byte_order_mark_blank_lines_and_line_separators() {
        let text = "\u{feff}{\"text\":\"a\u{2028}b\"}\r\n\r\n{\"text\":\"c\"}\n";
        let rows = parse_rows(text, "x.jsonl", Format::Auto).unwrap();
        assert_eq!(lines(&rows), [1, 3]);
        assert_eq!(rows[0].row, Row::Text("a\u{2028}b".into()));
    }

    #[test]
    fn faults_are_listed_with_file_line_and_column() {
        let mut text = "{\"text\":\"fine\"}\n".repeat(16);
        text += "{\"text\": oops}\n{\"txt\":\"b\"}\n";
        let error = parse_rows(&text, "rows.jsonl", Format::Auto).unwrap_err().to_string();
        assert!(error.contains("2 invalid rows"), "{error}");
        assert!(error.contains("rows.jsonl:17: column 10: invalid JSON"), "{error}");
        assert!(
            error.contains("rows.jsonl:18: ") && error.contains("Did you mean `text`?"),
            "{error}"
        );
        let many = parse_rows(&"{}\n".repeat(25), "x", Format::Auto).unwrap_err().to_string();
        assert!(many.contains("25 invalid rows") && many.contains("and 5 more"), "{many}");
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
        assert!(matches!(written("x.parquet", ""), Err(DataError::Read { .. })));
        assert!(matches!(written("x.parquet.gz", ""), Err(DataError::UnknownExtension { .. })));
        assert_eq!(written("x.txt", "one\ntwo").unwrap()[0].row, Row::Text("one\ntwo".into()));
    }
}
