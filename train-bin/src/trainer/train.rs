//! The training loop, in the open.

use std::sync::Arc;

use burn::module::AutodiffModule;
use emberlm_data::{Batch, Cursor, Dataset, Layout, Loader, LoaderOptions};
use emberlm_lora::DropoutKey;
use emberlm_model::{CausalLm, ModelConfig};

use crate::trainer::check::{self, TrainError};
use crate::trainer::clip::{ClipConfig, Clipper};
use crate::trainer::grads::Gradients;
use crate::trainer::guard::{Guard, GuardConfig, LossSpike, OnNonFinite, OnSpike};
use crate::trainer::noise::EmbeddingNoise;
use crate::trainer::optimizer::{
    AdamWConfig, Algorithm, Optimizer, OptimizerBackend, OptimizerConfig,
};
use crate::trainer::prefetch::Prefetch;
use crate::trainer::schedule::{Curve, LearningRate, Warmup};
use crate::trainer::step::{Recompute, StepOptions, TrainBackend, loss_and_grads};

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
    /// Strength of the noise on the embeddings; `None`: there is none.
    pub neftune_alpha: Option<f64>,
    /// Seed of order, dropout and noise.
    pub seed: u64,
    /// Whether each epoch has a random order of its own.
    pub shuffle: bool,
    /// How examples stand in rows: one in each, or as many as fit.
    pub layout: Layout,
    /// What is done about steps that look wrong.
    pub guards: GuardConfig,
}

/// All that changes from step to step, beside the weights. With them it is all that a run needs to go on.
#[derive(Debug)]
pub struct State<B: OptimizerBackend> {
    /// Steps made, those that were passed over included.
    pub step: u64,
    /// Where the next row stands.
    pub place: DataPosition,
    /// The optimizer and its moments.
    pub optimizer: Optimizer<B>,
    /// What clips the gradients, and what it has seen of them.
    pub clipper: Clipper,
    /// What the guards have seen.
    pub guard: Guard,
}

/// How far a run is in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataPosition {
    /// Rows that were taken.
    pub rows: u64,
    /// Where the next one stands.
    pub cursor: Cursor,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLog {
    /// Steps made, this one included.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss over the step's supervised tokens, by their weights, in nats, before the step.
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
    /// Why the weights were left as they are, if they were.
    pub skipped: Option<String>,
    /// That the loss is far above the ones before.
    pub spike: Option<Spike>,
}

/// A loss far above the ones before, and what it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Spike {
    /// By how much.
    pub unusual: LossSpike,
    /// The step's examples of the highest mean loss: where they stand, and that loss.
    pub examples: Vec<(String, f64)>,
}

/// Whether a run goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// To the next step.
    Continue,
    /// Not: what is trained so far is the result.
    Stop,
}

/// Trains `model` (its trainable parameters) on `data` from the first step to the last, and returns it.
///
/// As [`train_from`], with nothing done before.
///
/// # Errors
/// As [`train_from`].
pub fn train<A: TrainBackend, E: From<TrainError>>(
    model: CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    mut after_step: impl FnMut(&StepLog, &CausalLm<A>) -> Result<Flow, E>,
) -> Result<CausalLm<A>, E> {
    let mut state = State::new(plan);
    train_from(&mut state, model, config, data, pad_id, plan, |log, model, _| {
        after_step(log, model)
    })
}

/// Trains `model` (its trainable parameters) on `data` from where `state` is to the last step, and returns it.
///
/// The loss of a step is the sum over its supervised tokens divided by their number (where the data weighs them: the
/// weighted sum divided by the sum of weights), so it depends on neither micro-batch size nor accumulation nor padding
/// nor packing. `after_step` sees each step, the model and the state after it: with these two the run can go on later, to
/// the same bits.
///
/// # Errors
/// [`TrainError`] at a loss or gradient that isn't finite or a loss that is unusual, before the optimizer moves anything,
/// unless the guards pass over them; at a parameter that the first step didn't reach; and whatever `after_step` returns.
pub fn train_from<A: TrainBackend, E: From<TrainError>>(
    state: &mut State<A::InnerBackend>,
    mut model: CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    mut after_step: impl FnMut(&StepLog, &CausalLm<A>, &State<A::InnerBackend>) -> Result<Flow, E>,
) -> Result<CausalLm<A>, E> {
    let loader = Arc::new(plan.loader(data));
    let ahead = Prefetch::new(loader.clone(), data, pad_id, plan, state.step, state.place);
    for (step, (batches, place)) in (state.step..plan.steps).zip(ahead) {
        state.place = place;
        let supervised: usize = batches.iter().map(|batch| batch.targets.len()).sum();
        // The number of supervised tokens, unless the data weighs them.
        let weight: f64 = batches.iter().map(Batch::weight).sum();
        let alpha = plan.neftune_alpha;
        let noise = alpha.map(|alpha| EmbeddingNoise { alpha, seed: plan.seed, step });
        let mut gradients = Gradients::default();
        let mut loss_sum = 0.0;
        let mut fault = None;
        for (i, batch) in batches.iter().enumerate() {
            let dropout = DropoutKey { seed: plan.seed, step, micro_batch: i as u64 };
            let options = StepOptions {
                scale: 1.0 / weight,
                recompute: plan.recompute,
                dropout: Some(&dropout),
                noise: noise.as_ref(),
                phases: None,
            };
            let loss = loss_and_grads(&model, config, batch, options, &mut gradients);
            loss_sum += loss;
            fault = check::loss_is_finite(loss, step, &model, config, data, batch).err();
            if fault.is_some() {
                break;
            }
        }
        let loss = loss_sum / weight;
        let grad_norm = gradients.norm();
        let finite = || check::gradients_are_finite(grad_norm, &gradients, step, data, &batches);
        let fault = fault.or_else(|| finite().err());
        if step == 0 && fault.is_none() {
            check::every_parameter_was_reached(&model, &gradients, &batches)?;
        }
        let spike = state.guard.look(loss, &plan.guards).map(|unusual| {
            let examples = check::highest_loss_examples(&model.valid(), config, data, &batches);
            Spike { unusual, examples }
        });
        let learning_rate = plan.learning_rate.at(step);
        let skipped = passed_over(fault, spike.as_ref(), &mut state.guard, step, &plan.guards)?;
        if skipped.is_none() {
            state.clipper.clip(&mut gradients, grad_norm);
            model = state.optimizer.step(model, &gradients, learning_rate);
        }
        state.step += 1;

        let tokens: usize = batches.iter().map(Batch::tokens).sum();
        let slots: usize = batches.iter().map(|batch| batch.ids.len()).sum();
        let log = StepLog {
            step: state.step,
            epoch: loader.epochs_at(state.place.cursor),
            loss,
            grad_norm,
            learning_rate,
            supervised_tokens: supervised,
            tokens,
            padding: 1.0 - tokens as f64 / slots as f64,
            skipped,
            spike,
        };
        if after_step(&log, &model, state)? == Flow::Stop {
            break;
        }
    }
    Ok(model)
}

/// Why the step leaves the weights as they are, if it does.
fn passed_over(
    fault: Option<TrainError>,
    spike: Option<&Spike>,
    guard: &mut Guard,
    step: u64,
    config: &GuardConfig,
) -> Result<Option<String>, TrainError> {
    let why = match (fault, spike) {
        (Some(fault), _) if config.on_nonfinite == OnNonFinite::Stop => return Err(fault),
        (Some(fault), _) => fault,
        (None, Some(spike)) if config.on_spike == OnSpike::Stop => {
            return Err(check::spike(step, spike));
        }
        (None, Some(spike)) if config.on_spike == OnSpike::Skip => check::spike(step, spike),
        (None, _) => {
            guard.made();
            return Ok(None);
        }
    };
    let text = why.to_string();
    guard.skip(why, config)?;
    Ok(Some(text))
}

impl<B: OptimizerBackend> State<B> {
    /// That of a run which hasn't begun.
    pub fn new(plan: &Plan) -> Self {
        Self {
            step: 0,
            place: DataPosition::default(),
            optimizer: Optimizer::new(plan.optimizer),
            clipper: Clipper::new(plan.clip),
            guard: Guard::default(),
        }
    }
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
