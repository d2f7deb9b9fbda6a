//! `emberlm data mask`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use emberlm_data::{EntityKind, MaskOptions, mask};

use super::rows_args::{FaultArgs, RowsArgs, percent};

/// Write cloze questions: texts that stop before a number, a date or a name
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data mask facts.jsonl --kinds date,number --out questions.jsonl")]
pub(crate) struct MaskArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// Handling of invalid rows.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// File for the questions, JSON Lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// Kinds of entities to find by rules, comma-separated; default: all, or none with --list
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    pub(crate) kinds: Option<Vec<EntityKind>>,
    /// File with a list of entities, one per line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) list: Option<PathBuf>,
    /// Maximum questions per row
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) per_row: NonZeroUsize,
    /// Minimum characters of the answer before the entity
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) context: usize,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &MaskArgs) -> Result<ExitCode> {
    let (files, read) = args.rows.read()?;
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
    let takes = args.faults.rejects(&args.rows.reading)?;
    let report = mask(&files, &read, &options, takes, &args.out)?;
    if args.json {
        println!("{}", serde_json::to_value(&report)?);
    } else {
        println!(
            "{} questions of {} rows in {}: {} listed, {} dates, {} numbers, {} names; {} of the entities ({}) occur in their prompt",
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
