//! AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), as PyTorch computes it.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use serde::Serialize;

use crate::settings::{Pair, Reader};

use crate::trainer::optimizer::backend::OptimizerBackend;
use crate::trainer::optimizer::rule::{ParamState, ParamUpdate, UpdateRule, tensor_bytes};
use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// The constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdamWConfig {
    /// Decay rates of the first and of the second moment, each 0 ≤ β < 1.
    pub betas: Pair,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl AdamWConfig {
    /// As in PyTorch, without decay.
    pub const DEFAULT: Self = Self { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 };

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        Self {
            betas: betas(s, self.betas),
            eps: eps(s, self.eps),
            weight_decay: weight_decay(s, self.weight_decay),
        }
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, _path: &str, shape: &[usize]) -> u64 {
        8 * elements(shape)
    }
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Elements of a parameter.
pub(crate) fn elements(shape: &[usize]) -> u64 {
    shape.iter().product::<usize>() as u64
}

/// `train.betas`, of all optimizers with two running means.
pub(crate) fn betas(s: &mut Reader, default: Pair) -> Pair {
    s.setting::<Pair>("betas", "Decay rates of the running means")
        .at_least(0.0)
        .below(1.0)
        .tolerated()
        .or(default)
}

/// `train.eps`.
pub(crate) fn eps(s: &mut Reader, default: f64) -> f64 {
    let doc = "Added to the root of the second moment; with adafactor, to squared gradients";
    s.number("eps", doc).above(0.0).also_called(&["adam_epsilon"]).tolerated().or(default)
}

/// `train.weight_decay`, of all optimizers.
pub(crate) fn weight_decay(s: &mut Reader, default: f64) -> f64 {
    s.number("weight_decay", "Weight decay, decoupled as in AdamW except with sgd")
        .at_least(0.0)
        .or(default)
}

/// The coefficients of one step:
/// `m ← β₁·m + (1 − β₁)·g`, `v ← β₂·v + (1 − β₂)·g²`, `w ← keep·w − change · m / (√v / root_bias2 + ε)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// `√(1 − β₂ᵗ)` at step t.
    pub root_bias2: f64,
    /// `rate / (1 − β₁ᵗ)`.
    pub change: f64,
    /// `1 − rate · weight_decay`.
    pub keep: f64,
}

impl AdamWConfig {
    /// The coefficients of step `step`, from 1, for a rate and a weight decay.
    pub fn at(&self, step: u64, rate: f64, weight_decay: f64) -> AdamWStep {
        let Self { betas: [beta1, beta2], eps, .. } = *self;
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        AdamWStep {
            beta1,
            beta2,
            eps,
            root_bias2: (1.0 - beta2.powi(step)).sqrt(),
            change: rate / (1.0 - beta1.powi(step)),
            keep: 1.0 - rate * weight_decay,
        }
    }
}

/// Running means of a parameter's gradients and of their squares: both `[elements]`.
#[derive(Debug, Clone)]
pub struct Moments<B: Backend> {
    /// Of the gradients.
    pub first: Tensor<B, 1>,
    /// Of their squares.
    pub second: Tensor<B, 1>,
}

/// The state's name for the first moment.
pub(crate) const EXP_AVG: &str = "exp_avg";
/// The state's name for the second.
pub(crate) const EXP_AVG_SQ: &str = "exp_avg_sq";

impl<B: Backend> ParamState<B> for Moments<B> {
    const ROLES: &'static [&'static str] = &[EXP_AVG, EXP_AVG_SQ];

    fn bytes(&self) -> usize {
        tensor_bytes(&self.first) + tensor_bytes(&self.second)
    }

    fn shape(&self) -> Vec<usize> {
        self.first.dims().to_vec()
    }

    fn put(&self, path: &str, state: &mut OptimizerState) {
        state.put(EXP_AVG, path, &self.first);
        state.put(EXP_AVG_SQ, path, &self.second);
    }

    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let first = state.floats::<B, 1>(EXP_AVG, path, None, device)?;
        let second = state.floats(EXP_AVG_SQ, path, Some(first.dims()), device)?;
        Ok(Self { first, second })
    }
}

impl<B: OptimizerBackend> UpdateRule<B> for AdamWConfig {
    type State = Moments<B>;

    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<Moments<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<Moments<B>>) {
        let step = self.at(at.step, at.rate, at.decay(self.weight_decay));
        let (weight, moments) = B::adamw(step, weight, gradient, old);
        (weight, Some(moments))
    }
}
