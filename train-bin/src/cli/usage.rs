//! Exit codes of wrong usage and failure.

use std::process::ExitCode;

use anyhow::Error;
use emberlm_data::DataError;

use crate::config::ConfigError;

/// Exit code for wrong usage, as clap's own.
const WRONG_USAGE: u8 = 2;

/// Arguments that contradict each other, beyond what clap can check.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongUsage(pub(super) String);

/// 2 for an invalid argument or setting, else 1.
pub(super) fn exit_code(error: &Error) -> ExitCode {
    let is_setting = matches!(error.downcast_ref::<DataError>(), Some(DataError::Setting { .. }));
    let is_usage = is_setting || error.is::<ConfigError>() || error.is::<WrongUsage>();
    if is_usage { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
}
