//! What each command does, and how it says so. Results go to stdout, everything else to stderr.

pub(crate) mod bench;
pub(crate) mod data;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod lr_find;
pub(crate) mod merge;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod report;
pub(crate) mod reproduce;
mod stages;
pub(crate) mod train;

/// Arguments that don't go together, beyond what clap can check.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUsage(pub(crate) String);
