//! Lion (Chen et al., 2023, arXiv:2302.06675): every weight changes by the rate in the direction of the sign of a running mean.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use serde::Serialize;

use crate::settings::{Pair, Reader};
use crate::trainer::optimizer::adamw::{betas, elements, weight_decay};

use crate::trainer::optimizer::rule::{Momentum, ParamUpdate, UpdateRule};

/// The constants of Lion. Usual rates are a third to a tenth of AdamW's, with a decay larger by the same factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LionConfig {
    /// Weight of the earlier mean in the direction, and decay rate of the mean; each 0 ≤ β < 1.
    pub betas: Pair,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl LionConfig {
    /// As in the paper, without decay.
    pub const DEFAULT: Self = Self { betas: [0.9, 0.99], weight_decay: 0.0 };

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        Self { betas: betas(s, self.betas), weight_decay: weight_decay(s, self.weight_decay) }
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, _path: &str, shape: &[usize]) -> u64 {
        4 * elements(shape)
    }
}

impl Default for LionConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl<B: Backend> UpdateRule<B> for LionConfig {
    type State = Momentum<B>;

    /// `w ← w·(1 − rate·decay) − rate · sign(β₁·m + (1 − β₁)·g)`, then `m ← β₂·m + (1 − β₂)·g`.
    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<Momentum<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<Momentum<B>>) {
        let Self { betas: [beta1, beta2], weight_decay } = *self;
        let (toward, new) = match old {
            None => (gradient.clone() * (1.0 - beta1), gradient * (1.0 - beta2)),
            Some(Momentum(old)) => (
                old.clone() * beta1 + gradient.clone() * (1.0 - beta1),
                old * beta2 + gradient * (1.0 - beta2),
            ),
        };
        let keep = 1.0 - at.rate * at.decay(weight_decay);
        (weight * keep - toward.sign() * at.rate, Some(Momentum(new)))
    }
}
