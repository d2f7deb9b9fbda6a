//! Stochastic gradient descent, as `torch.optim.SGD` computes it.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::trainer::optimizer::rule::{Momentum, ParamUpdate, UpdateRule};

/// The constants of SGD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// What remains of the running sum of gradients from step to step; 0: there is none, and no state.
    pub momentum: f64,
    /// Whether the step looks ahead along the sum (Nesterov).
    pub nesterov: bool,
    /// Share of a weight that is added to its gradient.
    pub weight_decay: f64,
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
