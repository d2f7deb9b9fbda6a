//! What must hold in every step, and what is said where it doesn't.

use burn::module::{AutodiffModule, Param};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_data::{Batch, Dataset};
use emberlm_lora::walk::{ParamVisitor, for_each_param};
use emberlm_lora::{AdapterParam, AdapterRole};
use emberlm_model::{CausalLm, LinearRole, ModelBackend, ModelConfig};

use crate::trainer::grads::{Gradients, all_finite};
use crate::trainer::step::{TrainBackend, inputs, loss_sum};
use crate::trainer::train::Spike;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A loss that isn't a number.
    #[error(
        "step {step}: the loss is {loss} on {example}; the first tensor that isn't finite is {tensor}. Nothing was saved over. Lower train.learning_rate, or look at that example"
    )]
    Loss {
        /// From 1.
        step: u64,
        /// What it is.
        loss: f64,
        /// Where the example stands.
        example: String,
        /// The first tensor on the way, forward, that holds NaN or infinity.
        tensor: String,
    },
    /// A gradient that isn't a number, from a loss that is.
    #[error(
        "step {step}: the gradient of {tensor} isn't finite, on {examples}. Nothing was saved over. Lower train.learning_rate, or look at these examples"
    )]
    Gradient {
        /// From 1.
        step: u64,
        /// The first parameter, by name.
        tensor: String,
        /// Where the step's examples stand.
        examples: String,
    },
    /// A loss far above the ones before.
    #[error(
        "step {step}: the loss is {loss:.4}, and those before are {mean:.4} on average with a standard deviation of {deviation:.4}. The examples of the highest loss: {examples}. Look at them; or lower train.learning_rate, or set train.on_spike to \"warn\" or \"skip\""
    )]
    Spike {
        /// From 1.
        step: u64,
        /// What it is.
        loss: f64,
        /// Of the losses before.
        mean: f64,
        /// Of the losses before.
        deviation: f64,
        /// Where the examples stand, and their losses.
        examples: String,
    },
    /// Steps that were passed over, one after another.
    #[error(
        "more than {limit} steps in a row were passed over (train.max_skipped). The last one: {why}"
    )]
    TooManySkipped {
        /// How many may be.
        limit: u64,
        /// Why the last one was.
        why: Box<TrainError>,
    },
    /// Parameters that the first step didn't reach.
    #[error(
        "the first step left {count} trainable parameters without a gradient, among them {names}: they are not part of what is computed. This is a fault in the model's wiring; please report it"
    )]
    Unreached {
        /// How many.
        count: usize,
        /// The first few.
        names: String,
    },
}

/// Refuses a loss that is NaN or infinite, and finds out where it comes from.
pub(crate) fn loss_is_finite<A: TrainBackend>(
    loss: f64,
    step: u64,
    model: &CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    batch: &Batch,
) -> Result<(), TrainError> {
    if loss.is_finite() {
        return Ok(());
    }
    let plain = model.valid();
    let found = first_non_finite_weight(&plain)
        .map(|tensor| (0, format!("the weight {tensor}")))
        .or_else(|| first_non_finite_activation(&plain, config, batch));
    let (at, tensor) = found.unwrap_or((0, "the loss itself".into()));
    let example = sources(data, &batch.examples[at..=at]);
    Err(TrainError::Loss { step: step + 1, loss, example, tensor })
}

/// Refuses gradients whose norm, `norm`, is NaN or infinite.
pub(crate) fn gradients_are_finite<B: Backend>(
    norm: f64,
    gradients: &Gradients<B>,
    step: u64,
    data: &Dataset,
    batches: &[Batch],
) -> Result<(), TrainError> {
    if norm.is_finite() {
        return Ok(());
    }
    // Finite gradients whose squares overflow have no norm either; the greatest is as good a name as any.
    let tensor = gradients.first_non_finite().unwrap_or("all parameters, taken together,").into();
    let examples: Vec<usize> = batches.iter().flat_map(|b| b.examples.clone()).collect();
    Err(TrainError::Gradient { step: step + 1, tensor, examples: sources(data, &examples) })
}

/// Refuses a trainable parameter without a gradient, or with one that is zero throughout where mathematics allows another.
///
/// It allows none for A while B is zero, and none for queries and keys where every supervised token is predicted from a
/// sequence's first position, which sees itself alone.
pub(crate) fn every_parameter_was_reached<A: TrainBackend>(
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
            // Added tokens need not occur in the first step.
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

/// Which of the batch's sequences, and the place on its way forward.
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

/// Examples that are named at most.
const NAMED: usize = 5;

/// The examples of the highest mean loss: where they stand, and that loss. Each is computed by itself.
pub(crate) fn highest_loss_examples<B: ModelBackend>(
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

/// The error that a spike is where it stops a run.
pub(crate) fn spike(step: u64, spike: &Spike) -> TrainError {
    let Spike { unusual, examples } = spike;
    let named: Vec<String> =
        examples.iter().map(|(place, loss)| format!("{place} ({loss:.3})")).collect();
    TrainError::Spike {
        step: step + 1,
        loss: unusual.loss,
        mean: unusual.mean,
        deviation: unusual.deviation,
        examples: named.join(", "),
    }
}

/// Where examples stand in their files.
fn sources(data: &Dataset, examples: &[usize]) -> String {
    let mut said: Vec<String> =
        examples.iter().take(NAMED).map(|&i| data.examples.source(i).to_string()).collect();
    if examples.len() > said.len() {
        said.push(format!("{} more", examples.len() - said.len()));
    }
    said.join(", ")
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
        let options = StepOptions {
            scale: 1.0,
            recompute: Recompute::None,
            dropout: None,
            noise: None,
            phases: None,
        };
        loss_and_grads(&model, &base.config, &batch, options, &mut gradients);
        (model, gradients, batch)
    }

    #[test]
    fn a_fresh_adapter_passes_although_no_gradient_reaches_a() {
        let (model, gradients, batch) = first_step();
        every_parameter_was_reached(&model, &gradients, &[batch]).unwrap();
    }

    #[test]
    fn a_parameter_without_a_gradient_is_named() {
        let (mut model, gradients, batch) = first_step();
        // Trainable only now, so that the gradients know nothing of it.
        let embedding = &mut model.model.embed_tokens.weight;
        *embedding = embedding.clone().map(|weight| weight.require_grad());
        let error = every_parameter_was_reached(&model, &gradients, &[batch]).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("left 1 trainable"), "{message}");
        assert!(message.contains("model.embed_tokens.weight"), "{message}");
    }
}
