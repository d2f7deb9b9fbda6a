//! A whole run: from a checked configuration to a saved result.

pub mod bench;
mod callbacks;
pub mod checkpoint;
pub mod dataset_stats;
pub mod eval_history;
mod evaluator;
mod job;
pub mod lr_find;
pub mod manifest;
pub mod metrics;
pub mod prepare;
pub mod reproduce;
pub mod resume;
pub mod run_folder;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use emberlm_data::{CacheEvent, DataError, Faults, Summary, TextTokenizer, preview};
use emberlm_lora::peft::PeftError;
use emberlm_lora::walk::ParamCount;
use emberlm_lora::{InjectError, LoraConfigError};
use emberlm_model::ModelConfig;
use emberlm_quant::QuantFormat;
use emberlm_quant::tensor_file::FloatDtype;

use crate::base::BaseError;
use crate::base::file_hash::{Hashing, hex};
use crate::config::{Change, RunConfig};
use crate::eval::batch_debug::BatchDebug;
use crate::eval::evaluate::Evaluation;
use crate::eval::generate::GenerateError;
use crate::memory::available_memory;
use crate::memory::footprint::MemoryEstimate;
use crate::run::checkpoint::CheckpointError;
use crate::run::eval_history::Best;
use crate::run::manifest::{Source, begin_hashing_data};
use crate::run::prepare::{Data, Drawn, open_base, plan, workload};
use crate::run::resume::{Resume, ResumeError};
use crate::run::run_folder::{LockedRunFolder, RunFolderError};
use crate::trainer::backend::{Backend, BackendError, resolve, run_on};
use crate::trainer::check::TrainError;
use crate::trainer::freeze::UnknownWeights;
use crate::trainer::train::{Plan, StepLog};

pub(crate) use job::trainable;
use job::{RunJob, Start};

/// What happens in a run, for whoever shows it.
pub enum Event<'a> {
    /// Tokens were found in the cache, or written to it.
    Cache(CacheEvent),
    /// Rows at fault were skipped, as the configuration allows.
    Skipped {
        /// They.
        faults: &'a Faults,
    },
    /// The data has been read.
    Data {
        /// Of the rows to learn from.
        train: &'a Summary,
        /// Of the rows to evaluate on.
        eval: Option<&'a Summary>,
        /// What an epoch draws from each source, if it is a mixture.
        mixture: &'a [Drawn],
        /// One example, its trained part marked.
        preview: &'a dyn Fn(bool) -> String,
    },
    /// How much memory a step will need.
    Memory {
        /// Beside what there is.
        need: &'a MemoryEstimate,
    },
    /// The model stands, and training is about to begin.
    Model {
        /// The backend's name.
        backend: &'static str,
        /// Elements that are trained, and all.
        count: ParamCount,
        /// The plan in numbers.
        plan: &'a Plan,
        /// Rows of the first epoch.
        rows: u64,
    },
    /// Something that the user should know of.
    Warning {
        /// What.
        what: &'a str,
    },
    /// The first micro-batch, looked at closely.
    BatchDebug {
        /// What was seen.
        inside: &'a BatchDebug,
    },
    /// Newer checkpoints can't be used; an older one will be.
    Damaged {
        /// Why each can't.
        why: &'a [CheckpointError],
    },
    /// The run goes on.
    Resumed {
        /// From this checkpoint; `None`: there is none, and it begins.
        from: Option<PathBuf>,
        /// Steps made.
        step: u64,
        /// What differs in the configuration.
        changes: &'a [Change],
    },
    /// An evaluation after `step` steps.
    Evaluated {
        /// Steps made.
        step: u64,
        /// What it found.
        evaluation: Evaluation,
        /// Whether it is the best one so far.
        is_best: bool,
    },
    /// A sample prompt and its answer after `step` steps.
    Answered {
        /// Steps made.
        step: u64,
        /// The question.
        prompt: &'a str,
        /// The answer.
        answer: &'a str,
    },
    /// A step was made.
    Step {
        /// What it did.
        log: &'a StepLog,
        /// Tokens without padding, a second.
        tokens_per_s: f64,
    },
    /// Something was saved.
    Saved {
        /// Where.
        path: PathBuf,
    },
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// How much memory a step was expected to need.
    pub memory: MemoryEstimate,
    /// Elements that were trained, and all.
    pub count: ParamCount,
    /// Steps made.
    pub steps: u64,
    /// Steps that had been made before it went on.
    pub resumed_at: Option<u64>,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Whether it was over before its last step, for want of progress.
    pub stopped_early: bool,
    /// The evaluation with the lowest loss.
    pub best: Option<Best>,
    /// On the rows to evaluate on, before the first step and after the last.
    pub evaluations: Option<(Evaluation, Evaluation)>,
    /// Prompt, answer before, answer after.
    pub answers: Vec<(String, String, String)>,
    /// Where the result lies; `None` after a dry run.
    pub saved: Option<PathBuf>,
    /// Whether the result is an adapter.
    pub is_adapter: bool,
    /// Wall-clock time of the training loop, over all parts of the run.
    pub seconds: f64,
}

impl Report {
    fn new(memory: MemoryEstimate, count: ParamCount, is_adapter: bool) -> Self {
        Self {
            memory,
            count,
            steps: 0,
            resumed_at: None,
            interrupted: false,
            stopped_early: false,
            best: None,
            evaluations: None,
            answers: Vec::new(),
            saved: None,
            is_adapter,
            seconds: 0.0,
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is what its type says")]
pub enum RunError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Lora(#[from] LoraConfigError),
    #[error(transparent)]
    Adapter(#[from] PeftError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Trainable(#[from] UnknownWeights),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A file of the base model or of the data that can't be read again.
    #[error("the files that the run is made from: {0}")]
    Hashing(#[source] io::Error),
    /// A base that is stored quantized, to be trained whole.
    #[error(
        "{base} is stored as {format}, and quantized weights cannot be trained themselves. Add a section [lora], or train the dense model it was made from"
    )]
    QuantizedBase { base: String, format: QuantFormat },
    /// An epoch's share that makes no step.
    #[error(
        "train.epochs = {epochs} of {examples} examples is less than one example; ask for more epochs, or for train.steps"
    )]
    NoSteps { epochs: f64, examples: usize },
}

/// Options that are not part of the configuration, because they don't change the result.
pub struct RunOptions<'a> {
    /// Stop before the first step, and write nothing.
    pub dry_run: bool,
    /// Set from outside to stop after the current step and save.
    pub interrupt: &'a AtomicBool,
    /// Go on with a run that was interrupted.
    pub resume: Option<Resume>,
}

/// Runs a configuration from beginning to end.
///
/// # Errors
/// [`RunError`]. Whatever fails before the first step has written nothing but `config.toml`.
pub fn run(
    config: &RunConfig,
    options: RunOptions<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Report, RunError> {
    let start = match options.resume.as_ref().filter(|_| !options.dry_run) {
        None => Start::Fresh,
        Some(resume) => {
            let folder = LockedRunFolder::open(&config.train.output_dir)?;
            let (go_on, damaged) = resume::find(&folder, config, resume)?;
            if !damaged.is_empty() {
                on_event(Event::Damaged { why: &damaged });
            }
            match go_on {
                None => Start::FreshIn(folder),
                Some(go_on) => Start::ResumePoint(folder, Box::new(go_on)),
            }
        }
    };
    let base = open_base(config)?;
    let base_hash = base.begin_hashing();
    let data = Data::read(config, &base.tokenizer, &mut |event| {
        tracing::info!(?event, "token cache");
        on_event(Event::Cache(event));
    })?;
    if !data.skipped.is_empty() {
        on_event(Event::Skipped { faults: &data.skipped });
    }
    let preview = |ansi| preview(&data.train.examples.get(0), &base.tokenizer, ansi);
    let eval_summary = data.eval.as_ref().map(|eval| &eval.summary);
    on_event(Event::Data {
        train: &data.train.summary,
        eval: eval_summary,
        mixture: &data.mixture,
        preview: &preview,
    });
    let mut hashes = Hashes {
        rows: hex(data.train.fingerprint()),
        base: base_hash,
        data: begin_hashing_data(config)?,
    };
    let plan = plan(config, &data.train)?;
    start.check(&mut hashes, &plan, on_event)?;
    let backend = resolve(config.model.backend);
    let need =
        MemoryEstimate::of(&workload(config, &base, &data.train, &plan)?, available(backend))?;
    on_event(Event::Memory { need: &need });
    let (base, data, plan) = (&base, &data, &plan);
    run_on(
        backend,
        RunJob { config, options, start, on_event, base, data, plan, backend, need, hashes },
    )?
}

/// What a run is made from, in short. Hashing takes a while where files are large.
struct Hashes {
    /// Of the rows to learn from.
    rows: String,
    /// Of the base model's files.
    base: Hashing,
    /// Of the data files.
    data: Hashing,
}

impl Hashes {
    fn base(&mut self) -> Result<Source, RunError> {
        Ok(Source::new(self.base.files().map_err(RunError::Hashing)?.to_vec()))
    }

    fn data(&mut self) -> Result<Source, RunError> {
        Ok(Source::new(self.data.files().map_err(RunError::Hashing)?.to_vec()))
    }
}

/// How much memory a run will need, before its weights are read. `available`: bytes that there are, instead of those
/// that this machine has free.
///
/// # Errors
/// [`RunError`], as for the run itself as far as its configuration, its data and its model's files are concerned.
pub fn memory_need(config: &RunConfig, available: Option<u64>) -> Result<MemoryEstimate, RunError> {
    let base = open_base(config)?;
    let data = Data::read(config, &base.tokenizer, &mut |_| ())?;
    let available = available.or_else(|| self::available(resolve(config.model.backend)));
    let plan = plan(config, &data.train)?;
    Ok(MemoryEstimate::of(&workload(config, &base, &data.train, &plan)?, available)?)
}

/// Memory that a backend's device has free; `None` for GPUs, which don't tell.
fn available(backend: Backend) -> Option<u64> {
    match backend {
        Backend::Flex | Backend::NdArray => available_memory(),
        Backend::Auto | Backend::Wgpu | Backend::Cuda => None,
    }
}

/// The token that fills short rows of a batch; it is masked, so any will do.
pub fn pad_id(tokenizer: &TextTokenizer) -> u32 {
    tokenizer.pad_id().or(tokenizer.eos_id()).unwrap_or(0)
}

/// Tokens that end an answer: the tokenizer's and the model's.
pub fn stop_ids(
    config: &ModelConfig,
    tokenizer: &TextTokenizer,
) -> std::collections::BTreeSet<u32> {
    let mut ids = tokenizer.stop_ids();
    ids.extend(&config.eos_token_ids);
    ids
}

/// The float type that a `config.json` says its weights are in.
fn declared_dtype(config_text: &str) -> Option<FloatDtype> {
    let config: serde_json::Value = serde_json::from_str(config_text).ok()?;
    let name = config.get("dtype").or_else(|| config.get("torch_dtype"))?.as_str()?;
    [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16]
        .into_iter()
        .find(|d| d.torch_name() == name)
}
