//! Stochastic gradient descent, as `torch.optim.SGD` computes it.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use serde::Serialize;

use crate::settings::Reader;
use crate::trainer::optimizer::adamw::{elements, weight_decay};

use crate::trainer::optimizer::rule::{Momentum, ParamUpdate, UpdateRule};

/// The constants of SGD.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SgdConfig {
    /// What remains of the running sum of gradients from step to step; 0: there is none, and no state.
    pub momentum: f64,
    /// Whether the step looks ahead along the sum (Nesterov).
    pub nesterov: bool,
    /// Share of a weight that is added to its gradient.
    pub weight_decay: f64,
}

impl SgdConfig {
    /// A momentum of 0.9, without decay.
    pub const DEFAULT: Self = Self { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        let (momentum, nesterov) = momentum(s, self.momentum, self.nesterov);
        if nesterov && momentum == 0.0 {
            let reason = "Nesterov momentum needs a momentum above 0";
            let remedy = "remove train.nesterov, or set a momentum";
            s.contradiction(["nesterov", "momentum"], reason, remedy);
        }
        Self { momentum, nesterov, weight_decay: weight_decay(s, self.weight_decay) }
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, _path: &str, shape: &[usize]) -> u64 {
        if self.momentum == 0.0 { 0 } else { 4 * elements(shape) }
    }
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// `train.momentum` and `train.nesterov`.
pub(crate) fn momentum(s: &mut Reader, momentum: f64, nesterov: bool) -> (f64, bool) {
    let momentum = s
        .number("momentum", "Decay rate of the running sum (sgd) or mean (muon) of gradients")
        .at_least(0.0)
        .below(1.0)
        .or(momentum);
    let nesterov = s.boolean("nesterov", "Nesterov momentum").or(nesterov);
    (momentum, nesterov)
}

impl<B: Backend> UpdateRule<B> for SgdConfig {
    type State = Momentum<B>;

    /// `g ← g + decay·w`, `m ← momentum·m + g` (at first `m ← g`), `w ← w − rate·m`; with Nesterov
    /// `w ← w − rate·(g + momentum·m)`.
    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<Momentum<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<Momentum<B>>) {
        let gradient = match at.decay(self.weight_decay) {
            0.0 => gradient,
            decay => gradient + weight.clone() * decay,
        };
        if self.momentum == 0.0 {
            return (weight - gradient * at.rate, None);
        }
        let sum = match old {
            None => gradient.clone(),
            Some(Momentum(old)) => old * self.momentum + gradient.clone(),
        };
        let toward =
            if self.nesterov { gradient + sum.clone() * self.momentum } else { sum.clone() };
        (weight - toward * at.rate, Some(Momentum(sum)))
    }
}
