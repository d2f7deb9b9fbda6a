//! The training loop, in the open.

use std::sync::Arc;

use emberlm_data::{Batch, Dataset};
use emberlm_lora::DropoutKey;
use emberlm_model::{CausalLm, ModelConfig};

use crate::trainer::check::StepChecks;
use crate::trainer::clip::Clipper;
use crate::trainer::error::TrainError;
use crate::trainer::grads::Gradients;
use crate::trainer::guard::Guard;
use crate::trainer::metrics::StepMetrics;
use crate::trainer::noise::EmbeddingNoise;
use crate::trainer::optimizer::{Optimizer, OptimizerBackend};
use crate::trainer::plan::{DataPosition, Plan};
use crate::trainer::prefetch::Prefetch;
use crate::trainer::step::{StepOptions, TrainBackend, loss_and_grads};

/// Everything that changes from step to step, except the weights. With the weights, all that resuming needs.
#[derive(Debug)]
pub struct State<B: OptimizerBackend> {
    /// Steps made, skipped ones included.
    pub step: u64,
    /// Position of the next row in the data.
    pub data_position: DataPosition,
    /// The optimizer and its moments.
    pub optimizer: Optimizer<B>,
    /// Gradient clipping and its statistics.
    pub clipper: Clipper,
    /// Statistics of the guards.
    pub guard: Guard,
}

/// Whether training continues after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// With the next step.
    Continue,
    /// No: the present weights are the result.
    Stop,
}

/// Trains `model` (its trainable parameters) on `data` from the first step to the last, and returns it.
///
/// # Errors
/// As [`train_from`].
pub fn train<A: TrainBackend, E: From<TrainError>>(
    model: CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    mut after_step: impl FnMut(StepMetrics, &CausalLm<A>) -> Result<Flow, E>,
) -> Result<CausalLm<A>, E> {
    let mut state = State::new(plan);
    train_from(&mut state, model, config, data, pad_id, plan, |metrics, model, _| {
        after_step(metrics, model)
    })
}

/// Trains `model` (its trainable parameters) on `data` from `state` to the last step, and returns it.
///
/// The loss of a step is the sum over its supervised tokens divided by their number (where the data has weights: the
/// weighted sum divided by the sum of weights), so it depends on neither micro-batch size nor accumulation nor padding
/// nor packing. `after_step` receives each step's metrics, the model and the state after it: training resumed from these
/// two gives the same bits.
///
/// # Errors
/// [`TrainError`] at a loss or gradient that isn't finite, or at a loss spike, before the weights change, unless the
/// guards skip such steps; at a parameter that the first step didn't reach; and whatever `after_step` returns.
pub fn train_from<A: TrainBackend, E: From<TrainError>>(
    state: &mut State<A::InnerBackend>,
    mut model: CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    mut after_step: impl FnMut(StepMetrics, &CausalLm<A>, &State<A::InnerBackend>) -> Result<Flow, E>,
) -> Result<CausalLm<A>, E> {
    let loader = Arc::new(plan.loader(data));
    let steps = Prefetch::new(loader.clone(), data, pad_id, plan, state.step, state.data_position);
    for (step, (batches, position)) in (state.step..plan.steps).zip(steps) {
        state.data_position = position;
        // The number of supervised tokens, unless the data has weights.
        let weight: f64 = batches.iter().map(Batch::weight).sum();
        let noise = plan.neftune_alpha.map(|alpha| EmbeddingNoise { alpha, seed: plan.seed, step });
        let checks = StepChecks { step, model: &model, config, data, batches: &batches };
        let mut gradients = Gradients::default();
        let mut loss_sum = 0.0;
        let mut fault = None;
        for (i, batch) in batches.iter().enumerate() {
            let dropout = DropoutKey { seed: plan.seed, step, micro_batch: i as u64 };
            let options = StepOptions {
                dropout: Some(&dropout),
                noise: noise.as_ref(),
                ..StepOptions::new(1.0 / weight, plan.recompute)
            };
            let loss = loss_and_grads(&model, config, batch, options, &mut gradients);
            loss_sum += loss;
            fault = checks.loss_is_finite(loss, batch).err();
            if fault.is_some() {
                break;
            }
        }
        let (loss, grad_norm) = (loss_sum / weight, gradients.norm());
        let fault = checks.after_backward(fault, &gradients, grad_norm)?;
        let spike = checks.spike(loss, &mut state.guard, &plan.guards);
        let skipped = checks.skip(fault, spike.as_ref(), &mut state.guard, &plan.guards)?;
        let learning_rate = plan.learning_rate.at(step);
        if skipped.is_none() {
            state.clipper.clip(&mut gradients, grad_norm);
            model = state.optimizer.step(model, &gradients, learning_rate);
        }
        state.step += 1;
        let epoch = loader.epochs_at(state.data_position.cursor);
        let measured =
            StepMetrics { loss, grad_norm, learning_rate, skipped, spike, ..counted(&batches) };
        let metrics = StepMetrics { step: state.step, epoch, ..measured };
        if after_step(metrics, &model, state)? == Flow::Stop {
            break;
        }
    }
    Ok(model)
}

/// The metrics that follow from a step's micro-batches alone; all others are 0.
fn counted(batches: &[Batch]) -> StepMetrics {
    let tokens: usize = batches.iter().map(Batch::tokens).sum();
    let positions: usize = batches.iter().map(|batch| batch.ids.len()).sum();
    StepMetrics {
        supervised_tokens: batches.iter().map(|batch| batch.targets.len()).sum(),
        tokens,
        padding: 1.0 - tokens as f64 / positions as f64,
        ..StepMetrics::default()
    }
}

impl<B: OptimizerBackend> State<B> {
    /// The state before the first step.
    pub fn new(plan: &Plan) -> Self {
        Self {
            step: 0,
            data_position: DataPosition::default(),
            optimizer: Optimizer::new(plan.optimizer),
            clipper: Clipper::new(plan.clip),
            guard: Guard::default(),
        }
    }
}
