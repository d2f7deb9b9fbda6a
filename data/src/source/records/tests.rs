//! The readers, with the same rows in different file types.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use super::*;
use crate::error::{Faults, RowError};
use crate::read::read_all_rows;
use crate::row::Row;
use crate::source::{FieldMap, OnError, Rejects, RowTemplate, RowTemplates, data_files};

fn rows_of(name: &str, bytes: &[u8], limit: usize) -> Vec<Result<Record, Fault>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    Records::open_within(&path, TextBy::File, limit).unwrap().collect()
}

fn values(found: &[Result<Record, Fault>]) -> Vec<Value> {
    found.iter().map(|row| row.as_ref().unwrap().value.clone()).collect()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compression_is_detected_from_the_first_bytes_and_files_may_have_several_parts() {
    let [a, b] = [&b"\xef\xbb\xbf{\"text\":\"a\"}\n"[..], b"{\"text\":\"b\"}\n"];
    let expected = [json!({"text": "a"}), json!({"text": "b"})];
    let members = [gz(a), gz(b)].concat();
    let frames = [zstd::encode_all(a, 1).unwrap(), zstd::encode_all(b, 1).unwrap()].concat();
    for (name, bytes) in [
        ("x.jsonl.gz", &members),
        ("x.jsonl", &members),
        ("x.jsonl.zst", &frames),
        ("x.json.gz", &frames),
    ] {
        assert_eq!(values(&rows_of(name, bytes, LONGEST_ROW)), expected, "{name}");
    }
}

#[test]
fn a_truncated_compressed_file_gives_its_rows_and_an_error() {
    let text: String = (0..5000).map(|n| format!("{{\"text\":\"{n}\"}}\n")).collect();
    for bytes in [gz(text.as_bytes()), zstd::encode_all(text.as_bytes(), 1).unwrap()] {
        let found = rows_of("x.jsonl", &bytes[..bytes.len() - 9], LONGEST_ROW);
        let (last, before) = found.split_last().unwrap();
        assert!(matches!(&last.as_ref().unwrap_err().cause, RowError::Broken(_)), "{last:?}");
        assert!(before.iter().all(Result::is_ok));
        // Skipping invalid rows must not hide that half of a file is missing.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        let mut rejects = Rejects::new(OnError::Skip { limit: None }, None).unwrap();
        let error = read_all_rows(&[path], &ReadOptions::default(), &mut rejects).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}

#[test]
fn a_row_that_is_too_long_is_skipped_in_every_file_type() {
    let long = "x".repeat(3000);
    for (name, text) in [
        ("x.jsonl", format!("{{\"text\":\"{long}\"}}\n{{\"text\":\"b\"}}\n")),
        ("x.json", format!("[{{\"text\":\"{long}\"}},\n{{\"text\":\"b\"}}]")),
    ] {
        let found = rows_of(name, text.as_bytes(), 1000);
        assert!(matches!(found[0].as_ref().unwrap_err().cause, RowError::TooLong { limit: 1000 }));
        assert_eq!(found[1].as_ref().unwrap().value, json!({"text": "b"}), "{name}");
    }
    // An unclosed quote includes the rest of the file.
    let text = format!("text\n\"open\n{}", "line\n".repeat(100_000));
    let found = rows_of("x.csv", text.as_bytes(), 10_000);
    assert_eq!(found.len(), 1);
    assert!(found[0].as_ref().unwrap_err().to_string().contains("longer than 10000 bytes"));
    let found = rows_of("x.txt", text.as_bytes(), 1000);
    assert!(found[0].as_ref().unwrap_err().to_string().contains("text_by"));
}

#[test]
fn an_invalid_element_of_a_list_affects_no_other() {
    let text =
        b"[ {\"text\": \"a\"},\n  {\"text\": oops}, 7,\n{\"text\":\"]}\\\"\"}\n, \"\xff\"]\n";
    let found = rows_of("x.json", text, LONGEST_ROW);
    let shown: Vec<String> = found
        .iter()
        .map(|row| match row {
            Ok(row) => format!("{}", row.source.line),
            Err(fault) => fault.to_string(),
        })
        .collect();
    assert_eq!(shown.len(), 5, "{shown:?}");
    assert_eq!((shown[0].as_str(), shown[2].as_str(), shown[3].as_str()), ("1", "2", "3"));
    assert!(shown[1].contains("x.json:2: column 12: invalid JSON"), "{}", shown[1]);
    assert!(shown[4].contains("x.json:4: invalid UTF-8: byte 0xff"), "{}", shown[4]);
    let error = rows_of("x.json", b"[1 2]", LONGEST_ROW).pop().unwrap().unwrap_err().to_string();
    assert!(error.contains("expected `,` or `]`"), "{error}");
}

#[test]
fn invalid_rows_of_a_table_are_reported_by_line_and_the_rest_is_read() {
    let text = b"\xef\xbb\xbfquestion,answer\na,b\nonly one\n\"x\ny\",\xff\nc,d\n";
    let found = rows_of("x.csv", text, LONGEST_ROW);
    let lines: Vec<usize> = found
        .iter()
        .map(|row| match row {
            Ok(row) => row.source.line,
            Err(fault) => fault.source_row.line,
        })
        .collect();
    assert_eq!(lines, [2, 3, 4, 6]);
    assert_eq!(found[3].as_ref().unwrap().value, json!({"question": "c", "answer": "d"}));
    let twice = rows_of("x.csv", b"a,a\n1,2\n", LONGEST_ROW);
    assert!(twice[0].as_ref().unwrap_err().to_string().contains("`a` twice"));
    let tabs = rows_of("x.tsv", b"text\tn\na,b\t1\n", LONGEST_ROW);
    assert_eq!(values(&tabs), [json!({"text": "a,b", "n": "1"})]);
}

#[test]
fn plain_text_by_file_paragraph_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.txt");
    fs::write(&path, "\n one\r\ntwo\n \n\n\nthree").unwrap();
    let read = |by| {
        let records = Records::open(&path, by).unwrap();
        records
            .map(|row| row.unwrap())
            .map(|row| (row.source.line, row.value["text"].as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(read(TextBy::File), [(1, "\n one\r\ntwo\n \n\n\nthree".to_owned())]);
    assert_eq!(read(TextBy::Paragraph), [(2, " one\r\ntwo".to_owned()), (7, "three".to_owned())]);
    let lines = [(2, " one"), (3, "two"), (7, "three")];
    assert_eq!(read(TextBy::Line), lines.map(|(n, text)| (n, text.to_owned())));
    assert!(
        crate::choice::parse::<TextBy>("data.text_by", "lines")
            .unwrap_err()
            .to_string()
            .contains("Did you mean `line`?")
    );
}

#[test]
fn configured_field_names_are_mapped() {
    let map = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(known, name)| ((*known).to_owned(), (*name).to_owned()));
        FieldMap::new(pairs).map(RowShape::Fields)
    };
    let shape = map(&[("prompt", "q.text"), ("completion", "label")]).unwrap();
    // `messages` isn't configured, so it is ignored.
    let value = json!({"messages": [], "q": {"text": "p"}, "label": 3});
    let row = Row::Completion { prompt: "p".into(), completion: "3".into() };
    assert_eq!(shape.row(&value).unwrap(), (row, Format::Prompt));
    let error = shape.row(&json!({"q": {}, "label": "x"})).unwrap_err().to_string();
    assert!(error.contains("`q.text`") && error.contains("data.fields"), "{error}");

    let shape = map(&[("messages", "dialog"), ("role", "who"), ("content", "says")]).unwrap();
    let value = json!({"dialog": [{"who": "human", "says": "q"}, {"who": "gpt", "says": "a"}]});
    let Row::Chat { messages, .. } = shape.row(&value).unwrap().0 else { panic!() };
    let pairs: Vec<[&str; 2]> = messages.iter().map(|m| [&*m.role, &*m.content]).collect();
    assert_eq!(pairs, [["user", "q"], ["assistant", "a"]]);
    let error = map(&[("promt", "q")]).unwrap_err().to_string();
    assert!(error.contains("Did you mean `prompt`?"), "{error}");
}

#[test]
fn templates_fill_placeholders_or_report_missing_fields() {
    let parse = |text| RowTemplate::parse(text, "data.prompt_template");
    let template = parse("{{Q}}: {q.0.text}\n{hint?}{n}").unwrap();
    let value = json!({"q": [{"text": "why"}], "hint": null, "n": 4.5});
    assert_eq!(template.fill(&value).unwrap(), "{Q}: why\n4.5");
    let error = template.fill(&json!({"q": [{"text": ["x"]}]})).unwrap_err().to_string();
    assert!(error.contains("{q.0.text}") && error.contains("a list"), "{error}");
    for wrong in ["{", "}", "a {} b", "{a{b}", "no placeholder", "{a}}"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(RowTemplates::new(None, Some("{a}"), None, None).is_err());
    let both = RowTemplates::new(Some("{s}"), Some("{a}"), Some("{b}"), None).unwrap().unwrap();
    let row = RowShape::Templates(both).row(&json!({"s": "x", "a": "y", "b": "z"})).unwrap().0;
    let Row::Chat { messages, .. } = row else { panic!() };
    assert_eq!(messages.len(), 3);
}

#[test]
fn folders_and_patterns_expand_to_data_files_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    for name in ["b.jsonl", "a.csv.gz", "README", ".hidden.jsonl", "sub/c.txt", "sub/d.bin"] {
        fs::write(at(name), "x").unwrap();
    }
    let all = [at("a.csv.gz"), at("b.jsonl"), at("sub/c.txt")];
    assert_eq!(data_files(&[dir.path()]).unwrap(), all);
    assert_eq!(data_files(&[at("*.jsonl"), dir.path().to_owned()]).unwrap()[0], at("b.jsonl"));
    assert_eq!(data_files(&[at("**/*.txt")]).unwrap(), [at("sub/c.txt")]);
    // A missing file is reported when it is opened.
    assert_eq!(data_files(&[at("none.jsonl")]).unwrap(), [at("none.jsonl")]);
    assert!(data_files(&[at("*.parquet")]).unwrap_err().to_string().contains("no file matches"));
    fs::remove_file(at("sub/c.txt")).unwrap();
    assert!(data_files(&[at("sub")]).unwrap_err().to_string().contains("1 files of other types"));
}

#[test]
fn skipped_rows_are_counted_limited_and_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(&path, "{\"text\":\"a\"}\n{\"txt\":1}\noops\n{\"text\":\"b\"}\n").unwrap();
    let to = dir.path().join("rejects.jsonl");
    let read = |limit| {
        let mut rejects = Rejects::new(OnError::Skip { limit }, Some(&to)).unwrap();
        let files = std::slice::from_ref(&path);
        let rows = read_all_rows(files, &ReadOptions::default(), &mut rejects)?;
        Ok::<_, DataError>((rows, rejects.finish()?))
    };
    let (rows, faults): (_, Faults) = read(Some(2)).unwrap();
    assert_eq!((rows.len(), faults.count()), (2, 2));
    let written = fs::read_to_string(&to).unwrap();
    let written: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&written[0]["row"], &written[1]["row"]), (&json!({"txt": 1}), &json!("oops")));
    assert_eq!(written[1]["line"], 3);
    fs::remove_file(&to).unwrap();
    let error = read(Some(1)).unwrap_err().to_string();
    assert!(error.contains("more than 1 invalid rows") && error.contains("x.jsonl:3"), "{error}");
    assert!(!to.exists(), "a failure leaves no file");
}

#[test]
fn parquet_has_the_same_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/rows.parquet");
    let found: Vec<_> = Records::open(&path, TextBy::File).unwrap().collect();
    let expected = [
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "n": 1}),
        json!({"messages": [{"role": "user", "content": "漢 \"x\"\n"}, {"role": "assistant", "content": ""}], "n": null}),
        json!({"messages": [{"role": "assistant", "content": "last"}], "n": 3}),
    ];
    assert_eq!(values(&found), expected);
    assert_eq!(found[2].as_ref().unwrap().source.line, 3);
}
