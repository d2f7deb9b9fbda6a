//! `emberlm man`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, ValueHint};

use super::Cli;
use crate::config::shown;

/// Write man pages, one for each command
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm man ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder for the pages; created if missing
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let place = || shown(&args.dir).display().to_string();
    fs::create_dir_all(&args.dir).with_context(place)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(place)?;
    println!("man pages written to {}", place());
    Ok(())
}
