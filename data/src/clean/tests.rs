use std::fs;

use serde_json::Value;

use super::*;
use crate::text::language::Languages;

struct Cleaned {
    kept: Vec<String>,
    rejects: Vec<Value>,
    report: CleanReport,
}

fn cleaned(lines: &[String], options: &CleanOptions) -> Cleaned {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("in.jsonl"), lines.join("\n")).unwrap();
    let (out, rejects) = (at("out/kept.jsonl"), at("out/rejects.jsonl.gz"));
    let report =
        clean(&[at("in.jsonl")], &ReadOptions::default(), None, options, &out, &rejects).unwrap();
    let kept = fs::read_to_string(out).unwrap().lines().map(str::to_owned).collect();
    let rejects = crate::source::Records::open(&rejects, crate::source::TextBy::File).unwrap();
    Cleaned { kept, rejects: rejects.map(|row| row.unwrap().value).collect(), report }
}

fn row(question: &str, answer: &str) -> String {
    serde_json::json!({"question": question, "answer": answer, "id": 1.50}).to_string()
}

fn only(rule: Rule) -> CleanOptions {
    CleanOptions { rules: vec![rule], exact: false, near: None, ..CleanOptions::default() }
}

#[test]
fn each_rule_removes_only_rows_that_violate_it() {
    let fine = row("How are you today?", "I am fine, and I hope that you are as well.");
    let german =
        "Das Wetter war gestern sehr schön, und deshalb sind wir lange spazieren gegangen.";
    let cases = [
        (Rule::Empty, row("", "That is so, and it was always so.")),
        (Rule::MinChars(20), row("a", "b")),
        (Rule::MaxChars(200), row("a", &"long ".repeat(60))),
        (Rule::MinAnswerChars(10), row("What is it then, in all detail?", "no")),
        (Rule::Drop(pattern(r"(?i)as an ai\b").unwrap()), row("Who?", "As an AI I cannot say.")),
        (Rule::Keep(pattern("you").unwrap()), row("Who?", "It was him.")),
        (Rule::Html, row("Who?", "<p>He.</p>")),
        (Rule::Urls, row("Where?", "https://a.example https://b.example/c")),
        (Rule::Garbage, row("Where?", "In the CafÃ© of course.")),
        (Rule::CutOff, row("Why?", "It was late. So we went to the house of the")),
        (Rule::Repetition(0.5), row("Why?", &"I do not know. ".repeat(20))),
        (
            Rule::Language { languages: Languages::new(&["en"]).unwrap(), share: 0.5 },
            row(german, german),
        ),
    ];
    for (rule, bad) in cases {
        let name = rule.name();
        let found = cleaned(&[bad.clone(), fine.clone()], &only(rule));
        assert_eq!(found.kept, [fine.as_str()], "{name}");
        let reject = &found.rejects[0];
        assert_eq!((reject["rule"].as_str(), reject["line"].as_u64()), (Some(name), Some(1)));
        assert!(!reject["reason"].as_str().unwrap().is_empty());
        assert_eq!(reject["row"], serde_json::from_str::<Value>(&bad).unwrap());
    }
}

#[test]
fn duplicates_are_removed_and_the_first_is_kept_unchanged() {
    let long: Vec<String> = (0..60).map(|n| format!("word{n}")).collect();
    let long = long.join(" ");
    let lines = [
        row("One?", &long),
        // Different white space in the file, same content.
        row("One?", &long).replace("\":", "\" : "),
        row("One?", &format!("{long} more")),
        row("Two?", "Something else entirely is said here."),
        "{broken".to_owned(),
    ];
    let found = cleaned(&lines, &CleanOptions::default());
    assert_eq!(found.kept, [lines[0].as_str(), &lines[3]]);
    let rules: Vec<_> = found.rejects.iter().map(|r| r["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["exact-duplicate", "near-duplicate", "unreadable"]);
    assert!(found.rejects[1]["reason"].as_str().unwrap().contains("in.jsonl:1"));
    let counts: Vec<(&str, u64)> =
        found.report.rules.iter().map(|count| (count.rule.as_str(), count.rows)).collect();
    let expected = [("unreadable", 1), ("empty", 0), ("exact-duplicate", 1), ("near-duplicate", 1)];
    assert_eq!(counts, expected);
    assert_eq!((found.report.rows, found.report.kept, found.report.rejected), (5, 2, 3));
    // By the question alone, the first three are duplicates.
    let by_prompt = CleanOptions { part: Part::Prompt, near: None, ..CleanOptions::default() };
    assert_eq!(cleaned(&lines, &by_prompt).kept.len(), 2);
}

#[test]
fn several_patterns_are_numbered_and_rules_on_tokens_need_a_tokenizer() {
    let rules = ["x1", "x2"].map(|text| Rule::Drop(pattern(text).unwrap())).to_vec();
    let options = CleanOptions { rules, exact: false, near: None, ..CleanOptions::default() };
    let found = cleaned(&[row("a", "x2"), row("a", "x1"), row("a", "b")], &options);
    let rules: Vec<_> = found.rejects.iter().map(|r| r["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["drop 2", "drop 1"]);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.jsonl");
    fs::write(&path, row("a", "b")).unwrap();
    let [out, rejects] = ["a", "b"].map(|name| dir.path().join(name));
    let options = only(Rule::MaxTokens(3));
    let read = ReadOptions::default();
    let error = clean(std::slice::from_ref(&path), &read, None, &options, &out, &rejects);
    assert!(error.unwrap_err().to_string().contains("counts tokens"));
    assert!(!out.exists() && !rejects.exists(), "a failure leaves no file");
    assert!(pattern("(").is_err());
}
