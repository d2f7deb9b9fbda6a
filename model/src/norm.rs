//! RMSNorm.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};

use crate::{Keep, ModelBackend};

/// `x / √(mean(x²) + eps) · weight`.
#[derive(Module, Debug)]
pub struct RmsNorm<B: Backend> {
    /// `[features]`.
    pub weight: Param<Tensor<B, 1>>,
    /// Added to the mean square.
    pub eps: f64,
}

impl<B: Backend> RmsNorm<B> {
    pub(crate) fn new(weight: Tensor<B, 1>, eps: f64) -> Self {
        Self { weight: Param::initialized(ParamId::new(), weight), eps }
    }
}

impl<B: ModelBackend> RmsNorm<B> {
    /// `[tokens, features] -> [tokens, features]`. `keep` decides whether the output is kept for backward.
    pub fn forward(&self, x: Tensor<B, 2>, keep: Keep) -> Tensor<B, 2> {
        match keep {
            Keep::All => B::rms_norm(x, self.weight.val(), self.eps),
            Keep::Costly => B::rms_norm_recomputed(x, self.weight.val(), self.eps),
        }
    }
}
