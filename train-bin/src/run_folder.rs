//! The folder of a run: what was asked for, what happened, and the result.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use emberlm_data::{DataError, TextTokenizer};
use emberlm_lora::LoraConfig;
use emberlm_lora::peft::{self, PeftError};
use emberlm_model::weights;
use emberlm_model::{CausalLm, LoadError};
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::tensor_file::FloatDtype;
use serde::Serialize;

use crate::config::{RunConfig, WriteError, shown};

const CONFIG_FILE: &str = "config.toml";
const METRICS_FILE: &str = "metrics.jsonl";
const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// Why a run folder can't be used or written.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is a run already.
    #[error(
        "{}: there is a run in this folder already ({found}). Name another with --out, or replace it with --set train.overwrite=true",
        path.display()
    )]
    Taken {
        /// The folder.
        path: PathBuf,
        /// The file that shows it.
        found: &'static str,
    },
    /// The configuration can't be written as TOML.
    #[error(transparent)]
    Config(#[from] WriteError),
    /// The adapter.
    #[error(transparent)]
    Adapter(#[from] PeftError),
    /// The model.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
}

/// How the result of a run is saved.
pub enum Product<'a> {
    /// As a PEFT adapter.
    Adapter {
        /// What it is.
        config: &'a LoraConfig,
        /// The base it belongs to.
        base: &'a str,
    },
    /// As a whole model.
    Model {
        /// The text of the base's `config.json`.
        config_text: &'a str,
        /// The float type of the files.
        dtype: FloatDtype,
    },
}

/// An open run folder.
pub struct RunFolder {
    path: PathBuf,
    metrics: File,
}

impl RunFolder {
    /// Makes the folder, or takes one without a run, and writes the resolved configuration.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] where a run would be overwritten unasked; [`RunFolderError::Io`].
    pub fn create(config: &RunConfig) -> Result<Self, RunFolderError> {
        let path = &config.train.output_dir;
        if !config.train.overwrite {
            let results = [peft::WEIGHTS_FILE, weights::WEIGHTS_FILE, weights::INDEX_FILE];
            let marks = results.into_iter().chain([METRICS_FILE]);
            if let Some(found) = marks.into_iter().find(|mark| path.join(mark).exists()) {
                return Err(RunFolderError::Taken { path: shown(path), found });
            }
        }
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| RunFolderError::Io { path, source }
        };
        fs::create_dir_all(path).map_err(io(path))?;
        for (_, old) in checkpoints(path).map_err(io(path))? {
            fs::remove_dir_all(&old).map_err(io(&old))?;
        }
        let config_path = path.join(CONFIG_FILE);
        let text = config.to_toml()?;
        write_atomically(&config_path, |out| out.write_all(text.as_bytes()))
            .map_err(io(&config_path))?;
        let metrics_path = path.join(METRICS_FILE);
        let metrics = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&metrics_path)
            .map_err(io(&metrics_path))?;
        Ok(Self { path: path.clone(), metrics })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a row to `metrics.jsonl`.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn log(&mut self, row: &impl Serialize) -> Result<(), RunFolderError> {
        let io = |source| RunFolderError::Io { path: self.path.join(METRICS_FILE), source };
        let mut line = serde_json::to_vec(row).map_err(|e| io(e.into()))?;
        line.push(b'\n');
        // One write a row: a reader, or a crash, sees whole rows.
        self.metrics.write_all(&line).map_err(io)
    }

    /// Saves the result into the run folder itself.
    ///
    /// # Errors
    /// [`RunFolderError`].
    pub fn save<B: Backend>(
        &self,
        model: CausalLm<B>,
        product: &Product<'_>,
        tokenizer: &TextTokenizer,
    ) -> Result<(), RunFolderError> {
        save_into(&self.path, model, product, tokenizer)
    }

    /// Saves what is trained after `step` steps into `checkpoint-STEP`, and removes the oldest beyond `keep_last`.
    ///
    /// # Errors
    /// [`RunFolderError`].
    pub fn save_checkpoint<B: Backend>(
        &self,
        step: u64,
        model: CausalLm<B>,
        product: &Product<'_>,
        tokenizer: &TextTokenizer,
        keep_last: Option<usize>,
    ) -> Result<PathBuf, RunFolderError> {
        let name = format!("{CHECKPOINT_PREFIX}{step}");
        let (path, unfinished) = (self.path.join(&name), self.path.join(format!(".{name}.tmp")));
        let saved = save_into(&unfinished, model, product, tokenizer).and_then(|()| {
            fs::rename(&unfinished, &path)
                .map_err(|source| RunFolderError::Io { path: path.clone(), source })
        });
        if saved.is_err() {
            // The first error is the one to report; half a checkpoint is of no use to anybody.
            let _ = fs::remove_dir_all(&unfinished);
        }
        saved?;
        if let Some(keep) = keep_last {
            let there = checkpoints(&self.path)
                .map_err(|source| RunFolderError::Io { path: self.path.clone(), source })?;
            for (_, old) in there.iter().rev().skip(keep) {
                fs::remove_dir_all(old)
                    .map_err(|source| RunFolderError::Io { path: old.clone(), source })?;
            }
        }
        Ok(path)
    }
}

fn save_into<B: Backend>(
    folder: &Path,
    mut model: CausalLm<B>,
    product: &Product<'_>,
    tokenizer: &TextTokenizer,
) -> Result<(), RunFolderError> {
    match product {
        Product::Adapter { config, base } => {
            peft::save(folder, &model.linears_mut(), config, Some(base))?;
        }
        Product::Model { config_text, dtype } => {
            weights::save(folder, &model, config_text, *dtype)?;
        }
    }
    Ok(tokenizer.save(folder)?)
}

/// The checkpoints in a run folder by step, oldest first.
fn checkpoints(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(CHECKPOINT_PREFIX));
        if let Some(step) = step.and_then(|step| step.parse().ok()) {
            found.push((step, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use burn_flex::Flex;

    use super::*;
    use crate::{WeightForm, builtin};

    #[test]
    fn a_checkpoint_that_fails_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let mut config = RunConfig::default();
        config.train.output_dir = place.path().join("run");
        let folder = RunFolder::create(&config).unwrap();
        let files = || -> Vec<_> {
            let entries = fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            names
        };
        let before = files();
        let base = builtin::base().unwrap();
        let model = base.build::<Flex>(WeightForm::default(), &Default::default()).unwrap();
        let save = |step, config_text: &str| {
            let product = Product::Model { config_text, dtype: FloatDtype::F32 };
            folder.save_checkpoint(step, model.clone(), &product, &base.tokenizer, None)
        };
        // Fails after the weights were written.
        assert!(save(1, "no JSON").is_err());
        assert_eq!(files(), before);
        // Fails when all is written: its place is taken.
        fs::create_dir(folder.path().join("checkpoint-2")).unwrap();
        fs::write(folder.path().join("checkpoint-2/mine"), "mine").unwrap();
        let before = files();
        assert!(save(2, &base.config_text).is_err());
        assert_eq!(files(), before);
        save(3, &base.config_text).unwrap();
        assert!(folder.path().join("checkpoint-3/model.safetensors").is_file());
    }
}
