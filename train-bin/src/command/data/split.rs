//! `emberlm data split`.

use std::process::ExitCode;
use std::slice::from_ref;

use anyhow::Result;
use emberlm::cli::data::{Size, SplitArgs};
use emberlm_data::{EvalSize, OnError, Rejects, SplitBy, leaks, split};

use super::{leak, percent, rejects, rows};
use crate::command::WrongUsage;

pub(super) fn run(args: &SplitArgs) -> Result<ExitCode> {
    let (files, read) = rows(&args.rows)?;
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
    let takes = rejects(&args.rows.reading, &args.faults)?;
    let report = split(&files, &read, &by, &size, takes, [&train, &eval])?;
    let mut object = serde_json::to_value(&report)?;
    let leaked = if args.no_leak_check {
        None
    } else {
        // The rows are those that could be read, one object a line.
        let takes = Rejects::new(OnError::Fail, None)?;
        let search = leak::search(&args.leak);
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
        println!("{} invalid rows skipped", report.skipped);
    }
    if let Some(found) = &leaked {
        leak::print(found, args.leak.threshold, Some(&pairs));
    }
    Ok(ExitCode::SUCCESS)
}
