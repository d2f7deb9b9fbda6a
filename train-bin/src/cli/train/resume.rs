//! The configuration of a resumed run.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cli::run_args::{self, RunArgs};
use crate::config::{self, RunConfig, shown};
use crate::run::checkpoint::{self, CONFIG_FILE};

/// The configuration of a resumed run: by default the one in the checkpoint. The date, whose default is today, is kept.
pub(super) fn configuration(args: &RunArgs, from: Option<&Path>) -> Result<RunConfig> {
    if let (Some(from), true) = (from, args.names_no_run()) {
        let file = from.join(CONFIG_FILE);
        if !file.is_file() {
            bail!(
                "{}: expected a checkpoint or a run folder, which has a {CONFIG_FILE}; found none",
                shown(from).display()
            );
        }
        let mut overrides = vec![];
        // The folder may have been moved since.
        if !args.gives("train.output_dir") {
            let is_checkpoint = from.join(checkpoint::STATE_FILE).is_file();
            let folder = if is_checkpoint { from.parent().unwrap_or(from) } else { from };
            let folder = std::path::absolute(folder)?;
            let Some(output_dir) = run_args::output_dir(&folder) else {
                bail!("{}: expected a path in UTF-8", folder.display());
            };
            overrides.push(output_dir);
        }
        overrides.extend(args.overrides());
        return Ok(config::load(Some(&file), &overrides)?);
    }
    let config = args.configuration()?;
    let folder = from.unwrap_or(&config.train.output_dir);
    let Ok(was) = config::load(Some(&folder.join(CONFIG_FILE)), &[]) else { return Ok(config) };
    Ok(args.clone().with_date(was.data.date).configuration()?)
}
