//! Why a report can't be made.

use std::path::PathBuf;

use crate::run::files::{CONFIG_FILE, DATA_FILE, METRICS_FILE, SAMPLES_FILE};

/// Why a report can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No run folder is given.
    #[error("expected at least one run folder, found none")]
    NoRun,
    /// Not a run folder.
    #[error(
        "{}: not a run folder: it has none of {METRICS_FILE}, {CONFIG_FILE}, {SAMPLES_FILE} and {DATA_FILE}. Choose a folder that emberlm train wrote",
        path.display()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// Of rendering the page.
    #[error("cannot render the page")]
    Page(#[from] minijinja::Error),
}
