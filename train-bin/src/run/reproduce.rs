//! Reproducing a run from its manifest: comparing the inputs, then the results.

use std::path::Path;

use toml::{Table, Value};

use crate::base::file_hash::HashedFile;
use crate::config::{self, ConfigError, RunConfig};
use crate::run::error::RunError;
use crate::run::manifest::{Manifest, ManifestError, Outcome, Program, Source, begin_hashing_data};
use crate::run::prepare::open_base;
use emberlm_data::DataError;

/// Why a run can't be reproduced.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is what its type says")]
pub enum ReproduceError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    #[error(transparent)]
    Data(#[from] DataError),
    /// Of reading a file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The run has no result to compare with.
    #[error(
        "the run is not finished, so there is no result to compare with. Finish it with emberlm train --resume"
    )]
    Unfinished,
}

/// A run to reproduce.
pub struct Reproduction {
    /// Its configuration, with a new run folder.
    pub config: RunConfig,
    /// Its result.
    pub expected: Outcome,
    /// Changed inputs that may change the result, one line each.
    pub differences: Vec<String>,
}

/// Reads a manifest and compares the recorded inputs with the present ones. `out`: the new run folder.
///
/// # Errors
/// [`ReproduceError`].
pub fn prepare(manifest: &Path, out: &Path) -> Result<Reproduction, ReproduceError> {
    let manifest = Manifest::read(manifest)?;
    let Some(expected) = manifest.result.clone().filter(|result| result.finished) else {
        return Err(ReproduceError::Unfinished);
    };
    let mut table = manifest.config.clone();
    let train = table.entry("train").or_insert_with(|| Value::Table(Table::new()));
    if let (Value::Table(train), Some(out)) = (train, std::path::absolute(out)?.to_str()) {
        train.insert("output_dir".into(), out.into());
        train.insert("overwrite".into(), false.into());
    }
    let config = config::from_table(table)?;
    let base = open_base(&config).map_err(Box::new)?;
    let mut differences = Vec::new();
    let backend = crate::trainer::backend::resolve(config.model.backend).name();
    compare_programs(&mut differences, &manifest.program, &Program::this(backend));
    let now = Source::new(base.begin_hashing().files()?.to_vec());
    compare(&mut differences, "base model", &manifest.base, &now);
    compare(
        &mut differences,
        "tokenizer",
        &manifest.tokenizer,
        &Source::tokenizer(&base.tokenizer),
    );
    let now = Source::new(begin_hashing_data(&config)?.files()?.to_vec());
    compare(&mut differences, "data", &manifest.data, &now);
    Ok(Reproduction { config, expected, differences })
}

fn compare_programs(differences: &mut Vec<String>, was: &Program, now: &Program) {
    let fields = [
        ("version", &was.version, &now.version),
        ("target", &was.target, &now.target),
        ("build", &was.build, &now.build),
        ("backend", &was.backend, &now.backend),
    ];
    for (what, was, now) in fields {
        if was != now {
            differences.push(format!("program, {what}: was {was}, is {now}"));
        }
    }
}

fn compare(differences: &mut Vec<String>, what: &str, was: &Source, now: &Source) {
    if was.hash == now.hash {
        return;
    }
    let before = differences.len();
    let find = |files: &[HashedFile], name: &str| files.iter().find(|f| f.name == name).cloned();
    for file in &was.files {
        match find(&now.files, &file.name) {
            None => differences.push(format!("{what}: {} is missing", file.name)),
            Some(found) if found.xxh128 != file.xxh128 => differences.push(format!(
                "{what}: {} changed (hash was {} with {} bytes, is {} with {})",
                file.name, file.xxh128, file.bytes, found.xxh128, found.bytes
            )),
            Some(_) => {}
        }
    }
    for file in &now.files {
        if find(&was.files, &file.name).is_none() {
            differences.push(format!("{what}: {} is new", file.name));
        }
    }
    if differences.len() == before {
        differences.push(format!("{what}: the order of the files changed"));
    }
}

/// Differences between the weights of two runs, one line each.
pub fn compare_weights(was: &Outcome, now: &Outcome) -> Vec<String> {
    let mut differences = Vec::new();
    compare(&mut differences, "weights", &was.weights, &now.weights);
    differences
}
