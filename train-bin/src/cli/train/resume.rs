//! The configuration of a resumed run.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cli::run_args::RunArgs;
use crate::config::{self, Override, RunConfig, shown};
use crate::run::checkpoint::{self, CONFIG_FILE};

/// The configuration of a run that goes on: that of the checkpoint where none is given. What a default would decide anew,
/// the day, is as it was.
pub(super) fn configuration(args: &RunArgs, from: Option<&Path>) -> Result<RunConfig> {
    let names_none = !args.names_a_run();
    if let (Some(from), true) = (from, names_none) {
        let file = from.join(CONFIG_FILE);
        if !file.is_file() {
            bail!(
                "{}: expected a checkpoint or a run folder, which has a {CONFIG_FILE}; found none",
                shown(from).display()
            );
        }
        let mut overrides = vec![];
        // The folder may have been moved since.
        if !args.names_output() {
            let is_checkpoint = from.join(checkpoint::STATE_FILE).is_file();
            let folder = if is_checkpoint { from.parent().unwrap_or(from) } else { from };
            let Some(folder) = std::path::absolute(folder)?.to_str().map(str::to_owned) else {
                bail!("{}: expected a path in UTF-8", folder.display());
            };
            overrides.push(Override::Flag {
                flag: "--resume",
                key: "train.output_dir",
                value: folder.into(),
            });
        }
        overrides.extend(args.overrides());
        return Ok(config::load(Some(&file), &overrides)?);
    }
    let config = args.configuration()?;
    let folder = from.unwrap_or(&config.train.output_dir);
    let Ok(was) = config::load(Some(&folder.join(CONFIG_FILE)), &[]) else { return Ok(config) };
    args.with_date(was.data.date).configuration()
}
