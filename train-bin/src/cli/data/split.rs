//! `emberlm data split`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::slice::from_ref;

use anyhow::Result;
use clap::{Args, ValueHint};
use emberlm_data::{EvalSize, OnError, Rejects, SplitBy, leaks, split};

use super::leak::{self, LeakSearchArgs};
use super::rows_args::{FaultArgs, RowsArgs, percent};
use crate::cli::usage::WrongUsage;
use crate::cli::values::number;

/// Split into training and evaluation sets, and check for leaks
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct SplitArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// What rows at fault do.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// Folder for train.jsonl and eval.jsonl (and leaks.jsonl)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Rows to evaluate on: a share such as 0.05 or 5%, or a whole number of rows
    #[arg(long, value_name = "SIZE", default_value = "5%", value_parser = size)]
    pub(crate) eval: Size,
    /// Seed of the choice
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Hold out the latest rows, by a field with a date, a time or seconds since 1970
    #[arg(long, value_name = "FIELD", conflicts_with = "group")]
    pub(crate) time: Option<String>,
    /// Hold out the rows from this time on
    #[arg(long, value_name = "DATE", requires = "time", conflicts_with = "eval")]
    pub(crate) from: Option<String>,
    /// Keep rows with the same value of a field together
    #[arg(long, value_name = "FIELD")]
    pub(crate) group: Option<String>,
    /// How leaks are looked for.
    #[command(flatten)]
    pub(crate) leak: LeakSearchArgs,
    /// Don't look for leaks
    #[arg(long)]
    pub(crate) no_leak_check: bool,
    /// Print exactly one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// How many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Size {
    /// A share of all.
    Share(f64),
    /// So many.
    Rows(NonZeroU64),
}

fn size(text: &str) -> Result<Size, String> {
    if let Ok(rows) = text.parse() {
        return Ok(Size::Rows(rows));
    }
    let expected = "a share such as 0.05 or 5%, or a whole number of rows from 1 on";
    let (text, whole) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let share = number(text, expected, |x| x > 0.0)? / whole;
    if share < 1.0 { Ok(Size::Share(share)) } else { Err(format!("expected {expected}")) }
}

pub(super) fn run(args: &SplitArgs) -> Result<ExitCode> {
    let (files, read) = args.rows.read()?;
    let by = match (&args.time, &args.group) {
        (Some(field), _) => SplitBy::Time { field: field.clone() },
        (None, Some(field)) => SplitBy::Group { field: field.clone(), seed: args.seed },
        (None, None) => SplitBy::Random { seed: args.seed },
    };
    let size = match (&args.from, args.eval) {
        (Some(from), _) => EvalSize::From(from.clone()),
        (None, Size::Share(share)) => EvalSize::Share(share),
        (None, Size::Rows(rows)) => EvalSize::Rows(rows.get()),
    };
    let [train, eval, pairs] = leak::sides(&args.out);
    if [&train, &eval, &pairs].iter().any(|out| files.contains(out)) {
        anyhow::bail!(WrongUsage("--out must not hold the files that are read".into()));
    }
    let takes = args.faults.rejects(&args.rows.reading)?;
    let report = split(&files, &read, &by, &size, takes, [&train, &eval])?;
    let mut object = serde_json::to_value(&report)?;
    let leaked = if args.no_leak_check {
        None
    } else {
        // The rows are those that could be read, one object a line.
        let takes = Rejects::new(OnError::Fail, None)?;
        let search = args.leak.options();
        let found = leaks(from_ref(&train), from_ref(&eval), &read, &search, takes)?;
        leak::write_pairs(&found, &pairs)?;
        Some(found)
    };
    if args.json {
        object["leaks"] = serde_json::to_value(&leaked)?;
        println!("{object}");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{} rows: {} to learn from in {}, {} to evaluate on ({}) in {}",
        report.rows,
        report.train,
        train.display(),
        report.eval,
        percent(report.eval as f64 / report.rows as f64),
        eval.display()
    );
    if report.skipped > 0 {
        println!("{} rows at fault skipped", report.skipped);
    }
    if let Some(found) = &leaked {
        leak::print(found, args.leak.threshold, Some(&pairs));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shares_or_rows() {
        for (text, expected) in [("5%", 0.05), ("0.05", 0.05), ("12.5%", 0.125)] {
            assert_eq!(size(text), Ok(Size::Share(expected)));
        }
        assert!(matches!(size("7"), Ok(Size::Rows(rows)) if rows.get() == 7));
        for wrong in ["0", "100%", "1.5", "-1", "x", ""] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
