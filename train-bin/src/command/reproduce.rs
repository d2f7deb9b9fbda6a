//! `emberlm reproduce`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use emberlm::cli::ReproduceArgs;
use emberlm::config::shown;
use emberlm::run::manifest::{MANIFEST_FILE, Manifest};
use emberlm::run::reproduce::{Again, compare_weights, prepare};

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
    super::train::run_configured(&config, args.quiet)?;
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
