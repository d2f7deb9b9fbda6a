//! Root-mean-square normalisation.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};

use crate::ModelBackend;

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
    /// `[.., features] -> [.., features]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let dims = x.dims();
        let features = dims[D - 1];
        let rows = dims[..D - 1].iter().product();
        B::rms_norm(x.reshape([rows, features]), self.weight.val(), self.eps).reshape(dims)
    }
}
