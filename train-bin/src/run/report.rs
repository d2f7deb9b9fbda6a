//! The result of a run, for display.

use std::path::PathBuf;

use emberlm_lora::walk::ParamCount;

use crate::eval::evaluate::Evaluation;
use crate::memory::footprint::MemoryEstimate;
use crate::run::eval_history::Best;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The estimated memory of a step.
    pub memory: MemoryEstimate,
    /// Trainable and total parameters.
    pub count: ParamCount,
    /// Steps made.
    pub steps: u64,
    /// Steps made before it was resumed, if it was.
    pub resumed_at: Option<u64>,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Whether it stopped early because the evaluation loss did not improve.
    pub stopped_early: bool,
    /// The evaluation with the lowest loss.
    pub best: Option<Best>,
    /// Evaluations before the first step and after the last.
    pub evaluations: Option<(Evaluation, Evaluation)>,
    /// Prompt, answer before, answer after.
    pub answers: Vec<(String, String, String)>,
    /// Folder of the result; `None` after a dry run.
    pub saved: Option<PathBuf>,
    /// Whether the result is an adapter.
    pub is_adapter: bool,
    /// Wall-clock time of the training loop, over all parts of the run.
    pub seconds: f64,
}

impl Report {
    pub(crate) fn new(memory: MemoryEstimate, count: ParamCount, is_adapter: bool) -> Self {
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
