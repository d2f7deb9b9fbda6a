//! AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), as PyTorch computes it.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, backend::Backend};

use crate::grads::Gradients;
use crate::optimizer::state::{OptimizerState, StateError, StateReader};
use crate::optimizer::{Rule, step_with};

/// The constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    /// PyTorch's, without decay.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// The optimizer and its state: two moments a trainable element.
#[derive(Debug, Clone)]
pub struct AdamW<B: Backend> {
    config: AdamWConfig,
    steps: u64,
    moments: BTreeMap<String, Moments<B>>,
}

/// The state's name for the first moment.
pub(crate) const EXP_AVG: &str = "exp_avg";
/// The state's name for the second.
pub(crate) const EXP_AVG_SQ: &str = "exp_avg_sq";

/// Running means of the gradients and of their squares.
#[derive(Debug, Clone)]
pub(crate) struct Moments<B: Backend> {
    pub(crate) first: Tensor<B, 1>,
    pub(crate) second: Tensor<B, 1>,
}

impl<B: Backend> Moments<B> {
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let of = |tensor: &Tensor<B, 1>| tensor.dims()[0] * tensor.dtype().size();
        of(&self.first) + of(&self.second)
    }

    /// Elements of the parameter.
    pub(crate) fn elements(&self) -> usize {
        self.first.dims()[0]
    }

    pub(crate) fn put(&self, path: &str, state: &mut OptimizerState) {
        state.put(EXP_AVG, path, &self.first);
        state.put(EXP_AVG_SQ, path, &self.second);
    }

    pub(crate) fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let first = state.floats::<B, 1>(EXP_AVG, path, None, device)?;
        let second = state.floats(EXP_AVG_SQ, path, Some(first.dims()), device)?;
        Ok(Self { first, second })
    }
}

impl AdamWConfig {
    /// The weight after step number `step` (from 1) at this rate, and the moments after it. All `[elements]`.
    pub(crate) fn update<B: Backend>(
        self,
        step: u64,
        old: Option<Moments<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
        rate: f64,
    ) -> (Tensor<B, 1>, Moments<B>) {
        let Self { beta1, beta2, eps, weight_decay } = self;
        let moments = match old {
            None => Moments {
                first: gradient.clone() * (1.0 - beta1),
                second: gradient.powi_scalar(2) * (1.0 - beta2),
            },
            Some(old) => Moments {
                first: old.first * beta1 + gradient.clone() * (1.0 - beta1),
                second: old.second * beta2 + gradient.powi_scalar(2) * (1.0 - beta2),
            },
        };
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        let bias1 = 1.0 - beta1.powi(step);
        let bias2 = 1.0 - beta2.powi(step);
        let root = moments.second.clone().sqrt() / bias2.sqrt() + eps;
        let change = moments.first.clone() / root * (rate / bias1);
        (weight * (1.0 - rate * weight_decay) - change, moments)
    }
}

impl<B: Backend> AdamW<B> {
    /// An optimizer that has made no step.
    pub fn new(config: AdamWConfig) -> Self {
        Self { config, steps: 0, moments: BTreeMap::new() }
    }

    /// One step: the model with every parameter moved that has a gradient.
    pub fn step<A, M>(&mut self, model: M, gradients: &Gradients<B>, learning_rate: f64) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        self.steps += 1;
        step_with::<A, M, _>(self, model, gradients, learning_rate)
    }

    /// Bytes that the moments take.
    pub fn state_bytes(&self) -> usize {
        self.moments.values().map(Moments::bytes).sum()
    }

    /// All that it knows beside its constants.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState::new(Self::KIND, self.steps);
        self.moments.iter().for_each(|(path, moments)| moments.put(path, &mut state));
        state
    }

    /// One that goes on where another left off.
    ///
    /// # Errors
    /// [`StateError`] if `state` isn't one of this optimizer.
    pub fn restore(
        config: AdamWConfig,
        state: &OptimizerState,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let mut reader = StateReader::new(Self::KIND, state)?;
        let mut moments = BTreeMap::new();
        for path in reader.paths(&[EXP_AVG, EXP_AVG_SQ]) {
            moments.insert(path.to_owned(), Moments::take(path, &mut reader, device)?);
        }
        reader.finish()?;
        Ok(Self { config, steps: state.steps, moments })
    }
}

impl<B: Backend> Rule<B> for AdamW<B> {
    const KIND: &'static str = "adamw";

    fn shapes(&self) -> Vec<(&str, Vec<usize>)> {
        let moments = self.moments.iter();
        moments.map(|(path, moments)| (path.as_str(), vec![moments.elements()])).collect()
    }

    fn update(
        &mut self,
        name: &str,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
        rate: f64,
    ) -> Tensor<B, 1> {
        let old = self.moments.remove(name);
        let (weight, moments) = self.config.update(self.steps, old, weight, gradient, rate);
        self.moments.insert(name.to_string(), moments);
        weight
    }
}
