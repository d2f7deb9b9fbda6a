//! `emberlm report`.

use std::io::Write;

use anyhow::{Context, Result};
use emberlm::cli::ReportArgs;
use emberlm::config::shown;
use emberlm::report;
use emberlm_quant::atomic_file::write_atomically;

pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let page = report::page(&args.runs)?;
    write_atomically(&args.out, |out| out.write_all(page.as_bytes()))
        .with_context(|| shown(&args.out).display().to_string())?;
    println!("report written to {}", shown(&args.out).display());
    Ok(())
}
