//! `emberlm data …`: parses nothing, computes nothing; calls the data crate and prints.

mod cache;
mod check;
mod clean;
mod leak;
mod mask;
mod mix;
mod split;
mod tokenizer;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use emberlm::Base;
use emberlm::cli::data::{DataCommand, FaultArgs, ReadingArgs, RowsArgs};
use emberlm::config::OnError;
use emberlm_data::{ReadOptions, Rejects, TextTokenizer, data_files};

use super::WrongUsage;

pub(crate) fn run(command: &DataCommand) -> Result<ExitCode> {
    match command {
        DataCommand::Check(args) => check::run(args),
        DataCommand::Clean(args) => clean::run(args),
        DataCommand::Split(args) => split::run(args),
        DataCommand::Leak(args) => leak::run(args),
        DataCommand::Mask(args) => mask::run(args),
        DataCommand::Mix(args) => mix::run(args),
        DataCommand::Tokenizer(args) => tokenizer::run(args),
        DataCommand::Cache(args) => cache::run(args),
    }
}

/// The files, and how they are read.
fn rows(args: &RowsArgs) -> Result<(Vec<PathBuf>, ReadOptions)> {
    Ok((data_files(&args.files)?, options(&args.reading)?))
}

fn options(args: &ReadingArgs) -> Result<ReadOptions> {
    Ok(args.reading(None).options(&args.format)?)
}

fn rejects(reading: &ReadingArgs, faults: &FaultArgs) -> Result<Rejects> {
    if faults.on_error == OnError::Fail && (faults.max_errors.is_some() || faults.rejects.is_some())
    {
        bail!(WrongUsage("--max-errors and --rejects are for --on-error skip".into()));
    }
    Ok(reading.reading(Some(faults)).takes_faults()?)
}

fn tokenizer_of(model: &std::path::Path) -> Result<TextTokenizer> {
    // A tokenizer alone is enough: the weights are not looked at.
    if model.join("tokenizer.json").is_file() {
        return Ok(TextTokenizer::from_dir(model)?);
    }
    Ok(Base::open_path(model)?.tokenizer)
}

/// `12.34 %`
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
