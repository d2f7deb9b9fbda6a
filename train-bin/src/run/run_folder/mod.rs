//! The folder of a run: its configuration, its metrics, its checkpoints and its result.

mod error;
mod lock;
mod rows;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use emberlm_data::TextTokenizer;
use emberlm_lora::LoraConfig;
use emberlm_lora::peft;
use emberlm_model::{CausalLm, weights};
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::tensor_file::FloatDtype;
use serde::Serialize;

use crate::config::{RunConfig, shown};
use crate::run::checkpoint::{self, Checkpoint, CheckpointError, CheckpointMetadata};
use crate::run::files::{CHECKPOINT_PREFIX, CONFIG_FILE, METRICS_FILE, SAMPLES_FILE};
use crate::trainer::optimizer::OptimizerBackend;
use crate::trainer::train::State;

use error::io_at;
use lock::Lock;
use rows::Rows;

pub use error::RunFolderError;

/// The files of a result, any of which shows that there is one.
const RESULTS: [&str; 3] = [peft::WEIGHTS_FILE, weights::WEIGHTS_FILE, weights::INDEX_FILE];

/// How the result of a run is saved.
#[derive(Clone, Copy)]
pub enum Artifact<'a> {
    /// As a PEFT adapter.
    Adapter {
        /// Its configuration.
        config: &'a LoraConfig,
        /// Its base model.
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

impl Artifact<'_> {
    /// In the form from which training resumes to the same bits.
    fn exact(self) -> Self {
        match self {
            Self::Model { config_text, .. } => Self::Model { config_text, dtype: FloatDtype::F32 },
            adapter @ Self::Adapter { .. } => adapter,
        }
    }
}

/// An open run folder. No other process can open it before this value is dropped or its process ends.
pub struct RunFolder {
    path: PathBuf,
    metrics: Rows,
    samples: Rows,
    _lock: Lock,
}

/// A locked run folder whose files are not changed yet.
pub struct LockedRunFolder {
    path: PathBuf,
    lock: Lock,
}

impl LockedRunFolder {
    /// Creates the folder if necessary, and locks it for this process.
    ///
    /// # Errors
    /// [`RunFolderError::Locked`], [`RunFolderError::Io`].
    pub fn open(path: &Path) -> Result<Self, RunFolderError> {
        fs::create_dir_all(path).map_err(io_at(path))?;
        Ok(Self { path: path.into(), lock: Lock::take(path)? })
    }

    /// The newest intact checkpoint, and what is wrong with each newer one.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn newest(&self) -> Result<(Option<Checkpoint>, Vec<CheckpointError>), RunFolderError> {
        let mut damaged = Vec::new();
        for (_, path) in checkpoint::all_in(&self.path).map_err(io_at(&self.path))?.iter().rev() {
            match Checkpoint::open(path) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }

    /// Starts a run in the folder. An older one is refused, or replaced with `train.overwrite`.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] if the folder holds a run; [`RunFolderError::Io`].
    pub fn start(self, config: &RunConfig) -> Result<RunFolder, RunFolderError> {
        if !config.train.overwrite {
            self.refuse_existing(RESULTS.into_iter().chain([METRICS_FILE]))?;
        }
        for (_, old) in checkpoint::all_in(&self.path).map_err(io_at(&self.path))? {
            fs::remove_dir_all(&old).map_err(io_at(&old))?;
        }
        self.open_rows(config, None)
    }

    /// Starts a run again in its folder if it has no intact checkpoint; damaged ones are renamed.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] if the folder holds a result; [`RunFolderError::Io`].
    pub fn restart(self, config: &RunConfig) -> Result<RunFolder, RunFolderError> {
        if !config.train.overwrite {
            self.refuse_existing(RESULTS)?;
        }
        for (_, damaged) in checkpoint::all_in(&self.path).map_err(io_at(&self.path))? {
            checkpoint::set_aside(&damaged).map_err(io_at(&damaged))?;
        }
        self.open_rows(config, None)
    }

    fn refuse_existing(
        &self,
        files: impl IntoIterator<Item = &'static str>,
    ) -> Result<(), RunFolderError> {
        match files.into_iter().find(|file| self.path.join(file).exists()) {
            Some(found) => Err(RunFolderError::Taken { path: shown(&self.path), found }),
            None => Ok(()),
        }
    }

    /// Resumes a run after `step` steps: rows of later steps are removed, and later checkpoints, which are damaged, are
    /// renamed. `from`: the run folder whose rows are copied, if it is another one.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] if the folder holds another run; [`RunFolderError::Io`].
    pub fn resume(
        self,
        config: &RunConfig,
        step: u64,
        from: Option<&Path>,
    ) -> Result<RunFolder, RunFolderError> {
        let path = &self.path;
        if let Some(from) = from {
            if !config.train.overwrite {
                self.refuse_existing(RESULTS.into_iter().chain([METRICS_FILE]))?;
            }
            for name in [METRICS_FILE, SAMPLES_FILE] {
                if from.join(name).exists() {
                    fs::copy(from.join(name), path.join(name)).map_err(io_at(&path.join(name)))?;
                }
            }
        }
        for (later, checkpoint) in checkpoint::all_in(path).map_err(io_at(path))? {
            if later > step {
                checkpoint::set_aside(&checkpoint).map_err(io_at(&checkpoint))?;
            }
        }
        self.open_rows(config, Some(step))
    }

    /// `step`: rows of later steps are removed; `None`: all rows.
    fn open_rows(self, config: &RunConfig, step: Option<u64>) -> Result<RunFolder, RunFolderError> {
        let Self { path, lock } = self;
        for left in checkpoint::unfinished_in(&path).map_err(io_at(&path))? {
            fs::remove_dir_all(&left).map_err(io_at(&left))?;
        }
        let config_path = path.join(CONFIG_FILE);
        let text = config.to_toml()?;
        write_atomically(&config_path, |out| out.write_all(text.as_bytes()))
            .map_err(io_at(&config_path))?;
        let metrics = Rows::open(&path.join(METRICS_FILE), step)?;
        let samples = Rows::open(&path.join(SAMPLES_FILE), step)?;
        Ok(RunFolder { path, metrics, samples, _lock: lock })
    }
}

impl RunFolder {
    /// Creates the folder, or uses one without a run, and writes the resolved configuration.
    ///
    /// # Errors
    /// As [`LockedRunFolder::open`] and [`LockedRunFolder::start`].
    pub fn create(config: &RunConfig) -> Result<Self, RunFolderError> {
        LockedRunFolder::open(&config.train.output_dir)?.start(config)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a row to `metrics.jsonl`.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn log(&mut self, row: &impl Serialize) -> Result<(), RunFolderError> {
        self.metrics.add(row)
    }

    /// Appends a row to `samples.jsonl`.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn log_sample(&mut self, row: &impl Serialize) -> Result<(), RunFolderError> {
        self.samples.add(row)
    }

    /// The text of `metrics.jsonl` so far.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn metrics(&self) -> Result<String, RunFolderError> {
        let path = self.path.join(METRICS_FILE);
        fs::read_to_string(&path).map_err(io_at(&path))
    }

    /// The checkpoints by step, with their names.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn checkpoint_names(&self) -> Result<Vec<(u64, String)>, RunFolderError> {
        let there = checkpoint::all_in(&self.path).map_err(io_at(&self.path))?;
        Ok(there
            .into_iter()
            .map(|(step, _)| (step, format!("{}{step}", CHECKPOINT_PREFIX)))
            .collect())
    }

    /// Writes a file completely or not at all.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn write_file(&self, name: &str, text: &str) -> Result<(), RunFolderError> {
        let path = self.path.join(name);
        write_atomically(&path, |out| out.write_all(text.as_bytes())).map_err(io_at(&path))
    }

    /// Saves the result into the run folder itself.
    ///
    /// # Errors
    /// [`RunFolderError::NotSaved`].
    pub fn save<B: Backend>(
        &self,
        model: CausalLm<B>,
        artifact: Artifact<'_>,
        tokenizer: &TextTokenizer,
    ) -> Result<(), RunFolderError> {
        save_into(&self.path, model, artifact, tokenizer).map_err(|cause| self.not_saved(cause))
    }

    /// Saves a checkpoint, and removes the oldest beyond `keep_last`, except the best one.
    ///
    /// # Errors
    /// [`RunFolderError::NotSaved`]; then the earlier checkpoints are intact.
    pub fn save_checkpoint<B: OptimizerBackend>(
        &mut self,
        state: &State<B>,
        model: CausalLm<B>,
        artifact: Artifact<'_>,
        tokenizer: &TextTokenizer,
        metadata: &CheckpointMetadata<'_>,
        keep_last: Option<usize>,
    ) -> Result<PathBuf, RunFolderError> {
        let saved = self.metrics.sync().and_then(|()| self.samples.sync()).and_then(|()| {
            checkpoint::save(&self.path, state.step, |folder| {
                save_into(folder, model, artifact.exact(), tokenizer)?;
                Ok::<_, RunFolderError>(checkpoint::write_state(folder, state, metadata)?)
            })
        });
        let path = saved.map_err(|cause| self.not_saved(cause))?;
        if let Some(keep) = keep_last {
            let best = metadata.eval_history.best.map(|best| best.step);
            let there = checkpoint::all_in(&self.path).map_err(io_at(&self.path))?;
            let others = there.iter().filter(|(step, _)| Some(*step) != best);
            for (_, old) in others.rev().skip(keep) {
                fs::remove_dir_all(old).map_err(io_at(old))?;
            }
        }
        Ok(path)
    }

    fn not_saved(&self, cause: RunFolderError) -> RunFolderError {
        let there = checkpoint::all_in(&self.path).unwrap_or_default();
        let newest = there.last().map(|(_, path)| shown(path));
        RunFolderError::NotSaved { cause: Box::new(cause), newest }
    }
}

fn save_into<B: Backend>(
    folder: &Path,
    mut model: CausalLm<B>,
    artifact: Artifact<'_>,
    tokenizer: &TextTokenizer,
) -> Result<(), RunFolderError> {
    match artifact {
        Artifact::Adapter { config, base } => {
            let with_rows = model.clone();
            let rows = with_rows.token_rows();
            peft::save_with_tokens(folder, &model.linears_mut(), &rows, config, Some(base))?;
        }
        Artifact::Model { config_text, dtype } => {
            emberlm_model::save(folder, &model, config_text, dtype)?;
        }
    }
    Ok(tokenizer.save(folder)?)
}

#[cfg(all(test, feature = "cpu"))]
mod tests;
