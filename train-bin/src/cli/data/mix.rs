//! `emberlm data mix`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueHint};
use emberlm_data::{MixSource, mix};
use serde_json::json;

use crate::cli::usage::WrongUsage;

/// Mix several files by weight into one
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data mix domain.jsonl=7 general.jsonl=3 --rows 10000 --out mixed.jsonl

Rows of a file are drawn in a shuffled order, without replacement until all were drawn, and copied unchanged. To mix
during training instead: [[data.source]].")]
pub(crate) struct MixArgs {
    /// JSON Lines files with weights; default weight: 1
    #[arg(required = true, value_name = "FILE=WEIGHT", value_parser = weighted, value_hint = ValueHint::FilePath)]
    pub(crate) sources: Vec<MixSource>,
    /// File to write
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// Rows to draw; default: the total of all files
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<NonZeroUsize>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `FILE=WEIGHT`, or a file alone.
fn weighted(text: &str) -> Result<MixSource, String> {
    let Some((path, weight)) = text.rsplit_once('=') else {
        return Ok(MixSource { path: text.into(), weight: 1.0 });
    };
    let number: f64 = weight.trim().parse().unwrap_or(f64::NAN);
    if path.is_empty() || !number.is_finite() || number <= 0.0 {
        return Err("expected FILE=WEIGHT with a weight greater than 0, such as a.jsonl=7".into());
    }
    Ok(MixSource { path: path.into(), weight: number })
}

pub(super) fn run(args: &MixArgs) -> Result<ExitCode> {
    let out = args.out.canonicalize().ok();
    let is_out = |path: &std::path::Path| out.is_some() && path.canonicalize().ok() == out;
    if args.sources.iter().any(|source| is_out(&source.path)) {
        bail!(WrongUsage("--out must not be an input file".into()));
    }
    let report = mix(&args.sources, args.rows.map(|rows| rows.get()), args.seed, &args.out)?;
    if args.json {
        let sources: Vec<_> = report
            .sources
            .iter()
            .map(|source| json!({"path": source.path, "rows": source.rows, "drawn": source.drawn}))
            .collect();
        println!("{}", json!({"rows": report.rows, "sources": sources}));
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} rows in {}", report.rows, args.out.display());
    for source in &report.sources {
        let again = if source.drawn > source.rows { ", some repeatedly" } else { "" };
        println!(
            "  {} of {} rows{again} from {}",
            source.drawn,
            source.rows,
            source.path.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
