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
#[command(after_help = "\
Examples:
  emberlm data split all.jsonl --out data --eval 5%
  emberlm data split all.jsonl --out data --group user_id
  emberlm data split all.jsonl --out data --time created --from 2024-01-01")]
pub(crate) struct SplitArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// Handling of invalid rows.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// Folder for train.jsonl and eval.jsonl (and leaks.jsonl)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Size of the evaluation set: a share such as 0.05 or 5%, or a number of rows
    #[arg(long, value_name = "SIZE", default_value = "5%", value_parser = size)]
    pub(crate) eval: Size,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Use the latest rows for evaluation, by a field with a date, a time or seconds since 1970
    #[arg(long, value_name = "FIELD", conflicts_with = "group")]
    pub(crate) time: Option<String>,
    /// Use the rows from this time on for evaluation
    #[arg(long, value_name = "DATE", requires = "time", conflicts_with = "eval")]
    pub(crate) from: Option<String>,
    /// Keep rows with the same value of this field in one set
    #[arg(long, value_name = "FIELD")]
    pub(crate) group: Option<String>,
    /// Search for leaks.
    #[command(flatten)]
    pub(crate) leak: LeakSearchArgs,
    /// Skip the check for leaks
    #[arg(long)]
    pub(crate) no_leak_check: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Size of the evaluation set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Size {
    /// A share of all.
    Share(f64),
    /// A number of rows.
    Rows(NonZeroU64),
}

fn size(text: &str) -> Result<Size, String> {
    if let Ok(rows) = text.parse() {
        return Ok(Size::Rows(rows));
    }
    let expected = "a share such as 0.05 or 5%, or a number of rows of at least 1";
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
        anyhow::bail!(WrongUsage("--out must not contain the input files".into()));
    }
    let takes = args.faults.rejects(&args.rows.reading)?;
    let report = split(&files, &read, &by, &size, takes, [&train, &eval])?;
    let mut object = serde_json::to_value(&report)?;
    let leaked = if args.no_leak_check {
        None
    } else {
        // Only valid rows were written, one object per line.
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
        "{} rows: {} for training in {}, {} for evaluation ({}) in {}",
        report.rows,
        report.train,
        train.display(),
        report.eval,
        percent(report.eval as f64 / report.rows as f64),
        eval.display()
    );
    if report.skipped > 0 {
        println!("{} invalid rows skipped", report.skipped);
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
