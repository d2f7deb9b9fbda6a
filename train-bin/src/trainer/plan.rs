//! A run in numbers: what the training loop computes, and how far it is in its data.

use emberlm_data::{Cursor, Dataset, Layout, Loader, LoaderOptions};

use crate::trainer::clip::ClipConfig;
use crate::trainer::guard::GuardConfig;
use crate::trainer::optimizer::{AdamWConfig, Algorithm, OptimizerConfig};
use crate::trainer::schedule::{Curve, LearningRate, Warmup};
use crate::trainer::step::Recompute;

/// Everything that determines what a run computes, in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Optimizer steps.
    pub steps: u64,
    /// Total rows; the last step takes the remainder.
    pub rows: u64,
    /// Rows in a micro-batch.
    pub micro_batch_size: usize,
    /// Micro-batches in a step.
    pub grad_accumulation: usize,
    /// Learning rate by step.
    pub learning_rate: LearningRate,
    /// The optimizer and its constants.
    pub optimizer: OptimizerConfig,
    /// Gradient clipping.
    pub clip: ClipConfig,
    /// The recompute mode.
    pub recompute: Recompute,
    /// Strength of the noise on the embeddings; `None`: no noise.
    pub neftune_alpha: Option<f64>,
    /// Seed of data order, dropout and noise.
    pub seed: u64,
    /// Whether each epoch has its own random order.
    pub shuffle: bool,
    /// How examples are laid out in rows: one in each, or packed.
    pub layout: Layout,
    /// Handling of loss spikes and of values that are not finite.
    pub guards: GuardConfig,
}

/// Position of a run in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataPosition {
    /// Rows consumed.
    pub rows: u64,
    /// Position of the next row.
    pub cursor: Cursor,
}

impl Plan {
    /// `steps` steps of one micro-batch: cosine from `learning_rate` to 0, AdamW without decay, clipping at norm 1.
    pub fn new(steps: u64, micro_batch_size: usize, learning_rate: f64) -> Self {
        Self {
            steps,
            rows: steps * micro_batch_size as u64,
            micro_batch_size,
            grad_accumulation: 1,
            learning_rate: LearningRate {
                curve: Curve::Cosine,
                peak: learning_rate,
                floor: 0.0,
                warmup: Warmup::Steps(0),
                steps,
            },
            optimizer: Algorithm::AdamW(AdamWConfig::default()).into(),
            clip: ClipConfig::norm(1.0),
            recompute: Recompute::default(),
            neftune_alpha: None,
            seed: 0,
            shuffle: true,
            layout: Layout::OnePerRow,
            guards: GuardConfig::default(),
        }
    }

    /// The stream of rows that the steps consume.
    pub fn loader(&self, data: &Dataset) -> Loader {
        let Self { seed, shuffle, layout, .. } = *self;
        Loader::new(data, LoaderOptions { seed, shuffle, layout })
    }

    /// Rows in a step, except the last.
    pub fn rows_per_step(&self) -> u64 {
        (self.micro_batch_size * self.grad_accumulation) as u64
    }
}
