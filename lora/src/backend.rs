//! The backend's share of an adapter: base plus delta.

use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::QuantBackend;

/// A backend that adds an adapter's delta.
///
/// The default composes Burn's operations; a backend with a fused kernel overrides it, and must equal it.
pub trait LoraBackend: QuantBackend {
    /// `base + (x · Aᵀ) · Bᵀ · scaling`.
    ///
    /// # Shapes
    /// - `base`: `[tokens, d_out]`, `x`: `[tokens, d_in]`
    /// - `lora_a`: `[r, d_in]`, `lora_b`: `[d_out, r]`
    /// - output: `[tokens, d_out]`
    fn add_delta(
        base: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        scaling: f64,
    ) -> Tensor<Self, 2> {
        // Scaling the [tokens, r] factor costs d_out / r times less than scaling the delta itself.
        base + (x.matmul(lora_a.transpose()) * scaling).matmul(lora_b.transpose())
    }
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::LoraBackend;
    use burn_flex::Flex;
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    impl LoraBackend for Flex {}
    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> LoraBackend for NdArray<E, I, Q> where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>
    {
    }
}

#[cfg(feature = "cube")]
mod cube {
    use super::LoraBackend;
    use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
    use burn_fusion::{Fusion, FusionBackend};

    impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> LoraBackend
        for CubeBackend<R, F, I, BT>
    {
    }
    impl<B: FusionBackend + LoraBackend> LoraBackend for Fusion<B> {}
}

impl<B: LoraBackend, C: burn_autodiff::checkpoint::strategy::CheckpointStrategy> LoraBackend
    for burn_autodiff::Autodiff<B, C>
{
}

/// Takes a tensor of any rank to `[tokens, features]`, `f` to `[tokens, d_out]`, and back to the rank it had.
pub(crate) fn over_tokens<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    d_out: usize,
    f: impl FnOnce(Tensor<B, 2>) -> Tensor<B, 2>,
) -> Tensor<B, D> {
    let mut dims = x.dims();
    let d_in = dims[D - 1];
    let tokens = dims[..D - 1].iter().product();
    dims[D - 1] = d_out;
    f(x.reshape([tokens, d_in])).reshape(dims)
}
