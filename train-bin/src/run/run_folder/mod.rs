//! The folder of a run: what was asked for, what happened, and the result.

mod lock;
mod rows;

use std::fs;
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
use crate::run::checkpoint::{self, Checkpoint, CheckpointError, CheckpointMetadata};
use crate::trainer::optimizer::OptimizerBackend;
use crate::trainer::train::State;

use lock::Lock;
use rows::Rows;

/// The configuration of a run, as it was resolved.
pub const CONFIG_FILE: &str = checkpoint::CONFIG_FILE;
/// A row a step and a row an evaluation.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// A row an answer to a sample prompt.
pub const SAMPLES_FILE: &str = "samples.jsonl";

/// The weights that a run comes to.
const RESULTS: [&str; 3] = [peft::WEIGHTS_FILE, weights::WEIGHTS_FILE, weights::INDEX_FILE];

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
        "{}: there is a run in this folder already ({found}). Go on with it by --resume, name another folder with --out, or replace it with --set train.overwrite=true",
        path.display()
    )]
    Taken {
        /// The folder.
        path: PathBuf,
        /// The file that shows it.
        found: &'static str,
    },
    /// Another process writes it.
    #[error(
        "{}: another process{} is running in this folder. Wait for it, stop it, or name another folder with --out",
        path.display(),
        pid.as_ref().map(|pid| format!(" ({pid})")).unwrap_or_default()
    )]
    LockedRunFolder {
        /// The folder.
        path: PathBuf,
        /// The process, if it says.
        pid: Option<String>,
    },
    /// Saving failed, and what was saved before is still there.
    #[error("{cause}. {}", match newest {
        Some(path) => format!("Nothing that was saved before is lost: when there is room, go on from {} with --resume", path.display()),
        None => "Nothing had been saved before".into(),
    })]
    NotSaved {
        /// What failed.
        cause: Box<RunFolderError>,
        /// The newest checkpoint.
        newest: Option<PathBuf>,
    },
    /// The configuration can't be written as TOML.
    #[error(transparent)]
    Config(#[from] WriteError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
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

impl From<io::Error> for RunFolderError {
    fn from(source: io::Error) -> Self {
        Self::Io { path: PathBuf::from("the checkpoint"), source }
    }
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> RunFolderError + use<> {
    let path = path.to_path_buf();
    move |source| RunFolderError::Io { path, source }
}

/// How the result of a run is saved.
#[derive(Clone, Copy)]
pub enum Artifact<'a> {
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

impl Artifact<'_> {
    /// In the form from which training goes on to the same bits.
    fn exact(self) -> Self {
        match self {
            Self::Model { config_text, .. } => Self::Model { config_text, dtype: FloatDtype::F32 },
            adapter @ Self::Adapter { .. } => adapter,
        }
    }
}

/// An open run folder. No other process can open it before this one is dropped, or its process ended.
pub struct RunFolder {
    path: PathBuf,
    metrics: Rows,
    samples: Rows,
    _lock: Lock,
}

/// A run folder that is locked, and whose files are as they were.
pub struct LockedRunFolder {
    path: PathBuf,
    lock: Lock,
}

impl LockedRunFolder {
    /// Makes the folder if need be, and takes it for this process.
    ///
    /// # Errors
    /// [`RunFolderError::LockedRunFolder`], [`RunFolderError::Io`].
    pub fn open(path: &Path) -> Result<Self, RunFolderError> {
        fs::create_dir_all(path).map_err(io_at(path))?;
        Ok(Self { path: path.into(), lock: Lock::take(path)? })
    }

    /// The newest checkpoint that is whole, and why each newer one isn't.
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

    /// Begins a run in the folder: an older one is refused, or replaced if the configuration says so.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] where a run would be overwritten unasked; [`RunFolderError::Io`].
    pub fn begin(self, config: &RunConfig) -> Result<RunFolder, RunFolderError> {
        if !config.train.overwrite {
            self.refuse(RESULTS.into_iter().chain([METRICS_FILE]))?;
        }
        for (_, old) in checkpoint::all_in(&self.path).map_err(io_at(&self.path))? {
            fs::remove_dir_all(&old).map_err(io_at(&old))?;
        }
        self.open_rows(config, None)
    }

    /// Begins a run in a folder where one came to no checkpoint, or to damaged ones only, which get another name.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] where it came to a result all the same; [`RunFolderError::Io`].
    pub fn begin_again(self, config: &RunConfig) -> Result<RunFolder, RunFolderError> {
        if !config.train.overwrite {
            self.refuse(RESULTS)?;
        }
        for (_, damaged) in checkpoint::all_in(&self.path).map_err(io_at(&self.path))? {
            checkpoint::set_aside(&damaged).map_err(io_at(&damaged))?;
        }
        self.open_rows(config, None)
    }

    fn refuse(&self, marks: impl IntoIterator<Item = &'static str>) -> Result<(), RunFolderError> {
        match marks.into_iter().find(|mark| self.path.join(mark).exists()) {
            Some(found) => Err(RunFolderError::Taken { path: shown(&self.path), found }),
            None => Ok(()),
        }
    }

    /// Goes on with a run after `step` steps: what was written later is taken back, and checkpoints later than that, which
    /// are damaged, get another name. `from`: the run folder whose rows are taken over, if it is another one.
    ///
    /// # Errors
    /// [`RunFolderError::Taken`] if there is another run in this folder; [`RunFolderError::Io`].
    pub fn go_on(
        self,
        config: &RunConfig,
        step: u64,
        from: Option<&Path>,
    ) -> Result<RunFolder, RunFolderError> {
        let path = &self.path;
        if let Some(from) = from {
            if !config.train.overwrite {
                self.refuse(RESULTS.into_iter().chain([METRICS_FILE]))?;
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

    /// `step`: rows of later steps are dropped; `None`: all rows are.
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
    /// Makes the folder, or takes one without a run, and writes the resolved configuration.
    ///
    /// # Errors
    /// As [`LockedRunFolder::open`] and [`LockedRunFolder::begin`].
    pub fn create(config: &RunConfig) -> Result<Self, RunFolderError> {
        LockedRunFolder::open(&config.train.output_dir)?.begin(config)
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
        self.metrics.add(row)
    }

    /// Adds a row to `samples.jsonl`.
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

    /// The checkpoints there are: steps and names.
    ///
    /// # Errors
    /// [`RunFolderError::Io`].
    pub fn checkpoint_names(&self) -> Result<Vec<(u64, String)>, RunFolderError> {
        let there = checkpoint::all_in(&self.path).map_err(io_at(&self.path))?;
        Ok(there
            .into_iter()
            .map(|(step, _)| (step, format!("{}{step}", checkpoint::PREFIX)))
            .collect())
    }

    /// Writes a file, whole or not at all.
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
        product: Artifact<'_>,
        tokenizer: &TextTokenizer,
    ) -> Result<(), RunFolderError> {
        save_into(&self.path, model, product, tokenizer).map_err(|cause| self.not_saved(cause))
    }

    /// Saves a checkpoint, and removes the oldest beyond `keep_last`, but for the best one.
    ///
    /// # Errors
    /// [`RunFolderError::NotSaved`]; then the checkpoints before are as they were.
    pub fn save_checkpoint<B: OptimizerBackend>(
        &mut self,
        state: &State<B>,
        model: CausalLm<B>,
        product: Artifact<'_>,
        tokenizer: &TextTokenizer,
        surroundings: &CheckpointMetadata<'_>,
        keep_last: Option<usize>,
    ) -> Result<PathBuf, RunFolderError> {
        let saved = self.metrics.sync().and_then(|()| self.samples.sync()).and_then(|()| {
            checkpoint::put(&self.path, state.step, |folder| {
                save_into(folder, model, product.exact(), tokenizer)?;
                Ok::<_, RunFolderError>(checkpoint::write_state(folder, state, surroundings)?)
            })
        });
        let path = saved.map_err(|cause| self.not_saved(cause))?;
        if let Some(keep) = keep_last {
            let best = surroundings.book.best.map(|best| best.step);
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
    product: Artifact<'_>,
    tokenizer: &TextTokenizer,
) -> Result<(), RunFolderError> {
    match product {
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
