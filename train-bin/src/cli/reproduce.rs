//! `emberlm reproduce`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};

use super::train;
use crate::config::shown;
use crate::run::manifest::{MANIFEST_FILE, Manifest};
use crate::run::reproduce::{Again, compare_weights, prepare};

/// Reproduce a run from its run.json and compare the results
///
/// First checks that program, base model, tokenizer and data are the same.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct ReproduceArgs {
    /// Run folder, or the run.json in it
    #[arg(value_name = "RUN", value_hint = ValueHint::AnyPath)]
    pub(crate) run: PathBuf,
    /// Folder for the new run; default: beside the old one, with `-again` after its name
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Run it also where something isn't as it was
    #[arg(long)]
    pub(crate) anyway: bool,
    /// Only check whether everything is as it was
    #[arg(long)]
    pub(crate) check: bool,
    /// No progress on the screen; warnings and errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

pub(crate) fn run(args: &ReproduceArgs) -> Result<()> {
    let manifest = match args.run.is_dir() {
        true => args.run.join(MANIFEST_FILE),
        false => args.run.clone(),
    };
    let out = match &args.out {
        Some(out) => out.clone(),
        None => beside(&manifest)?,
    };
    let Again { config, expected, differences } = prepare(&manifest, &out)?;
    if differences.is_empty() {
        println!("program, base model, tokenizer and data are as they were");
    } else {
        let list = differences.join("\n  ");
        if !args.anyway {
            bail!(
                "not everything is as it was:\n  {list}\nPut back what was there, or run it nevertheless with --anyway"
            );
        }
        println!("not everything is as it was:\n  {list}");
    }
    if args.check {
        return Ok(());
    }
    train::run_configured(&config, args.quiet)?;
    let folder = &config.train.output_dir;
    let found = Manifest::read(&folder.join(MANIFEST_FILE))?.result;
    let found = found.context("the new run came to no result")?;
    let differences = compare_weights(&expected, &found);
    if !differences.is_empty() {
        bail!(
            "the run came to other weights, in {}:\n  {}\nLoss on the rows to evaluate on: was {:?}, is {:?}",
            shown(folder).display(),
            differences.join("\n  "),
            expected.eval_loss,
            found.eval_loss
        );
    }
    println!("the same weights, bit for bit, in {}", shown(folder).display());
    Ok(())
}

/// The folder beside the run's, with `-again` after its name.
fn beside(manifest: &std::path::Path) -> Result<PathBuf> {
    let manifest = std::path::absolute(manifest)?;
    let folder = manifest.parent().context("a manifest lies in a run folder")?;
    let mut name = folder.file_name().context("name a folder with --out")?.to_os_string();
    name.push("-again");
    Ok(folder.with_file_name(name))
}
