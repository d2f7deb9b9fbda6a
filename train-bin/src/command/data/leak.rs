//! `emberlm data leak`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use emberlm::cli::data::{LeakArgs, LeakSearchArgs};
use emberlm_data::{LeakOptions, LeakReport, LineWriter, data_files, leaks};
use serde_json::Value;

use super::{options, percent, rejects};

pub(super) fn run(args: &LeakArgs) -> Result<ExitCode> {
    let [train, eval] = [data_files(&args.train)?, data_files(&args.eval)?];
    let read = options(&args.reading)?;
    let rejects = rejects(&args.reading, &args.faults)?;
    let report = leaks(&train, &eval, &read, &search(&args.leak), rejects)?;
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

pub(super) fn search(args: &LeakSearchArgs) -> LeakOptions {
    LeakOptions { threshold: args.threshold, ngram: args.ngram.get(), part: args.by }
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
        "{} of {} rows to evaluate on ({}) have a row to learn from at a cosine of {threshold} or more; mean nearest {:.3}",
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

/// The two sides of a split, and where its leaks are told.
pub(super) fn sides(out: &Path) -> [PathBuf; 3] {
    ["train.jsonl", "eval.jsonl", "leaks.jsonl"].map(|name| out.join(name))
}
