//! How a run is watched over: what becomes of steps that look wrong, of evaluations, and which result is kept.

use std::num::NonZeroU64;

use super::choice::Choice;
use crate::trainer::guard::{GuardConfig, OnNonFinite, OnSpike};

/// How a run is watched over: some keys of `[train]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watch {
    /// What is done about steps that look wrong.
    pub guards: GuardConfig,
    /// Whether a checkpoint is saved where an evaluation is the best so far, and kept. Only beside `eval_every`.
    pub save_best: bool,
    /// Which weights are the result.
    pub result: Kept,
    /// Evaluations in a row without improvement after which the run is over; `None`: never.
    pub patience: Option<NonZeroU64>,
    /// By how much a loss has to be lower to be an improvement, at least 0.
    pub min_improvement: f64,
    /// Whether the first micro-batch is shown token by token, with activations and gradients.
    pub debug: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            guards: GuardConfig::default(),
            save_best: true,
            result: Kept::default(),
            patience: None,
            min_improvement: 0.0,
            debug: false,
        }
    }
}

/// Which weights are the result of a run: `train.result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Those after the last step.
    #[default]
    Last,
    /// Those of the evaluation with the lowest loss.
    Best,
}

impl Choice for Kept {
    const WHAT: &'static str = "result";
    const ALL: &'static [Self] = &[Self::Last, Self::Best];

    fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
        }
    }
}

impl Choice for OnNonFinite {
    const WHAT: &'static str = "way to go on after a loss or gradient that isn't finite";
    const ALL: &'static [Self] = &[Self::Stop, Self::Skip];

    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Skip => "skip",
        }
    }
}

impl Choice for OnSpike {
    const WHAT: &'static str = "way to go on after an unusual loss";
    const ALL: &'static [Self] = &[Self::Off, Self::Warn, Self::Skip, Self::Stop];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Stop => "stop",
        }
    }
}
