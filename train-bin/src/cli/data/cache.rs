//! `emberlm data cache`: what can be typed.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Arguments of `emberlm data cache`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct CacheArgs {
    /// Folder of token files: what data.cache_dir names
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Remove the token files, and nothing else
    #[arg(long)]
    pub clear: bool,
    /// Only files that no run has used for so many days
    #[arg(long, value_name = "DAYS")]
    pub older_than: Option<u32>,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}
