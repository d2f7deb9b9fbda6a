//! `emberlm reproduce`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};

use super::train;
use crate::config::shown;
use crate::run::manifest::{MANIFEST_FILE, Manifest};
use crate::run::reproduce::{Reproduction, compare_weights, prepare};

/// Reproduce a run from its run.json and compare the results
///
/// Checks first that program, base model, tokenizer and data are unchanged.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm reproduce runs/a --check
  emberlm reproduce runs/a --out runs/a-again")]
pub(crate) struct ReproduceArgs {
    /// Run folder, or its run.json
    #[arg(value_name = "RUN", value_hint = ValueHint::AnyPath)]
    pub(crate) run: PathBuf,
    /// Folder for the new run; default: next to the old one, its name followed by `-again`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Run even if inputs changed
    #[arg(long)]
    pub(crate) anyway: bool,
    /// Only check whether inputs changed
    #[arg(long)]
    pub(crate) check: bool,
    /// Print warnings and errors only, no progress
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
        None => sibling(&manifest)?,
    };
    let Reproduction { config, expected, differences } = prepare(&manifest, &out)?;
    if differences.is_empty() {
        println!("program, base model, tokenizer and data are unchanged");
    } else {
        let list = differences.join("\n  ");
        if !args.anyway {
            bail!(
                "inputs changed:\n  {list}\nRestore the original program, model and data, or run anyway with --anyway"
            );
        }
        println!("inputs changed:\n  {list}");
    }
    if args.check {
        return Ok(());
    }
    train::run_configured(&config, args.quiet)?;
    let folder = &config.train.output_dir;
    let found = Manifest::read(&folder.join(MANIFEST_FILE))?.result;
    let found = found.context("the new run has no result")?;
    let differences = compare_weights(&expected, &found);
    if !differences.is_empty() {
        bail!(
            "the new weights differ, in {}:\n  {}\nEvaluation loss: was {:?}, is {:?}",
            shown(folder).display(),
            differences.join("\n  "),
            expected.eval_loss,
            found.eval_loss
        );
    }
    println!("identical weights, bit for bit, in {}", shown(folder).display());
    Ok(())
}

/// The folder next to the run's, named `…-again`.
fn sibling(manifest: &std::path::Path) -> Result<PathBuf> {
    let manifest = std::path::absolute(manifest)?;
    let folder = manifest.parent().context("expected the manifest in a run folder")?;
    let mut name = folder.file_name().context("choose a folder with --out")?.to_os_string();
    name.push("-again");
    Ok(folder.with_file_name(name))
}
