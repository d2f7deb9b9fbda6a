//! Events of a run, for whatever displays or records it.

use std::path::PathBuf;

use emberlm_data::{CacheEvent, Faults, Summary};
use emberlm_lora::walk::ParamCount;

use crate::config::Change;
use crate::eval::batch_debug::BatchDebug;
use crate::eval::evaluate::Evaluation;
use crate::memory::footprint::MemoryEstimate;
use crate::run::checkpoint::CheckpointError;
use crate::run::metrics::row::StepRow;
use crate::run::prepare::SourceDraws;
use crate::trainer::plan::Plan;

/// An event of a run.
pub enum Event<'a> {
    /// Tokenized data was found in the cache, or written to it.
    Cache(CacheEvent),
    /// Invalid rows were skipped, as the configuration allows.
    Skipped {
        /// What is wrong with each.
        faults: &'a Faults,
    },
    /// The data was read.
    Data {
        /// Summary of the training data.
        train: &'a Summary,
        /// Summary of the evaluation data.
        eval: Option<&'a Summary>,
        /// Examples that an epoch draws from each source of a mixture.
        mixture: &'a [SourceDraws],
        /// One example with its supervised part marked; the argument: whether colours can be shown.
        preview: &'a dyn Fn(bool) -> String,
    },
    /// The memory of a step was estimated.
    Memory {
        /// The estimate, and the memory available.
        estimate: &'a MemoryEstimate,
    },
    /// The model is loaded; the first step follows.
    Model {
        /// The backend's name.
        backend: &'static str,
        /// Trainable and total parameters.
        count: ParamCount,
        /// The plan in numbers.
        plan: &'a Plan,
        /// Rows of the first epoch.
        rows: u64,
    },
    /// A warning.
    Warning {
        /// Its text.
        text: &'a str,
    },
    /// The first micro-batch in detail (`train.debug`).
    BatchDebug {
        /// Its tokens, activations and gradients.
        batch: &'a BatchDebug,
    },
    /// The newest checkpoints are damaged; an older one is used.
    Damaged {
        /// What is wrong with each.
        errors: &'a [CheckpointError],
    },
    /// The run is resumed.
    Resumed {
        /// The checkpoint; `None`: there is none, and the run starts from the beginning.
        from: Option<PathBuf>,
        /// Steps already made.
        step: u64,
        /// Changed settings.
        changes: &'a [Change],
    },
    /// An evaluation.
    Evaluated {
        /// Steps made before it.
        step: u64,
        /// Its result.
        evaluation: Evaluation,
        /// Whether its loss is the lowest so far.
        is_best: bool,
    },
    /// The answer to a sample prompt.
    Answered {
        /// Steps made before it.
        step: u64,
        /// The prompt.
        prompt: &'a str,
        /// The answer.
        answer: &'a str,
    },
    /// A step.
    Step {
        /// Its metrics.
        row: &'a StepRow,
    },
    /// A checkpoint or the result was saved.
    Saved {
        /// Where.
        path: PathBuf,
    },
}
