use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::source::OnError;

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(rows: &[Value]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(folder.at("in.jsonl"), text).unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn split(&self, by: &SplitBy, size: &EvalSize) -> Result<[Vec<Value>; 2], DataError> {
        let rejects = Rejects::new(OnError::Fail, None)?;
        let [train, eval] = ["train.jsonl", "eval.jsonl"].map(|name| self.at(name));
        let files = [self.at("in.jsonl")];
        let report = split(&files, &ReadOptions::default(), by, size, rejects, [&train, &eval])?;
        let sides = [train, eval].map(|path| {
            let text = fs::read_to_string(path).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        });
        assert_eq!([report.train, report.eval], sides.each_ref().map(|side| side.len() as u64));
        Ok(sides)
    }
}

fn numbered(count: usize, more: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(|n| json!({"text": format!("row {n}"), "n": n, "key": more(n)})).collect()
}

fn number(row: &Value) -> u64 {
    row["n"].as_u64().unwrap()
}

#[test]
fn a_random_split_has_the_requested_size_and_depends_on_the_seed() {
    let folder = Folder::with(&numbered(200, |_| Value::Null));
    let held = |seed, size| {
        let [_, eval] = folder.split(&SplitBy::Random { seed }, &size).unwrap();
        eval.iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(held(1, EvalSize::Share(0.15)).len(), 30);
    assert_eq!(held(1, EvalSize::Rows(30)), held(1, EvalSize::Share(0.15)));
    assert_ne!(held(1, EvalSize::Rows(30)), held(2, EvalSize::Rows(30)));
    for size in [EvalSize::Rows(0), EvalSize::Rows(200), EvalSize::From("2024-01-01".into())] {
        assert!(folder.split(&SplitBy::Random { seed: 0 }, &size).is_err(), "{size:?}");
    }
}

#[test]
fn a_split_by_time_holds_out_the_latest_rows() {
    let folder = Folder::with(&numbered(28, |n| json!(format!("2024-02-{:02}", 28 - n))));
    let by = SplitBy::Time { field: "key".into() };
    let [_, eval] = folder.split(&by, &EvalSize::Rows(3)).unwrap();
    assert_eq!(eval.iter().map(number).collect::<Vec<_>>(), [0, 1, 2]);
    let [train, _] = folder.split(&by, &EvalSize::From("2024-02-03".into())).unwrap();
    assert_eq!(train.iter().map(number).collect::<Vec<_>>(), [26, 27]);
    let by = SplitBy::Time { field: "text".into() };
    let error = folder.split(&by, &EvalSize::Rows(3)).unwrap_err().to_string();
    assert!(error.contains("28 invalid rows") && error.contains("a date"), "{error}");
}

#[test]
fn a_single_group_cannot_be_split() {
    let folder = Folder::with(&numbered(9, |_| json!("same")));
    let by = SplitBy::Group { field: "key".into(), seed: 0 };
    let error = folder.split(&by, &EvalSize::Rows(3)).unwrap_err().to_string();
    assert!(error.contains("more than one value"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_row_is_in_one_of_the_files_and_in_order(
        keys in proptest::collection::vec(0_u32..12, 2..60),
        seed in any::<u64>(),
        share in 0.05_f64..0.95,
    ) {
        let rows = numbered(keys.len(), |n| json!(keys[n]));
        let folder = Folder::with(&rows);
        let wanted = (share * keys.len() as f64).round() as usize;
        for by in [
            SplitBy::Random { seed },
            SplitBy::Time { field: "key".into() },
            SplitBy::Group { field: "key".into(), seed },
        ] {
            let Ok([train, eval]) = folder.split(&by, &EvalSize::Share(share)) else {
                // Fails only if one file would be empty.
                let distinct: BTreeSet<u32> = keys.iter().copied().collect();
                let least = keys.iter().copied().min();
                let of_least = keys.iter().filter(|key| Some(**key) == least).count();
                prop_assert!(
                    wanted == 0 || wanted >= keys.len() || distinct.len() < 2
                        || (matches!(by, SplitBy::Time { .. }) && keys.len() - wanted < of_least),
                    "{by:?}"
                );
                continue;
            };
            for side in [&train, &eval] {
                prop_assert!(side.windows(2).all(|pair| number(&pair[0]) < number(&pair[1])));
            }
            let both: BTreeMap<u64, &Value> =
                train.iter().chain(&eval).map(|row| (number(row), row)).collect();
            prop_assert_eq!(train.len() + eval.len(), rows.len());
            prop_assert!(both.values().copied().eq(&rows));
            let key = |row: &Value| row["key"].as_u64().unwrap();
            match by {
                SplitBy::Random { .. } => prop_assert_eq!(eval.len(), wanted),
                SplitBy::Time { .. } => {
                    prop_assert!(train.iter().map(key).max() < eval.iter().map(key).min());
                    prop_assert!(eval.len() >= wanted);
                }
                SplitBy::Group { .. } => {
                    let groups = [&train, &eval].map(|side| side.iter().map(key).collect::<BTreeSet<_>>());
                    prop_assert!(groups[0].is_disjoint(&groups[1]));
                }
            }
        }
    }
}

#[test]
fn leaks_are_pairs_with_the_nearest_training_row() {
    let text =
        |seed: usize| -> String { (0..40).map(|n| format!("w{} ", seed * 100 + n)).collect() };
    let rows =
        |texts: &[String]| texts.iter().map(|text| json!({"text": text})).collect::<Vec<_>>();
    let train = Folder::with(&rows(&(0..30).map(text).collect::<Vec<_>>()));
    let changed = text(7).replace("w739", "other");
    let half = format!("{} {}", &text(3)[..80], &text(50)[..100]);
    let eval = Folder::with(&rows(&[text(20), text(99), changed, half]));
    let options = LeakOptions::default();
    let rejects = Rejects::new(OnError::Fail, None).unwrap();
    let read = ReadOptions::default();
    let found =
        leaks(&[train.at("in.jsonl")], &[eval.at("in.jsonl")], &read, &options, rejects).unwrap();
    assert_eq!((found.train, found.eval, found.leaked, found.share), (30, 4, 2, 0.5));
    let line = |place: &str| place.rsplit(':').next().unwrap().parse::<usize>().unwrap();
    let pairs: Vec<_> =
        found.pairs.iter().map(|pair| (line(&pair.eval), line(&pair.train))).collect();
    assert_eq!(pairs, [(1, 21), (3, 8)]);
    assert!((found.pairs[0].cosine - 1.0).abs() < 1e-5);
    // 37 of 38 n-grams in common.
    assert!((found.pairs[1].cosine - 37.0 / 38.0).abs() < 1e-5, "{}", found.pairs[1].cosine);
}
