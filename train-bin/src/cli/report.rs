//! `emberlm report`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use emberlm_quant::atomic_file::write_atomically;

use crate::config::shown;
use crate::report;

/// Write an HTML report on runs: curves, answers, configuration
///
/// The page is one file and needs no network.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm report runs/a runs/b --out compare.html")]
pub(crate) struct ReportArgs {
    /// Run folder; several are compared
    #[arg(required = true, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,
    /// HTML file to write
    #[arg(long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
}

pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let page = report::page(&args.runs)?;
    write_atomically(&args.out, |out| out.write_all(page.as_bytes()))
        .with_context(|| shown(&args.out).display().to_string())?;
    println!("report written to {}", shown(&args.out).display());
    Ok(())
}
