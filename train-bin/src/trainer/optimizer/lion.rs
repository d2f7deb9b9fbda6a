//! Lion (Chen et al., 2023, arXiv:2302.06675): every weight moves by the rate, in the direction of a running mean's sign.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::trainer::optimizer::rule::{Momentum, ParamUpdate, UpdateRule};

/// The constants of Lion. Its rate is a third to a tenth of AdamW's, and its decay as many times larger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionConfig {
    /// Weight of the mean before in the direction.
    pub beta1: f64,
    /// Decay of the mean.
    pub beta2: f64,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl Default for LionConfig {
    /// The paper's, without decay.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
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
        let Self { beta1, beta2, weight_decay } = *self;
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
