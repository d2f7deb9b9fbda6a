//! The training loop, in the open.

use emberlm_data::{Batch, Cursor, Dataset, Layout, Loader, LoaderOptions};
use emberlm_lora::DropoutKey;
use emberlm_model::{CausalLm, ModelConfig};

use crate::check::{self, TrainError};
use crate::clip::{ClipConfig, Clipper};
use crate::config::Recompute;
use crate::grads::Gradients;
use crate::optimizer::{AdamWConfig, Algorithm, Optimizer, OptimizerConfig};
use crate::schedule::{Curve, LearningRate};
use crate::step::{StepOptions, TrainBackend, loss_and_grads};

/// Everything that decides what a run computes, in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Optimizer steps.
    pub steps: u64,
    /// Rows to be seen in all; the last step takes what is left.
    pub rows: u64,
    /// Rows in a micro-batch.
    pub micro_batch_size: usize,
    /// Micro-batches in a step.
    pub grad_accumulation: usize,
    /// Rate by step.
    pub learning_rate: LearningRate,
    /// The optimizer and its constants.
    pub optimizer: OptimizerConfig,
    /// How gradients are clipped.
    pub clip: ClipConfig,
    /// What is kept for backward.
    pub recompute: Recompute,
    /// Seed of order and dropout.
    pub seed: u64,
    /// Whether each epoch has a random order of its own.
    pub shuffle: bool,
    /// How examples stand in rows: one in each, or as many as fit.
    pub layout: Layout,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLog {
    /// Steps made, this one included.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss over the step's supervised tokens, in nats, before the step.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
    /// Rate of the step.
    pub learning_rate: f64,
    /// Tokens that were supervised.
    pub supervised_tokens: usize,
    /// Tokens that went through the model, without padding.
    pub tokens: usize,
    /// The share of padding in all that went through the model.
    pub padding: f64,
}

/// Whether a run goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// To the next step.
    Continue,
    /// Not: what is trained so far is the result.
    Stop,
}

/// Trains `model` (its trainable parameters) on `data` and returns it.
///
/// The loss of a step is the sum over its supervised tokens divided by their number, so it depends on neither
/// micro-batch size nor accumulation nor padding nor packing. `after_step` sees each step and the model after it.
///
/// # Errors
/// [`TrainError`] at the first loss or gradient that isn't finite, before the optimizer moves anything; at a parameter
/// that the first step didn't reach; and whatever `after_step` returns.
pub fn train<A: TrainBackend, E: From<TrainError>>(
    mut model: CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    mut after_step: impl FnMut(&StepLog, &CausalLm<A>) -> Result<Flow, E>,
) -> Result<CausalLm<A>, E> {
    let loader = plan.loader(data);
    let mut cursor = Cursor::default();
    let mut optimizer = Optimizer::new(plan.optimizer);
    let mut clipper = Clipper::new(plan.clip);
    for step in 0..plan.steps {
        let batches;
        (batches, cursor) = micro_batches(&loader, data, pad_id, plan, step, cursor);
        let supervised: usize = batches.iter().map(|batch| batch.targets.len()).sum();
        let mut gradients = Gradients::default();
        let mut loss_sum = 0.0;
        for (i, batch) in batches.iter().enumerate() {
            let dropout = DropoutKey { seed: plan.seed, step, micro_batch: i as u64 };
            let options = StepOptions {
                scale: 1.0 / supervised as f64,
                recompute: plan.recompute,
                dropout: Some(&dropout),
                phases: None,
            };
            let loss = loss_and_grads(&model, config, batch, options, &mut gradients);
            check::loss_is_finite(loss, step, &model, config, data, batch)?;
            loss_sum += loss;
        }
        let grad_norm = gradients.norm();
        check::gradients_are_finite(grad_norm, &gradients, step, data, &batches)?;
        if step == 0 {
            check::every_parameter_was_reached(&model, &gradients, &batches)?;
        }
        clipper.clip(&mut gradients, grad_norm);
        let learning_rate = plan.learning_rate.at(step);
        model = optimizer.step(model, &gradients, learning_rate);

        let tokens: usize = batches.iter().map(Batch::tokens).sum();
        let slots: usize = batches.iter().map(|batch| batch.ids.len()).sum();
        let log = StepLog {
            step: step + 1,
            epoch: loader.epochs_at(cursor),
            loss: loss_sum / supervised as f64,
            grad_norm,
            learning_rate,
            supervised_tokens: supervised,
            tokens,
            padding: 1.0 - tokens as f64 / slots as f64,
        };
        if after_step(&log, &model)? == Flow::Stop {
            break;
        }
    }
    Ok(model)
}

impl Plan {
    /// So many steps of one micro-batch each: cosine from `learning_rate` to 0, AdamW without decay, clipping at 1.
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
                warmup: 0,
                steps,
            },
            optimizer: Algorithm::AdamW(AdamWConfig::default()).into(),
            clip: ClipConfig::Norm(1.0),
            recompute: Recompute::default(),
            seed: 0,
            shuffle: true,
            layout: Layout::OnePerRow,
        }
    }

    /// The stream of rows that the steps take.
    pub fn loader(&self, data: &Dataset) -> Loader {
        let Self { seed, shuffle, layout, .. } = *self;
        Loader::new(data, LoaderOptions { seed, shuffle, layout })
    }

    /// Rows in a step, but for the last one.
    pub fn rows_per_step(&self) -> u64 {
        (self.micro_batch_size * self.grad_accumulation) as u64
    }
}

/// The micro-batches of a step, and where the next one begins. `cursor` is where this one does: `loader.cursor` of the
/// rows before it, so that a run can start anywhere.
fn micro_batches(
    loader: &Loader,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    step: u64,
    cursor: Cursor,
) -> (Vec<Batch>, Cursor) {
    let left = plan.rows - step * plan.rows_per_step();
    let (rows, after) = loader.take(cursor, plan.rows_per_step().min(left) as usize);
    let collate = |rows: &[_]| Batch::of_rows(rows, &data.examples, pad_id);
    (rows.chunks(plan.micro_batch_size).map(collate).collect(), after)
}
