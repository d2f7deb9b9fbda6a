//! The matrix of a linear layer.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};

use crate::QuantBackend;

/// The weight `[d_out, d_in]` of a linear layer, in one of its forms.
///
/// A linear layer is a product (weight × bias × adapter), so a new form here multiplies with nothing else.
#[derive(Module, Debug)]
pub enum Weight<B: Backend> {
    /// Every element in the model's float type.
    Dense(Param<Tensor<B, 2>>),
}

impl<B: Backend> Weight<B> {
    /// A frozen dense weight `[d_out, d_in]`.
    pub fn dense(weight: Tensor<B, 2>) -> Self {
        Self::Dense(Param::initialized(ParamId::new(), weight))
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight) => weight.dims(),
        }
    }

    /// Lets gradients reach the weight, or keeps them away.
    pub fn set_trainable(self, trainable: bool) -> Self {
        match self {
            Self::Dense(weight) => Self::Dense(weight.map(|w| w.set_require_grad(trainable))),
        }
    }

    /// The weight as a dense matrix `[d_out, d_in]`.
    pub fn to_dense(&self) -> Tensor<B, 2> {
        match self {
            Self::Dense(weight) => weight.val(),
        }
    }
}

impl<B: QuantBackend> Weight<B> {
    /// `x · Wᵀ`: `[tokens, d_in] -> [tokens, d_out]`.
    pub fn matmul(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Dense(weight) => B::matmul_dense(x, weight.val()),
        }
    }
}
