//! The backend's operations on weights.

use burn::tensor::{DType, Tensor, backend::Backend};

use crate::tensor_file::FloatDtype;
use crate::{Blockwise, DynamicMap, Packing, Quantized, blockwise, portable};

/// Elements of the panels in which the CPU kernels decode a weight: 16 MiB in f32, large enough not to slow down the
/// product.
pub const PANEL: usize = 1 << 22;

/// A backend that multiplies by every form of [`Weight`](crate::Weight).
///
/// The defaults compose Burn's operations; a kernel overrides them and must equal them. Under autodiff the product with
/// a quantized weight is one node (`autodiff.rs`).
pub trait QuantBackend: Backend {
    /// The layout of bytes on the device.
    const PACKING: Packing = Packing::Words;

    /// Whether a device supports weights of this type. Every backend has f32 (or instead its own float type).
    fn has_float_type(dtype: FloatDtype, device: &Self::Device) -> bool {
        let _ = device;
        dtype == FloatDtype::F32
    }

    /// The type of activations for weights of type `weights`.
    fn activation_type(weights: DType) -> DType {
        weights
    }

    /// `x · Wᵀ` for a dense weight, in the type of `x`; the weight's may differ. Under autodiff the product with a
    /// frozen weight is one node (`autodiff.rs`).
    ///
    /// # Shapes
    /// - `x`: `[tokens, d_in]`
    /// - `weight`: `[d_out, d_in]`, as Hugging Face stores it
    /// - output: `[tokens, d_out]`
    fn matmul_dense(x: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        portable::matmul_dense(x, weight)
    }

    /// The gradient of [`matmul_dense`](Self::matmul_dense) by `x`, `grad · W`: `[tokens, d_out] -> [tokens, d_in]`.
    fn matmul_dense_backward(grad: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        portable::matmul_dense_backward(grad, weight)
    }

    /// A quantized weight as a dense matrix `[d_out, d_in]` of this float type.
    fn dequantize_weight(weight: &Quantized<Self>, dtype: DType) -> Tensor<Self, 2> {
        portable::dequantize(weight, dtype)
    }

    /// `x · Wᵀ` for a quantized weight: `[tokens, d_in] -> [tokens, d_out]`.
    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let dense = Self::dequantize_weight(weight, x.dtype());
        x.matmul(dense.transpose())
    }

    /// The gradient of [`matmul_quantized`](Self::matmul_quantized) by `x`, `grad · W`:
    /// `[tokens, d_out] -> [tokens, d_in]`.
    fn matmul_quantized_backward(
        grad: Tensor<Self, 2>,
        weight: &Quantized<Self>,
    ) -> Tensor<Self, 2> {
        let dense = Self::dequantize_weight(weight, grad.dtype());
        grad.matmul(dense)
    }

    /// Quantizes a vector to 8 bits, block by block: `[len]`. Not differentiable.
    fn quantize_blockwise(values: Tensor<Self, 1>, map: DynamicMap) -> Blockwise<Self> {
        blockwise::quantize(values, map)
    }

    /// Dequantizes a vector in 8 bits: `[len]`.
    fn dequantize_blockwise(vector: &Blockwise<Self>) -> Tensor<Self, 1> {
        blockwise::dequantize(vector)
    }
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use super::{Packing, QuantBackend};
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> QuantBackend
        for NdArray<E, I, Q>
    where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
        const PACKING: Packing = Packing::Bytes;
    }
}
