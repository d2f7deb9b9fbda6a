//! Checks of each step's loss and gradients, before the weights change.

use burn::module::{AutodiffModule, Param};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_data::{Batch, Dataset};
use emberlm_lora::walk::{ParamVisitor, for_each_param};
use emberlm_lora::{AdapterParam, AdapterRole};
use emberlm_model::{CausalLm, LinearRole, ModelBackend, ModelConfig};
use serde::Serialize;

use crate::trainer::error::TrainError;
use crate::trainer::grads::{Gradients, all_finite};
use crate::trainer::guard::{Guard, GuardConfig, LossSpike, OnNonFinite, OnSpike};
use crate::trainer::step::{TrainBackend, inputs, loss_sum};

/// A loss spike and the examples behind it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Spike {
    /// The loss, and the losses before it.
    #[serde(skip)]
    pub stats: LossSpike,
    /// The step's examples of the highest mean loss: their place in the data, and that loss.
    pub examples: Vec<(String, f64)>,
}

/// A step whose results are to be checked before the weights change.
pub(crate) struct StepChecks<'a, A: TrainBackend> {
    /// From 0.
    pub(crate) step: u64,
    /// The model before the step.
    pub(crate) model: &'a CausalLm<A>,
    pub(crate) config: &'a ModelConfig,
    pub(crate) data: &'a Dataset,
    /// The step's micro-batches.
    pub(crate) batches: &'a [Batch],
}

impl<A: TrainBackend> StepChecks<'_, A> {
    /// Refuses a loss of `batch` that is NaN or infinite, and finds where it comes from.
    pub(crate) fn loss_is_finite(&self, loss: f64, batch: &Batch) -> Result<(), TrainError> {
        if loss.is_finite() {
            return Ok(());
        }
        let plain = self.model.valid();
        let found = first_non_finite_weight(&plain)
            .map(|tensor| (0, format!("the weight {tensor}")))
            .or_else(|| first_non_finite_activation(&plain, self.config, batch));
        let (at, tensor) = found.unwrap_or((0, "the loss itself".into()));
        let example = sources(self.data, &batch.examples[at..=at]);
        Err(TrainError::Loss { step: self.step + 1, loss, example, tensor })
    }

    /// What is wrong with the loss (`fault`) or the gradients, if anything.
    ///
    /// # Errors
    /// [`TrainError::Unreached`], in the first step.
    pub(crate) fn after_backward(
        &self,
        fault: Option<TrainError>,
        gradients: &Gradients<A::InnerBackend>,
        norm: f64,
    ) -> Result<Option<TrainError>, TrainError> {
        let fault = fault.or_else(|| self.gradients_are_finite(gradients, norm).err());
        if self.step == 0 && fault.is_none() {
            every_parameter_was_reached(self.model, gradients, self.batches)?;
        }
        Ok(fault)
    }

    /// Refuses gradients whose norm, `norm`, is NaN or infinite.
    fn gradients_are_finite(
        &self,
        gradients: &Gradients<A::InnerBackend>,
        norm: f64,
    ) -> Result<(), TrainError> {
        if norm.is_finite() {
            return Ok(());
        }
        // The norm of finite gradients can overflow too; then no single tensor is to blame.
        let tensor = gradients.first_non_finite().unwrap_or("all parameters, taken together,");
        let examples: Vec<usize> = self.batches.iter().flat_map(|b| b.examples.clone()).collect();
        let examples = sources(self.data, &examples);
        Err(TrainError::Gradient { step: self.step + 1, tensor: tensor.into(), examples })
    }

    /// The loss spike, if `loss` is far above the ones before.
    pub(crate) fn spike(
        &self,
        loss: f64,
        guard: &mut Guard,
        config: &GuardConfig,
    ) -> Option<Spike> {
        let stats = guard.check_loss(loss, config)?;
        let Self { model, config, data, batches, .. } = self;
        Some(Spike {
            stats,
            examples: highest_loss_examples(&model.valid(), config, data, batches),
        })
    }

    /// Why the step leaves the weights unchanged, if it does.
    ///
    /// # Errors
    /// [`TrainError`], where the guards stop the run.
    pub(crate) fn skip(
        &self,
        fault: Option<TrainError>,
        spike: Option<&Spike>,
        guard: &mut Guard,
        config: &GuardConfig,
    ) -> Result<Option<String>, TrainError> {
        let why = match (fault, spike) {
            (Some(fault), _) if config.on_nonfinite == OnNonFinite::Stop => return Err(fault),
            (Some(fault), _) => fault,
            (None, Some(spike)) if config.on_spike == OnSpike::Stop => {
                return Err(spike_error(self.step, spike));
            }
            (None, Some(spike)) if config.on_spike == OnSpike::Skip => {
                spike_error(self.step, spike)
            }
            (None, _) => {
                guard.step_made();
                return Ok(None);
            }
        };
        let text = why.to_string();
        guard.step_skipped(why, config)?;
        Ok(Some(text))
    }
}

/// Refuses a trainable parameter without a gradient, or with one that is zero without a reason.
///
/// Reasons are: B is zero (for A), and every supervised token is predicted from the first position of a sequence, which
/// attends to itself alone (for queries and keys).
fn every_parameter_was_reached<A: TrainBackend>(
    model: &CausalLm<A>,
    gradients: &Gradients<A::InnerBackend>,
    batches: &[Batch],
) -> Result<(), TrainError> {
    struct Unreached<'a, B: Backend> {
        gradients: &'a Gradients<B>,
        first_positions_only: bool,
        names: Vec<String>,
        zero_bs: Vec<String>,
    }
    impl<A: TrainBackend> ParamVisitor<A> for Unreached<'_, A::InnerBackend> {
        fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<A, D>>) {
            if !param.is_require_grad() {
                return;
            }
            if let Some(adapter) = adapter_with(AdapterRole::B, name)
                && is_zero(param.val().inner())
            {
                self.zero_bs.push(adapter.to_string());
            }
            let reached = self.gradients.get(name).is_some_and(|g| !is_zero(g.value.clone()));
            let is_query_or_key =
                matches!(LinearRole::at_path(name), Some(LinearRole::Query | LinearRole::Key));
            // Added tokens may not occur in the first step.
            let is_excused = self.first_positions_only && is_query_or_key
                || name == "model.embed_tokens.tokens.rows";
            if !reached && !is_excused {
                self.names.push(name.to_string());
            }
        }
    }
    let first_positions_only =
        batches.iter().all(|b| b.targets.iter().all(|target| b.positions[target.index] == 0));
    let mut walk =
        Unreached { gradients, first_positions_only, names: Vec::new(), zero_bs: Vec::new() };
    for_each_param::<A, _>(model, &mut walk);
    let Unreached { mut names, zero_bs, .. } = walk;
    names.retain(|name| {
        let adapter = adapter_with(AdapterRole::A, name);
        adapter.is_none_or(|adapter| !zero_bs.iter().any(|zero| zero == adapter))
    });
    if names.is_empty() {
        return Ok(());
    }
    let count = names.len();
    names.truncate(5);
    Err(TrainError::Unreached { count, names: names.join(", ") })
}

/// The path of the adapter whose parameter of this role is `name`.
fn adapter_with(role: AdapterRole, name: &str) -> Option<&str> {
    let param = AdapterParam::at_path(name).filter(|param| param.role == role)?;
    name.strip_suffix(param.name)
}

fn is_zero<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> bool {
    tensor.abs().max().into_data().iter::<f64>().all(|greatest| greatest == 0.0)
}

fn first_non_finite_weight<B: Backend>(model: &CausalLm<B>) -> Option<String> {
    struct First(Option<String>);
    impl<B: Backend> ParamVisitor<B> for First {
        fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>) {
            if self.0.is_none() && !all_finite(param.val()) {
                self.0 = Some(name.to_string());
            }
        }
    }
    let mut first = First(None);
    for_each_param(model, &mut first);
    first.0
}

/// The first sequence of the batch with an activation that is not finite, and that activation.
fn first_non_finite_activation<B: ModelBackend>(
    model: &CausalLm<B>,
    config: &ModelConfig,
    batch: &Batch,
) -> Option<(usize, String)> {
    for (sequence, alone) in batch.sequences().enumerate() {
        let inputs = inputs(config, &alone, &model.device());
        let mut x = model.embed(&inputs);
        for (i, layer) in model.model.layers.iter().enumerate() {
            x = layer.forward(x, &inputs, None);
            if !all_finite(x.clone()) {
                return Some((sequence, format!("the output of model.layers.{i}")));
            }
        }
        let [rows, seq, width] = x.dims();
        if !all_finite(model.head(x.reshape([rows * seq, width]))) {
            return Some((sequence, "the logits".into()));
        }
    }
    None
}

/// Maximum number of examples that are named.
const NAMED: usize = 5;

/// The examples of the highest mean loss: their place in the data, and that loss. Each is computed separately.
fn highest_loss_examples<B: ModelBackend>(
    model: &CausalLm<B>,
    config: &ModelConfig,
    data: &Dataset,
    batches: &[Batch],
) -> Vec<(String, f64)> {
    let mut losses = Vec::new();
    for alone in batches.iter().flat_map(Batch::sequences) {
        if !alone.targets.is_empty() {
            let loss = loss_sum(model, config, &alone) / alone.targets.len() as f64;
            losses.push((alone.examples[0], loss));
        }
    }
    losses.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let named = |(example, loss)| (data.examples.source(example).to_string(), loss);
    losses.into_iter().take(NAMED).map(named).collect()
}

fn spike_error(step: u64, spike: &Spike) -> TrainError {
    let Spike { stats, examples } = spike;
    let named: Vec<String> =
        examples.iter().map(|(place, loss)| format!("{place} ({loss:.3})")).collect();
    TrainError::Spike {
        step: step + 1,
        loss: stats.loss,
        mean: stats.mean,
        deviation: stats.deviation,
        examples: named.join(", "),
    }
}

/// Places of examples in their files.
fn sources(data: &Dataset, examples: &[usize]) -> String {
    let mut places: Vec<String> =
        examples.iter().take(NAMED).map(|&i| data.examples.source(i).to_string()).collect();
    if examples.len() > places.len() {
        places.push(format!("{} more", examples.len() - places.len()));
    }
    places.join(", ")
}

#[cfg(all(test, feature = "ndarray"))]
mod tests {
    use burn_ndarray::NdArray;
    use emberlm_data::ExampleOptions;
    use emberlm_lora::{LoraConfig, inject};

    use super::*;
    use crate::WeightForm;
    use crate::base::builtin;
    use crate::trainer::step::{Recompute, StepOptions, Training, loss_and_grads};

    type Device = Training<NdArray<f32>>;

    fn first_step() -> (CausalLm<Device>, Gradients<NdArray<f32>>, Batch) {
        let base = builtin::base().unwrap();
        let mut model = base.build::<Device>(WeightForm::default(), &Default::default()).unwrap();
        inject(model.linears_mut(), &LoraConfig::default(), 0, &Default::default()).unwrap();
        let rows = &builtin::train_rows().unwrap()[..1];
        let data = Dataset::build(rows, &base.tokenizer, &ExampleOptions::default()).unwrap();
        let batch = Batch::collate(&[(0, &data.examples.get(0))], 0);
        let mut gradients = Gradients::default();
        let options = StepOptions::new(1.0, Recompute::None);
        loss_and_grads(&model, &base.config, &batch, options, &mut gradients);
        (model, gradients, batch)
    }

    #[test]
    fn a_fresh_adapter_passes_although_the_gradient_of_a_is_zero() {
        let (model, gradients, batch) = first_step();
        every_parameter_was_reached(&model, &gradients, &[batch]).unwrap();
    }

    #[test]
    fn a_parameter_without_a_gradient_is_named() {
        let (mut model, gradients, batch) = first_step();
        // Trainable only now, so that it has no gradient.
        let embedding = &mut model.model.embed_tokens.weight;
        *embedding = embedding.clone().map(|weight| weight.require_grad());
        let error = every_parameter_was_reached(&model, &gradients, &[batch]).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("left 1 trainable"), "{message}");
        assert!(message.contains("model.embed_tokens.weight"), "{message}");
    }
}
