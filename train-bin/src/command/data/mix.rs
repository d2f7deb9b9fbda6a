//! `emberlm data mix`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use emberlm::cli::data::MixArgs;
use emberlm_data::mix;
use serde_json::json;

use crate::command::WrongUsage;

pub(super) fn run(args: &MixArgs) -> Result<ExitCode> {
    let out = args.out.canonicalize().ok();
    let is_out = |path: &std::path::Path| out.is_some() && path.canonicalize().ok() == out;
    if args.sources.iter().any(|source| is_out(&source.path)) {
        bail!(WrongUsage("--out must not be a file that is read".into()));
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
        let again = if source.drawn > source.rows { ", some more than once" } else { "" };
        println!(
            "  {} of {} rows{again} from {}",
            source.drawn,
            source.rows,
            source.path.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
