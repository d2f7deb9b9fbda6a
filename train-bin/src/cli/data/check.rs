//! `emberlm data check`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueHint};
use emberlm_data::{
    AuditOptions, AuditReport, Example, ExampleOptions, FailOn, TemplateChoice, TrainOn, audit,
    preview,
};
use serde_json::json;

use super::rows_args::{RowsArgs, percent, tokenizer_of};
use crate::cli::color;
use crate::cli::values::share;

/// Check data sets: what would be trained on, and what is wrong with it
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data check 'data/*.jsonl' --model models/llama --fail-on default,truncated=5%

Exit code: 1 if there is a finding of --fail-on, else 0. By default one row fails for unreadable, unusable, all-masked,
without-end-mark and doubled-bos; `--fail-on none` never fails.")]
pub(crate) struct CheckArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// Model whose tokenizer and chat template are used: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// Chat template: the tokenizer's, or none
    #[arg(long, value_enum, default_value_t)]
    pub(crate) template: TemplateChoice,
    /// Assistant turns to train on
    #[arg(long, value_name = "TURNS", value_enum, default_value_t)]
    pub(crate) train_on: TrainOn,
    /// Maximum tokens of an example
    #[arg(long, value_name = "N", default_value = "2048")]
    pub(crate) max_length: NonZeroUsize,
    /// Fewer supervised tokens count as too short
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) min_supervised: usize,
    /// Similarity from which rows are near-duplicates
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub(crate) near: f64,
    /// Skip the search for near-duplicates
    #[arg(long, conflicts_with = "near")]
    pub(crate) no_near: bool,
    /// Examples to print, with the supervised part marked
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) show: usize,
    /// Findings that fail the check, comma-separated: `truncated` (one row), `html=10` (more than ten rows),
    /// `near-duplicate=5%` (more than 5 %); `default`: the default ones, `none`: never fail
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "default")]
    pub(crate) fail_on: Vec<FailOnArg>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// An element of `--fail-on`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FailOnArg {
    /// The default findings.
    Default,
    /// No finding.
    None,
    /// A finding and its limit.
    One(FailOn),
}

impl FromStr for FailOnArg {
    type Err = emberlm_data::DataError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "default" => Self::Default,
            "none" => Self::None,
            text => Self::One(text.parse()?),
        })
    }
}

impl CheckArgs {
    /// The limits; a later one replaces an earlier one of the same finding.
    pub(crate) fn limits(&self) -> Vec<FailOn> {
        let mut limits: Vec<FailOn> = Vec::new();
        for argument in &self.fail_on {
            let more = match argument {
                FailOnArg::Default => FailOn::DEFAULT.to_vec(),
                FailOnArg::None => Vec::new(),
                FailOnArg::One(limit) => vec![*limit],
            };
            limits.retain(|known| more.iter().all(|new| new.finding != known.finding));
            limits.extend(more);
        }
        limits
    }
}

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (files, read) = args.rows.read()?;
    let tokenizer = tokenizer_of(&args.model)?;
    let options = AuditOptions {
        example: ExampleOptions {
            max_length: Some(args.max_length),
            template: args.template,
            train_on: args.train_on,
            ..ExampleOptions::default()
        },
        min_supervised: args.min_supervised,
        near: Some(args.near).filter(|_| !args.no_near),
        show: args.show,
        ..AuditOptions::default()
    };
    let report = audit(&files, &read, &tokenizer, &options)?;
    let limits = args.limits();
    let failed = report.failures(&limits);
    if args.json {
        let shown: Vec<String> =
            report.shown.iter().map(|example| preview(example, &tokenizer, false)).collect();
        let mut object = serde_json::to_value(&report)?;
        object["files"] = json!(files);
        object["preview"] = json!(shown);
        object["failed_on"] = json!(failed.iter().map(ToString::to_string).collect::<Vec<_>>());
        object["passed"] = json!(failed.is_empty());
        println!("{object}");
    } else {
        let ansi = color::on_stdout();
        print(&report, ansi, &|example| preview(example, &tokenizer, ansi));
        print_verdict(&report, &failed);
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &AuditReport, ansi: bool, preview: &dyn Fn(&Example) -> String) {
    let mark = if ansi { "green text" } else { "⟦…⟧" };
    for example in &report.shown {
        println!("{}; {mark} is trained on:", example.source);
        for line in preview(example).lines() {
            println!("  | {line}");
        }
        println!();
    }
    println!(
        "{} rows, {} examples, {} tokens, {} trained on ({})",
        report.rows,
        report.examples,
        report.tokens,
        report.supervised_tokens,
        percent(report.supervised_share)
    );
    println!("\n{:<12} {:>10} {:>12} {:>12}", "kind", "rows", "tokens", "supervised");
    for (kind, of) in &report.kinds {
        println!("{kind:<12} {:>10} {:>12} {:>12}", of.rows, of.tokens, of.supervised_tokens);
    }
    let lengths = &report.lengths;
    println!(
        "\ntokens per example: min {}, mean {:.1}, median {}, 90 % {}, 95 % {}, 99 % {}, max {}",
        lengths.min, lengths.mean, lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max
    );
    let most = lengths.histogram.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    for bin in &lengths.histogram {
        let bar = "█".repeat((40 * bin.count).div_ceil(most) as usize);
        println!("{:>8} – {:<8} {:>10} {bar}", bin.from, bin.to, bin.count);
    }
    println!("\n{:<18} {:>10} {:>9}  first", "finding", "rows", "share");
    for count in &report.findings {
        let first = count.first.first().map_or("", String::as_str);
        println!("{:<18} {:>10} {:>9}  {first}", count.finding, count.rows, percent(count.share));
    }
    for fault in report.faults.iter().take(5) {
        println!("  {fault}");
    }
}

fn print_verdict(report: &AuditReport, failed: &[&FailOn]) {
    if failed.is_empty() {
        println!("\npassed");
        return;
    }
    let limits: Vec<String> = failed
        .iter()
        .map(|limit| format!("{limit} ({} rows)", report.count(limit.finding)))
        .collect();
    println!("\nfailed on {}", limits.join(", "));
}
