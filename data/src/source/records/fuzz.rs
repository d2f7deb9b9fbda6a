//! The readers with random bytes: they don't panic, they terminate, and no row is lost silently. `PROPTEST_CASES` sets the
//! number of inputs.

use std::io::Cursor;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMIT: usize = 64;

fn read(kind: Kind, bytes: &[u8], limit: usize) -> Vec<Result<Record, Fault>> {
    let Ok(input) = open::decompress(Cursor::new(bytes.to_vec())) else { return Vec::new() };
    let reader = Reader::of(kind, input, Path::new("x").into(), TextBy::Paragraph, limit);
    Records { reader, ended: false }.collect()
}

fn values(found: &[Result<Record, Fault>]) -> Vec<Value> {
    found.iter().filter_map(|row| row.as_ref().ok().map(|row| row.value.clone())).collect()
}

/// Pieces of valid and invalid files in random order.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces: [&[u8]; 30] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"\\",
        b",",
        b":",
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b"a",
        b"1",
        b"-",
        b"null",
        b"true",
        b"{\"text\":\"a\"}",
        b"{\"text\":1}",
        b"text",
        b"question,answer\n",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x1f\x8b\x08\0",
        b"\x28\xb5\x2f\xfd",
        "漢".as_bytes(),
        b"\0",
        b"\"a\nb\"",
        b"\\u12",
        b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ];
    let piece = prop_oneof![
        8 => proptest::sample::select(pieces.map(<[u8]>::to_vec).to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::JsonLines),
        Just(Kind::Json),
        Just(Kind::Csv { delimiter: b',' }),
        Just(Kind::Text),
    ]
}

/// Strings that are difficult to read: quotes, line breaks, braces, other scripts.
fn texts() -> impl Strategy<Value = Vec<(String, String)>> {
    let text = "[ a-z\"\\\\{}\\[\\],:\n\r\t\u{2028}é漢😀]{0,12}";
    proptest::collection::vec((text, text), 1..8)
}

proptest! {
    #[test]
    fn random_bytes_give_rows_or_errors(kind in kinds(), bytes in bytes()) {
        let found = read(kind, &bytes, LIMIT);
        prop_assert!(found.len() <= bytes.len() + 1);
        for (at, row) in found.iter().enumerate() {
            match row {
                Ok(row) => {
                    // The record may be an invalid row, but must not cause a panic.
                    let _ = row.row(&RowShape::default()).map_err(|fault| fault.to_string());
                    prop_assert!(row.source.line >= 1);
                }
                Err(fault) => {
                    prop_assert!(fault.to_string().starts_with("x:"), "{}", fault);
                    prop_assert!(!fault.ends_file() || at + 1 == found.len());
                }
            }
        }
    }

    #[test]
    fn every_line_is_a_row_or_an_error(lines in proptest::collection::vec(bytes(), 0..6)) {
        let lines: Vec<Vec<u8>> = lines
            .into_iter()
            .map(|line| line.into_iter().filter(|byte| *byte != b'\n').collect())
            .collect();
        let mut text = lines.join(&b'\n');
        // So that the text can't start with a byte order mark or the magic bytes of a compressed file.
        text.insert(0, b'\n');
        let blank = |line: &&Vec<u8>| {
            std::str::from_utf8(line).is_ok_and(|line| line.trim().is_empty())
        };
        let expected = lines.iter().filter(|line| !blank(line)).count();
        prop_assert_eq!(read(Kind::JsonLines, &text, LIMIT).len(), expected);
    }

    #[test]
    fn a_broken_row_affects_no_other_row(
        rows in proptest::collection::vec("[a-z]{0,9}", 1..12),
        broken in any::<prop::sample::Index>(),
        junk in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let broken = broken.index(rows.len());
        let junk: Vec<u8> = junk.into_iter().filter(|byte| !b"\n[]{}\"\\,".contains(byte)).collect();
        let object = |n: usize| match n {
            n if n == broken => [b"{\"text\": !", &junk[..], b"}"].concat(),
            n => json!({"text": rows[n]}).to_string().into_bytes(),
        };
        let objects: Vec<Vec<u8>> = (0..rows.len()).map(object).collect();
        let others: Vec<Value> = (0..rows.len())
            .filter(|n| *n != broken)
            .map(|n| json!({"text": rows[n]}))
            .collect();
        let list = [b"[", &objects.join(&b",\n"[..])[..], b"]"].concat();
        for (kind, bytes) in [(Kind::JsonLines, objects.join(&b'\n')), (Kind::Json, list)] {
            let found = read(kind, &bytes, LONGEST_ROW);
            prop_assert_eq!(values(&found), others.clone());
            prop_assert_eq!(found.len(), rows.len());
            let fault = found[broken].as_ref().unwrap_err();
            prop_assert_eq!(fault.source_row.line, broken + 1);
        }
    }

    #[test]
    fn every_format_gives_the_same_rows(rows in texts()) {
        let objects: Vec<Value> = rows.iter().map(|(q, a)| json!({"q": q, "a": a})).collect();
        let lines: String = objects.iter().map(|row| format!("{row}\n")).collect();
        let list = serde_json::to_string_pretty(&objects).unwrap();
        let mut table = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(vec![]);
        table.write_record(["q", "a"]).unwrap();
        for (q, a) in &rows {
            table.write_record([q, a]).unwrap();
        }
        let table = table.into_inner().unwrap();
        let comma = Kind::Csv { delimiter: b',' };
        for (kind, bytes) in [
            (Kind::JsonLines, lines.as_bytes()),
            (Kind::Json, list.as_bytes()),
            (comma, &table),
            (comma, &zstd::encode_all(&table[..], 1).unwrap()),
        ] {
            prop_assert_eq!(&values(&read(kind, bytes, LONGEST_ROW)), &objects, "{:?}", kind);
        }
    }
}

/// A file with changed bytes is rejected, or read as far as possible.
#[test]
fn damaged_parquet_files_do_not_panic() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/rows.parquet");
    let whole = std::fs::read(fixture).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("x.parquet");
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut faults = 0;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(3) {
            bytes[random(whole.len())] = random(256) as u8;
        }
        bytes.truncate(whole.len() - random(2) * random(whole.len()));
        std::fs::write(&path, &bytes).unwrap();
        faults += match Records::open(&path, TextBy::File) {
            Err(_) => 1,
            Ok(records) => records.take(100).filter(Result::is_err).count(),
        };
    }
    assert!(faults > 50, "{faults}");
}
