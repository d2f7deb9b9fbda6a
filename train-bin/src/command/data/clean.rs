//! `emberlm data clean`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use emberlm::cli::data::CleanArgs;
use emberlm_data::{CleanOptions, Languages, Rule, clean, pattern, write_whole};

use super::{percent, rows, tokenizer_of};
use crate::command::WrongUsage;

pub(super) fn run(args: &CleanArgs) -> Result<ExitCode> {
    let (files, read) = rows(&args.rows)?;
    let tokenizer = args.model.as_deref().map(tokenizer_of).transpose()?;
    let options = CleanOptions {
        rules: rules(args)?,
        exact: !args.keep_exact,
        near: Some(args.near).filter(|_| !args.keep_near),
        ngram: args.ngram.get(),
        part: args.by,
        ..CleanOptions::default()
    };
    let rejects = args.rejects.clone().unwrap_or_else(|| beside(&args.out, "rejects.jsonl"));
    let report_file = args.report.clone().unwrap_or_else(|| beside(&args.out, "report.json"));
    let outputs = [&args.out, &rejects, &report_file];
    if outputs.iter().any(|out| files.contains(out)) {
        anyhow::bail!(WrongUsage(
            "--out, --rejects and --report must not be files that are read".into()
        ));
    }
    let report = clean(&files, &read, tokenizer.as_ref(), &options, &args.out, &rejects)?;
    let mut object = serde_json::to_value(&report)?;
    object["files"] = serde_json::json!(files);
    object["out"] = serde_json::json!(args.out);
    object["rejects"] = serde_json::json!(rejects);
    write_whole(&report_file, format!("{object:#}\n").as_bytes())?;
    if args.json {
        println!("{object}");
        return Ok(ExitCode::SUCCESS);
    }
    let share = |rows: u64| percent(rows as f64 / report.rows as f64);
    println!("{:<20} {:>10} {:>9}", "rule", "rows", "share");
    for count in &report.rules {
        println!("{:<20} {:>10} {:>9}", count.rule, count.rows, share(count.rows));
    }
    println!(
        "{} of {} rows kept ({}), in {}; the others in {}",
        report.kept,
        report.rows,
        share(report.kept),
        args.out.display(),
        rejects.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// In the order of the help.
fn rules(args: &CleanArgs) -> Result<Vec<Rule>> {
    let strict = args.strict;
    let mut rules = vec![Rule::Empty];
    rules.extend(args.min_chars.map(Rule::MinChars));
    rules.extend(args.max_chars.map(Rule::MaxChars));
    rules.extend(args.min_answer_chars.map(Rule::MinAnswerChars));
    rules.extend(args.min_tokens.map(Rule::MinTokens));
    rules.extend(args.max_tokens.map(Rule::MaxTokens));
    for text in &args.drop {
        rules.push(Rule::Drop(pattern(text)?));
    }
    for text in &args.keep {
        rules.push(Rule::Keep(pattern(text)?));
    }
    rules.extend((args.html || strict).then_some(Rule::Html));
    rules.extend((args.urls || strict).then_some(Rule::Urls));
    rules.extend((args.garbage || strict).then_some(Rule::Garbage));
    rules.extend((args.cut_off || strict).then_some(Rule::CutOff));
    rules.extend(args.repetition.or(strict.then_some(0.6)).map(Rule::Repetition));
    if !args.language.is_empty() {
        let languages = Languages::new(&args.language)?;
        rules.push(Rule::Language { languages, share: args.language_share });
    }
    Ok(rules)
}

/// `out` without its endings, with another.
fn beside(out: &Path, end: &str) -> PathBuf {
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let ends = [".gz", ".zst", ".zstd", ".jsonl", ".json", ".ndjson"];
    let stem = ends.iter().fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    out.with_file_name(format!("{stem}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_and_report_lie_beside_the_output() {
        let beside = |out: &str| beside(Path::new(out), "rejects.jsonl");
        assert_eq!(beside("a/kept.jsonl.gz"), Path::new("a/kept.rejects.jsonl"));
        assert_eq!(beside("kept"), Path::new("kept.rejects.jsonl"));
    }
}
