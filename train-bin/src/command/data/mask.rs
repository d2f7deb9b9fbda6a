//! `emberlm data mask`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use emberlm::cli::data::MaskArgs;
use emberlm_data::{EntityKind, MaskOptions, mask};

use super::{percent, rejects, rows};

pub(super) fn run(args: &MaskArgs) -> Result<ExitCode> {
    let (files, read) = rows(&args.rows)?;
    let listed = match &args.list {
        None => Vec::new(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("{}: cannot be read", path.display()))?;
            text.lines().map(str::to_owned).collect()
        }
    };
    let kinds = match (&args.kinds, &args.list) {
        (Some(kinds), _) => kinds.clone(),
        (None, Some(_)) => Vec::new(),
        (None, None) => EntityKind::BY_RULE.to_vec(),
    };
    let options = MaskOptions {
        kinds,
        listed,
        per_row: args.per_row.get(),
        context: args.context,
        seed: args.seed,
    };
    let takes = rejects(&args.rows.reading, &args.faults)?;
    let report = mask(&files, &read, &options, takes, &args.out)?;
    if args.json {
        println!("{}", serde_json::to_value(&report)?);
    } else {
        println!(
            "{} questions of {} rows in {}: {} listed, {} dates, {} numbers, {} names; {} of the entities ({}) stand in their prompt",
            report.questions,
            report.rows,
            args.out.display(),
            report.listed,
            report.date,
            report.number,
            report.name,
            report.copied,
            percent(report.copied as f64 / report.questions as f64),
        );
    }
    Ok(ExitCode::SUCCESS)
}
