//! Commands that show runs.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{RunArgs, penalty};

/// A page about one run or several: curves, answers, configuration.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ReportArgs {
    /// Run folder; several are compared
    #[arg(required = true, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub runs: Vec<PathBuf>,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
}

/// Look for a learning rate.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct LrFindArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
    /// The first rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-6, value_parser = penalty)]
    pub from: f64,
    /// The last rate; the sweep ends earlier if the loss rises too far
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = penalty)]
    pub to: f64,
    /// Steps from one to the other, by equal factors
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub steps: u64,
    /// Page with the picture
    #[arg(long, value_name = "FILE", default_value = "lr-find.html", value_hint = ValueHint::FilePath)]
    pub picture: PathBuf,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}
