//! The backend's share of a weight: multiplying by it.

use burn::tensor::{Tensor, backend::Backend};

/// A backend that multiplies by every form of [`Weight`](crate::Weight).
///
/// The default is the portable composition of Burn's operations, which autodiff differentiates by itself;
/// a backend with a faster kernel overrides it, and must equal it.
pub trait QuantBackend: Backend {
    /// `x · Wᵀ` for a dense weight.
    ///
    /// # Shapes
    /// - `x`: `[tokens, d_in]`
    /// - `weight`: `[d_out, d_in]`, as Hugging Face stores it
    /// - output: `[tokens, d_out]`
    fn matmul_dense(x: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        x.matmul(weight.transpose())
    }
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::QuantBackend;
    use burn_flex::Flex;
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    impl QuantBackend for Flex {}
    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> QuantBackend
        for NdArray<E, I, Q>
    where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
    }
}

#[cfg(feature = "cube")]
mod cube {
    use super::QuantBackend;
    use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
    use burn_fusion::{Fusion, FusionBackend};

    impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> QuantBackend
        for CubeBackend<R, F, I, BT>
    {
    }
    impl<B: FusionBackend + QuantBackend> QuantBackend for Fusion<B> {}
}

impl<B: QuantBackend, C: burn_autodiff::checkpoint::strategy::CheckpointStrategy> QuantBackend
    for burn_autodiff::Autodiff<B, C>
{
}
