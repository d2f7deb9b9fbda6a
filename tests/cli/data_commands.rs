//! `emberlm data …` and the configuration of what is read.

use std::fs;

use serde_json::{Value, json};

use crate::support::{CONVERSATION, Place, stderr};

/// Distinct rows: a question, its answer, an author and a day.
fn rows(count: usize) -> String {
    let word = |n: usize| ["iron", "copper", "silver", "gold", "tin", "lead", "zinc"][n % 7];
    (0..count)
        .map(|n| {
            let row = json!({
                "q": format!("How many bars of {} lie in room {n}?", word(n)),
                "a": format!("In room {n} there are {} bars of {}, as Anna Miller told me.", n * 31 + 7, word(n)),
                "author": format!("author {}", n % 5),
                "day": format!("2024-01-{:02}", 1 + n % 28),
            });
            format!("{row}\n")
        })
        .collect()
}

const FIELDS: &str = "--field question=q --field answer=a";

fn lines(place: &Place, name: &str) -> Vec<Value> {
    place.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn check_prints_one_object_and_fails_on_findings() {
    let place = Place::new();
    let report = place.json("data check rows.jsonl --model model --json");
    assert_eq!((&report["rows"], &report["passed"]), (&json!(1), &json!(true)));
    assert_eq!(report["kinds"]["messages"]["rows"], 1);
    let preview = report["preview"][0].as_str().unwrap();
    assert!(preview.contains("⟦About 1200."), "{preview}");

    place.write("rows.jsonl", format!("{CONVERSATION}\n{CONVERSATION}\n{{oops\n"));
    let output = place.run("data check rows.jsonl --model model");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("failed on unreadable (1 rows)"), "{told}");
    assert!(told.contains("rows.jsonl:3: column 2: invalid JSON"), "{told}");
    place.succeed("data check rows.jsonl --model model --fail-on exact-duplicate=1");
    let output = place.run("data check rows.jsonl --model model --fail-on exact-duplicate");
    assert_eq!(output.status.code(), Some(1));
    let output = place.run("data check rows.jsonl --model model --fail-on nonsense");
    assert_eq!(output.status.code(), Some(2));
    let output = place.run("data check none/*.jsonl --model model");
    assert!(stderr(&output).contains("no file matches the pattern"), "{}", stderr(&output));
}

#[test]
fn clean_split_leak_and_mask_work_on_each_others_files() {
    let place = Place::new();
    place.write("all.jsonl", rows(60) + &rows(3) + "{broken\n");
    let clean = format!("data clean all.jsonl {FIELDS} --out clean/kept.jsonl --keep-near --json");
    let report = place.json(&clean);
    assert_eq!((&report["rows"], &report["kept"]), (&json!(64), &json!(60)));
    assert_eq!(place.read("clean/kept.jsonl"), rows(60));
    let rejects = lines(&place, "clean/kept.rejects.jsonl");
    assert_eq!(rejects.len(), 4);
    assert_eq!((&rejects[3]["rule"], &rejects[3]["line"]), (&json!("unreadable"), &json!(64)));
    let written: Value = serde_json::from_str(&place.read("clean/kept.report.json")).unwrap();
    assert_eq!(written["rejected"], 4);

    let kept = "clean/kept.jsonl";
    for (flags, held) in [("--eval 10% --seed 3", 6), ("--eval 12 --group author", 12)] {
        let report = place.json(&format!("data split {kept} {FIELDS} --out parts {flags} --json"));
        assert_eq!((&report["train"], &report["eval"]), (&json!(60 - held), &json!(held)));
        assert_eq!(report["leaks"]["eval"], held);
        assert_eq!(lines(&place, "parts/eval.jsonl").len(), held);
    }
    place.json(&format!(
        "data split {kept} {FIELDS} --out late --time day --from 2024-01-20 --json"
    ));
    assert!(
        lines(&place, "late/train.jsonl")
            .iter()
            .all(|row| row["day"].as_str() < Some("2024-01-20"))
    );

    let output =
        place.run(&format!("data leak --train all.jsonl --eval {kept} {FIELDS} --on-error skip"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    place.succeed(&format!("data leak --train {kept} --eval {kept} {FIELDS} --allow 60"));

    let report =
        place.json(&format!("data mask {kept} {FIELDS} --out facts.jsonl --kinds name --json"));
    assert_eq!((&report["questions"], &report["name"]), (&json!(60), &json!(60)));
    let facts = lines(&place, "facts.jsonl");
    assert_eq!(facts[0]["completion"], " Anna Miller");
    assert!(facts[0]["prompt"].as_str().unwrap().ends_with("bars of iron, as"));
}

#[test]
fn a_tokenizer_is_trained_and_checked_with() {
    let place = Place::new();
    place.write("all.jsonl", rows(60));
    let report = place.json(&format!(
        "data tokenizer all.jsonl {FIELDS} --out tok --vocab-size 320 --special <tool> --json"
    ));
    assert_eq!((&report["rows"], &report["vocab_size"]), (&json!(60), &json!(320)));
    let report = place.json(&format!("data check all.jsonl {FIELDS} --model tok --json --no-near"));
    assert_eq!((&report["examples"], &report["passed"]), (&json!(60), &json!(true)));
    assert!(place.read("tok/tokenizer.json").contains("<tool>"));
}

#[test]
fn a_run_reads_custom_fields_and_skips_invalid_rows() {
    let place = Place::new();
    fs::create_dir(place.path("data")).unwrap();
    place.write("data/a.jsonl", rows(4) + "{broken\n");
    place.write("data/b.csv", "q,a\nHow hot?,About 1200.\n");
    let config = |more: &str| {
        format!(
            "[model]\npath = 'model'\n[lora]\n[data]\ntrain = 'data'\n{more}\n[data.fields]\nquestion = 'q'\nanswer = 'a'\n"
        )
    };
    place.write("run.toml", config("on_error = 'skip'\nmax_errors = 1\nrejects = 'rejects.jsonl'"));
    let output = place.run("train run.toml --dry-run --backend flex");
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("skipped") && told.contains("a.jsonl:5: column 2"), "{told}");
    assert!(told.contains("5 examples"), "{told}");
    assert_eq!(lines(&place, "rejects.jsonl")[0]["row"], "{broken");

    place.write("run.toml", config("on_error = 'skip'\nmax_errors = 0"));
    let told = stderr(&place.run("train run.toml --dry-run --backend flex"));
    assert!(told.contains("more than 0 invalid rows"), "{told}");
    place.write("run.toml", config(""));
    let told = stderr(&place.run("train run.toml --dry-run --backend flex"));
    assert!(told.contains("a.jsonl:5: column 2: invalid JSON"), "{told}");
    place.write("run.toml", config("text_template = '{q}'"));
    let output = place.run("train run.toml --dry-run");
    assert!(stderr(&output).contains("data.text_template"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn mixing_draws_by_weight_and_refuses_to_write_over_its_sources() {
    let place = Place::new();
    let rows = |name: &str, n: usize| {
        (0..n).map(|i| format!("{{\"text\":\"{name} {i}\"}}\n")).collect::<String>()
    };
    place.write("a.jsonl", rows("a", 100));
    place.write("b.jsonl", rows("b", 10));
    let mix = "data mix a.jsonl=3 b.jsonl --rows 40 --seed 1 --out m.jsonl --json";
    let report = place.json(mix);
    assert_eq!(report["rows"], 40);
    assert_eq!(
        (&report["sources"][0]["drawn"], &report["sources"][1]["drawn"]),
        (&30.into(), &10.into())
    );
    let text = place.read("m.jsonl");
    let of_b = text
        .lines()
        .filter(|line| line.contains("\"b "))
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!((text.lines().count(), of_b.len()), (40, 10), "each row of b once");
    place.json(mix);
    assert_eq!(place.read("m.jsonl"), text, "the same seed, the same file");
    for (wrong, code) in [
        ("a.jsonl --out a.jsonl", 2),
        ("a.jsonl=0 --out m.jsonl", 2),
        ("none.jsonl --out m.jsonl", 1),
    ] {
        assert_eq!(place.run(&format!("data mix {wrong}")).status.code(), Some(code), "{wrong}");
    }
    assert_eq!(place.read("a.jsonl"), rows("a", 100));
}

#[test]
fn only_token_files_are_listed_and_removed() {
    let place = Place::new();
    let train = "train --quiet --model model --data rows.jsonl --backend flex --dry-run \
                 --set data.cache_dir=cache";
    place.succeed(train);
    place.succeed(&format!("{train} --set data.max_length=100"));
    place.write("cache/notes.txt", "mine");
    let listed = place.json("data cache cache --json");
    let files = listed["files"].as_array().unwrap();
    assert_eq!((files.len(), &listed["removed"]), (2, &Value::Bool(false)));
    for file in files {
        assert!(file["data_files"][0].as_str().unwrap().ends_with("rows.jsonl"));
        assert_eq!(file["examples"], 1);
    }
    assert!(place.succeed("data cache cache").contains("2 token files"));
    // What was used today is not old.
    let old = place.json("data cache cache --clear --older-than 1 --json");
    assert_eq!(old["files"], Value::Array(Vec::new()));
    assert!(place.succeed("data cache cache --clear").contains("2 token files"));
    let left: Vec<_> = std::fs::read_dir(place.path("cache")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(place.read("cache/notes.txt"), "mine");
    let output = place.run("data cache nowhere");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn rows_refused_by_the_template_are_skipped_and_reported_again_from_the_cache() {
    let place = Place::new();
    let question = r#"{"messages":[{"role":"user","content":"Only a question"}]}"#;
    place.write("rows.jsonl", format!("{question}\n{CONVERSATION}\nno row\n"));
    let train = "train --model model --data rows.jsonl --backend flex --dry-run";
    let refused = place.run(train);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("2 invalid rows"), "{}", stderr(&refused));
    let skip = format!(
        "{train} --set data.on_error=skip --set data.rejects=rejects.jsonl --set data.cache_dir=cache"
    );
    let mut told = Vec::new();
    for _ in 0..2 {
        let output = place.run(&skip);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("rows.jsonl:1"), "{}", stderr(&output));
        told.push(place.read("rejects.jsonl"));
    }
    assert_eq!(told[0].lines().count(), 2);
    assert_eq!(told[0], told[1]);
}
