//! Learning rate and weight decay by kind of parameter: LoRA's A and B, embeddings, norms and biases.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use emberlm_lora::{AdapterParam, AdapterRole};

use crate::trainer::grads::Gradients;
use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// Learning rate and weight decay by kind of parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamGroups {
    /// Learning rate of B relative to A's (LoRA+; Hayou et al., 2024, arXiv:2402.12354).
    pub lora_plus_ratio: f64,
    /// Learning rate of embeddings and output head relative to the rest.
    pub embedding_ratio: f64,
    /// Whether norms and biases (everything that is not a matrix) decay too.
    pub decay_norms_and_biases: bool,
    /// Steps over which the gradients of A and B are measured before their rates are balanced; 0: no balancing.
    pub calibrate_ab: u64,
}

impl Default for ParamGroups {
    /// One rate for all parameters; decay for matrices only.
    fn default() -> Self {
        Self {
            lora_plus_ratio: 1.0,
            embedding_ratio: 1.0,
            decay_norms_and_biases: false,
            calibrate_ab: 0,
        }
    }
}

/// Factors of the learning rates of an adapter's two matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AbFactors {
    /// Of A.
    pub a: f64,
    /// Of B.
    pub b: f64,
}

impl AbFactors {
    const EQUAL: Self = Self { a: 1.0, b: 1.0 };
}

/// Whether a parameter is the embedding or the output head itself, not its adapter.
pub(crate) fn is_embedding_or_head(path: &str) -> bool {
    AdapterParam::at_path(path).is_none()
        && path.split('.').any(|part| part == "embed_tokens" || part == "lm_head")
}

impl ParamGroups {
    /// The factor of the learning rate for a parameter.
    pub(crate) fn rate(&self, path: &str, measured: AbFactors) -> f64 {
        match AdapterParam::at_path(path).map(|param| param.role) {
            Some(AdapterRole::A) => measured.a,
            Some(AdapterRole::B) => measured.b * self.lora_plus_ratio,
            None if is_embedding_or_head(path) => self.embedding_ratio,
            None => 1.0,
        }
    }

    /// Whether a parameter has weight decay.
    pub(crate) fn decays(&self, shape: &[usize]) -> bool {
        self.decay_norms_and_biases || shape.len() > 1
    }
}

/// Balances the rates of A and B by their gradients.
///
/// Over the first N steps the mean magnitudes of the gradients of all A and of all B are summed, G_A and G_B. From then on
/// A's rate is multiplied by `√(G_B / G_A)` and B's by `√(G_A / G_B)`: rate times mean gradient is the same for both, and the
/// geometric mean of the two rates is the learning rate. Where one of the sums is 0, nothing changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calibration {
    steps: u64,
    /// Of A and B.
    sums: [f64; 2],
}

const ROLE: &str = "calibration";
const PATH: &str = "mean_gradients_a_b";

impl Calibration {
    /// A calibration before the first step; `None` if the groups have none.
    pub(crate) fn new(steps: u64) -> Option<Self> {
        (steps > 0).then_some(Self { steps, sums: [0.0; 2] })
    }

    pub(crate) fn put(&self, state: &mut OptimizerState) {
        state.put_f64(ROLE, PATH, &self.sums);
    }

    pub(crate) fn take(
        steps: u64,
        state: &mut StateReader<'_>,
    ) -> Result<Option<Self>, StateError> {
        if steps == 0 {
            return Ok(None);
        }
        let sums = state.f64s(ROLE, PATH, 2)?;
        Ok(Some(Self { steps, sums: [sums[0], sums[1]] }))
    }

    /// Measures the gradients of step `step`, from 1, if it is one of the first.
    pub(crate) fn observe<B: Backend>(&mut self, step: u64, gradients: &Gradients<B>) {
        if step > self.steps {
            return;
        }
        let mut magnitudes: Vec<Tensor<B, 1>> = Vec::new();
        let mut which = Vec::new();
        for (path, gradient) in gradients.iter() {
            let factor = match AdapterParam::at_path(path).map(|param| param.role) {
                Some(AdapterRole::A) => 0,
                Some(AdapterRole::B) => 1,
                None => continue,
            };
            which.push((factor, gradient.value.dims()[0]));
            magnitudes.push(gradient.value.clone().abs().sum());
        }
        if magnitudes.is_empty() {
            return;
        }
        let (mut sums, mut counts) = ([0.0; 2], [0usize; 2]);
        let magnitudes = Tensor::cat(magnitudes, 0).into_data();
        for ((factor, elements), magnitude) in which.into_iter().zip(magnitudes.iter::<f64>()) {
            sums[factor] += magnitude;
            counts[factor] += elements;
        }
        for (total, (sum, count)) in self.sums.iter_mut().zip(sums.into_iter().zip(counts)) {
            *total += sum / count.max(1) as f64;
        }
    }

    /// The factors at step `step`, from 1.
    pub(crate) fn factors(&self, step: u64) -> AbFactors {
        let [a, b] = self.sums;
        let root = (b / a).sqrt();
        if step <= self.steps || !root.is_finite() || root == 0.0 {
            return AbFactors::EQUAL;
        }
        AbFactors { a: root, b: root.recip() }
    }
}

/// The factors of an optional calibration.
pub(crate) fn factors(calibration: Option<&Calibration>, step: u64) -> AbFactors {
    calibration.map_or(AbFactors::EQUAL, |calibration| calibration.factors(step))
}
