//! `emberlm data leak`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueHint};
use emberlm_data::{LeakOptions, LeakReport, LineWriter, Part, data_files, leaks};
use serde_json::Value;

use super::rows_args::{FaultArgs, ReadingArgs, percent};
use crate::cli::values::share;

/// Find evaluation rows that (nearly) duplicate training rows
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data leak --train train.jsonl --eval eval.jsonl --out leaks.jsonl

Exit code: 1 if more than --allow rows leaked, else 0.")]
pub(crate) struct LeakArgs {
    /// Training data; repeatable
    #[arg(long, required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub(crate) train: Vec<PathBuf>,
    /// Evaluation data; repeatable
    #[arg(long, required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub(crate) eval: Vec<PathBuf>,
    /// Format of the rows.
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    /// Handling of invalid rows.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// Search for leaks.
    #[command(flatten)]
    pub(crate) leak: LeakSearchArgs,
    /// File for all leaked pairs: JSON Lines with `eval`, `train` and `cosine`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    /// Maximum number of leaked rows without failing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) allow: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Search for leaks.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct LeakSearchArgs {
    /// Cosine similarity of n-gram counts from which a row is a leak
    #[arg(long, value_name = "COSINE", default_value_t = 0.8, value_parser = share)]
    pub(crate) threshold: f64,
    /// Words per n-gram
    #[arg(long, value_name = "N", default_value = "3")]
    pub(crate) ngram: NonZeroUsize,
    /// Part of a row to compare
    #[arg(long, value_name = "PART", default_value = "row", value_enum)]
    pub(crate) by: Part,
}

pub(super) fn run(args: &LeakArgs) -> Result<ExitCode> {
    let [train, eval] = [data_files(&args.train)?, data_files(&args.eval)?];
    let read = args.reading.options()?;
    let rejects = args.faults.rejects(&args.reading)?;
    let report = leaks(&train, &eval, &read, &args.leak.options(), rejects)?;
    if let Some(out) = &args.out {
        write_pairs(&report, out)?;
    }
    let passed = report.leaked <= args.allow;
    if args.json {
        let mut object = serde_json::to_value(&report)?;
        object["passed"] = passed.into();
        println!("{object}");
    } else {
        print(&report, args.leak.threshold, args.out.as_deref());
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl LeakSearchArgs {
    pub(super) fn options(&self) -> LeakOptions {
        LeakOptions { threshold: self.threshold, ngram: self.ngram.get(), part: self.by }
    }
}

pub(super) fn write_pairs(report: &LeakReport, out: &Path) -> Result<()> {
    let mut writer = LineWriter::create(out)?;
    for pair in &report.pairs {
        let pair: Value = serde_json::to_value(pair)?;
        writer.value(&pair)?;
    }
    Ok(writer.commit()?)
}

pub(super) fn print(report: &LeakReport, threshold: f64, out: Option<&Path>) {
    println!(
        "{} of {} evaluation rows ({}) match a training row with cosine {threshold} or more; mean of the highest cosines {:.3}",
        report.leaked,
        report.eval,
        percent(report.share),
        report.mean_nearest
    );
    for pair in report.pairs.iter().take(10) {
        println!("  {:.3}  {}  {}", pair.cosine, pair.eval, pair.train);
    }
    if report.pairs.len() > 10 {
        let rest = report.pairs.len() - 10;
        let place = out.map(|out: &Path| format!(", in {}", out.display()));
        println!("  and {rest} more{}", place.unwrap_or_default());
    }
}

/// The files of a split: training set, evaluation set, leaks.
pub(super) fn sides(out: &Path) -> [PathBuf; 3] {
    ["train.jsonl", "eval.jsonl", "leaks.jsonl"].map(|name| out.join(name))
}
