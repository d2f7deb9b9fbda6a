//! `emberlm data clean`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueHint};
use emberlm_data::{CleanOptions, Languages, Part, Rule, clean, pattern, write_whole};

use super::rows_args::{RowsArgs, percent, tokenizer_of};
use crate::cli::usage::WrongUsage;
use crate::cli::values::share;

/// Filter and deduplicate rows
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data clean raw.jsonl --strict --min-answer-chars 20 --out clean.jsonl

Always dropped: unreadable rows and rows with an empty message, prompt or completion, then exact and near-duplicates (the
first one is kept). The same input gives the same output.")]
pub(crate) struct CleanArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// File for the kept rows, JSON Lines (compressed if it ends in .gz or .zst)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// File for the dropped rows, with rule and reason; default: next to --out, named .rejects.jsonl
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rejects: Option<PathBuf>,
    /// File for the JSON report; default: next to --out, named .report.json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Minimum characters of a row
    #[arg(long, value_name = "N")]
    pub(crate) min_chars: Option<usize>,
    /// Maximum characters of a row
    #[arg(long, value_name = "N")]
    pub(crate) max_chars: Option<usize>,
    /// Minimum characters of the answer
    #[arg(long, value_name = "N")]
    pub(crate) min_answer_chars: Option<usize>,
    /// Minimum tokens of an example
    #[arg(long, value_name = "N", requires = "model")]
    pub(crate) min_tokens: Option<usize>,
    /// Maximum tokens of an example
    #[arg(long, value_name = "N", requires = "model")]
    pub(crate) max_tokens: Option<usize>,
    /// Model whose tokenizer counts tokens: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Drop rows that match this regular expression; repeatable
    #[arg(long, value_name = "REGEX")]
    pub(crate) drop: Vec<String>,
    /// Drop rows that do not match this regular expression; repeatable
    #[arg(long, value_name = "REGEX")]
    pub(crate) keep: Vec<String>,
    /// Drop rows with HTML outside of code
    #[arg(long)]
    pub(crate) html: bool,
    /// Drop rows that are mostly URLs
    #[arg(long)]
    pub(crate) urls: bool,
    /// Drop rows with encoding errors or non-text characters
    #[arg(long)]
    pub(crate) garbage: bool,
    /// Drop rows whose answer is cut off mid-sentence
    #[arg(long)]
    pub(crate) cut_off: bool,
    /// Drop rows with a larger share of repeated three-word sequences
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) repetition: Option<f64>,
    /// Drop rows in other languages; comma-separated ISO 639-3 (eng,deu) or common 639-1 codes
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub(crate) language: Vec<String>,
    /// Minimum share of a row's letters in these languages
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub(crate) language_share: f64,
    /// Same as --html --urls --garbage --cut-off --repetition 0.6
    #[arg(long)]
    pub(crate) strict: bool,
    /// Keep exact duplicates
    #[arg(long)]
    pub(crate) keep_exact: bool,
    /// Similarity from which rows are near-duplicates
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub(crate) near: f64,
    /// Keep near-duplicates
    #[arg(long)]
    pub(crate) keep_near: bool,
    /// Words per n-gram for comparing rows
    #[arg(long, value_name = "N", default_value = "3")]
    pub(crate) ngram: NonZeroUsize,
    /// Part of a row to compare
    #[arg(long, value_name = "PART", default_value = "row", value_enum)]
    pub(crate) by: Part,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &CleanArgs) -> Result<ExitCode> {
    let (files, read) = args.rows.read()?;
    let tokenizer = args.model.as_deref().map(tokenizer_of).transpose()?;
    let options = CleanOptions {
        rules: rules(args)?,
        exact: !args.keep_exact,
        near: Some(args.near).filter(|_| !args.keep_near),
        ngram: args.ngram.get(),
        part: args.by,
        ..CleanOptions::default()
    };
    let rejects = args.rejects.clone().unwrap_or_else(|| sibling(&args.out, "rejects.jsonl"));
    let report_file = args.report.clone().unwrap_or_else(|| sibling(&args.out, "report.json"));
    let outputs = [&args.out, &rejects, &report_file];
    if outputs.iter().any(|out| files.contains(out)) {
        anyhow::bail!(WrongUsage("--out, --rejects and --report must not be input files".into()));
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
        "{} of {} rows kept ({}), written to {}; dropped rows in {}",
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

/// `out` with its endings replaced.
fn sibling(out: &Path, end: &str) -> PathBuf {
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let ends = [".gz", ".zst", ".zstd", ".jsonl", ".json", ".ndjson"];
    let stem = ends.iter().fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    out.with_file_name(format!("{stem}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_and_report_are_next_to_the_output() {
        let sibling = |out: &str| sibling(Path::new(out), "rejects.jsonl");
        assert_eq!(sibling("a/kept.jsonl.gz"), Path::new("a/kept.rejects.jsonl"));
        assert_eq!(sibling("kept"), Path::new("kept.rejects.jsonl"));
    }
}
