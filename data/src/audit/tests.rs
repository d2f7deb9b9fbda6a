use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use super::*;
use crate::example::ExampleOptions;
use crate::tokenizer::TextTokenizer;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::from_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets")).unwrap()
}

fn audited(lines: &[&str], tokenizer: &TextTokenizer, options: &AuditOptions) -> AuditReport {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    audit(&[path], &ReadOptions::default(), tokenizer, options).unwrap()
}

/// The name of each finding that some row has, and the lines of these rows.
fn found(report: &AuditReport) -> Vec<(String, Vec<usize>)> {
    let line = |place: &String| {
        place.split(' ').next().unwrap().rsplit(':').next().unwrap().parse::<usize>().unwrap()
    };
    let some = report.findings.iter().filter(|count| count.rows > 0);
    some.map(|count| {
        assert_eq!(count.rows as usize, count.first.len());
        (count.finding.to_string(), count.first.iter().map(line).collect())
    })
    .collect()
}

fn on_line(name: &str, line: usize) -> (String, Vec<usize>) {
    (name.to_owned(), vec![line])
}

#[test]
fn each_finding_is_reported_for_its_line_only() {
    let many = "This sentence is there to make the answer longer than the limit. ".repeat(12);
    let long = format!(r#"{{"question": "Tell me all.", "answer": "{many}"}}"#);
    let lines = [
        r#"{"question": "What is it?", "answer": "It is a stone that lies in the garden behind the house of my aunt."}"#,
        r#"{"question": "#,
        r#"{"messages": [{"role": "user", "content": "Nobody answers me."}]}"#,
        &long,
        r#"{"question": "Say the token.", "answer": "It is <|im_end|> here."}"#,
        r#"{"question": "Say nothing.", "answer": " "}"#,
        r#"{"question": "What is it?", "answer": "It is a stone that lies in the garden behind the house of my aunt."}"#,
        r#"{"question": "What is it?", "answer": "It is a stone that lies in the garden behind the house of my uncle."}"#,
        r#"{"question": "Explain it.", "answer": "First you go. Then you have to turn around and look at the"}"#,
        r#"{"question": "Markup?", "answer": "<p>Yes, that is it.</p>"}"#,
        r#"{"question": "Where?", "answer": "http://a.example/b and http://c.example/d."}"#,
        r#"{"question": "Caf\u00c3\u00a9?", "answer": "They serve coffee there."}"#,
    ];
    let example =
        ExampleOptions { max_length: NonZeroUsize::new(120), ..ExampleOptions::default() };
    // In short texts one changed word has a large effect.
    let options = AuditOptions { example, near: Some(0.7), show: 2, ..AuditOptions::default() };
    let report = audited(&lines, &tokenizer(), &options);
    let expected = [
        on_line("unreadable", 2),
        on_line("unusable", 3),
        on_line("truncated", 4),
        on_line("special-tokens", 5),
        on_line("empty", 6),
        on_line("exact-duplicate", 7),
        on_line("near-duplicate", 8),
        on_line("cut-off", 9),
        on_line("html", 10),
        on_line("urls", 11),
        on_line("mojibake", 12),
    ];
    let mut of = found(&report);
    of.retain(|(name, _)| name != "too-short");
    assert_eq!(of, expected);
    assert_eq!((report.rows, report.examples, report.shown.len()), (12, 10, 2));
    assert_eq!((report.kinds["question"].rows, report.kinds.len()), (10, 1));
    assert_eq!(report.faults.len(), 2);
    assert!(report.lengths.max > 120 && report.tokens == report.kinds["question"].tokens);
    let failed: Vec<String> =
        report.failures(&FailOn::DEFAULT).iter().map(ToString::to_string).collect();
    assert_eq!(failed, ["unreadable", "unusable"]);
    let json = serde_json::to_value(&report).unwrap();
    for (at, count) in report.findings.iter().enumerate() {
        assert_eq!(json["findings"][at]["finding"], count.finding.to_string());
    }
}

#[test]
fn findings_in_tokens() {
    // A template whose end of turn doesn't stop generation, and a text that starts with beginning-of-text tokens.
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";
    let plain = tokenizer().with_chat_template(template).unwrap();
    let bos = plain.id_to_token(plain.bos_id().unwrap_or_default()).unwrap();
    let text = format!(r#"{{"text": "{bos}{bos}once more there was a house."}}"#);
    let lines = [r#"{"question": "Why?", "answer": "Because it is so."}"#, &text];
    let report = audited(&lines, &plain, &AuditOptions::default());
    let of = found(&report);
    assert!(of.contains(&on_line("without-end-mark", 1)), "{of:?}");
    assert_eq!(of.contains(&on_line("doubled-bos", 2)), plain.bos_id().is_some(), "{of:?}");
    // Truncated before the answer: nothing is left to train on.
    let example = ExampleOptions { max_length: NonZeroUsize::new(3), ..ExampleOptions::default() };
    let options = AuditOptions { example, ..AuditOptions::default() };
    let report = audited(&lines[..1], &plain, &options);
    let of = found(&report);
    assert!(
        of.contains(&on_line("all-masked", 1)) && of.contains(&on_line("truncated", 1)),
        "{of:?}"
    );
    assert!(report.lengths.max > 3 && report.tokens == 3);
}

#[test]
fn no_rows_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(&path, "\n").unwrap();
    let result = audit(&[path], &ReadOptions::default(), &tokenizer(), &AuditOptions::default());
    assert!(result.unwrap_err().to_string().contains("no rows"));
}
