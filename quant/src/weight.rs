//! The matrix of a linear layer.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Element, Tensor, backend::Backend};

use crate::{QuantBackend, QuantFormat, Quantized};

/// The weight `[d_out, d_in]` of a linear layer, dense or quantized.
///
/// A linear layer is a product (weight × bias × adapter), so a new form here needs no other variants.
#[derive(Module, Debug)]
pub enum Weight<B: Backend> {
    /// Dense, in the backend's float type or a 16-bit one.
    Dense(Param<Tensor<B, 2>>),
    /// NF4, FP4 or int8 codes with their scales; always frozen.
    Quantized(Quantized<B>),
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
            Self::Quantized(weight) => weight.dims(),
        }
    }

    /// The quantized form; `None` if the weight is dense.
    pub fn format(&self) -> Option<QuantFormat> {
        match self {
            Self::Dense(_) => None,
            Self::Quantized(weight) => Some(weight.format()),
        }
    }

    /// Makes the weight trainable or freezes it. A quantized weight has no parameter and always stays frozen; the
    /// trainer checks [`format`](Self::format) and refuses full fine-tuning of such a model.
    pub fn set_trainable(self, trainable: bool) -> Self {
        match self {
            Self::Dense(weight) => Self::Dense(weight.map(|w| w.set_require_grad(trainable))),
            Self::Quantized(weight) => Self::Quantized(weight),
        }
    }

    /// Bytes of memory for the weight.
    pub fn memory(&self) -> usize {
        match self {
            Self::Dense(weight) => {
                weight.dims().iter().product::<usize>() * weight.val().dtype().size()
            }
            Self::Quantized(weight) => weight.memory(),
        }
    }
}

impl<B: QuantBackend> Weight<B> {
    /// The weight as a dense matrix `[d_out, d_in]`, in its stored type, or the backend's float type if quantized.
    pub fn to_dense(&self) -> Tensor<B, 2> {
        match self {
            Self::Dense(weight) => weight.val(),
            Self::Quantized(weight) => B::dequantize_weight(weight, B::FloatElem::dtype()),
        }
    }

    /// `x · Wᵀ`: `[tokens, d_in] -> [tokens, d_out]`.
    pub fn matmul(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Dense(weight) => B::matmul_dense(x, weight.val()),
            Self::Quantized(weight) => B::matmul_quantized(x, weight),
        }
    }
}
