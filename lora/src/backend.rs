//! The backend's operation for adapters: base plus delta.

use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::QuantBackend;
use emberlm_quant::portable::in_type;

use crate::Dropout;

/// A backend that adds an adapter's delta.
///
/// The defaults compose Burn's operations; a fused kernel overrides them and must equal them. Under autodiff the
/// operation is one node (`autodiff.rs`).
pub trait LoraBackend: QuantBackend {
    /// `base + (x · Aᵀ) · Bᵀ · scaling`, in the type of `base` and `x`, and the narrow product `x · Aᵀ`, which the
    /// gradient needs.
    ///
    /// # Shapes
    /// - `base`, output: `[tokens, d_out]`; `x`: `[tokens, d_in]`
    /// - `lora_a`: `[r, d_in]`, `lora_b`: `[d_out, r]`
    /// - narrow product: `[tokens, r]`
    fn add_delta_forward(
        base: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        scaling: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        let [lora_a, lora_b] = [lora_a, lora_b].map(|factor| in_type(factor, x.dtype()));
        let narrow = x.matmul(lora_a.transpose());
        // Scaling the [tokens, r] factor costs d_out / r times less than scaling the delta itself.
        let delta = (narrow.clone() * scaling).matmul(lora_b.transpose());
        (base + delta, narrow)
    }

    /// `base + (dropout(x) · Aᵀ) · Bᵀ · scaling`; shapes as in [`add_delta_forward`](Self::add_delta_forward).
    ///
    /// Under autodiff only `x` is kept: backward recomputes the mask and the masked `x`.
    fn add_delta(
        base: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        scaling: f64,
        dropout: Option<Dropout>,
    ) -> Tensor<Self, 2> {
        let x = match dropout {
            Some(dropout) => dropout.apply(x),
            None => x,
        };
        Self::add_delta_forward(base, x, lora_a, lora_b, scaling).0
    }

    /// The gradients of the delta for the output's gradient `grad`; the gradient by `base` is `grad` itself. `x` and
    /// its gradient are taken after dropout. The factors' gradients have the factors' type.
    fn add_delta_backward(
        x: Tensor<Self, 2>,
        narrow: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        scaling: f64,
    ) -> DeltaGradients<Self> {
        let types = [lora_a.dtype(), lora_b.dtype()];
        let [lora_a, lora_b] = [lora_a, lora_b].map(|factor| in_type(factor, grad.dtype()));
        let d_b = grad.clone().transpose().matmul(narrow * scaling);
        let d_narrow = grad.matmul(lora_b) * scaling;
        let d_a = d_narrow.clone().transpose().matmul(x);
        let [d_a, d_b] = [in_type(d_a, types[0]), in_type(d_b, types[1])];
        DeltaGradients { d_x: d_narrow.matmul(lora_a), d_a, d_b }
    }
}

/// The gradients of an adapter's delta.
pub struct DeltaGradients<B: Backend> {
    /// `[tokens, d_in]`.
    pub d_x: Tensor<B, 2>,
    /// `[r, d_in]`.
    pub d_a: Tensor<B, 2>,
    /// `[d_out, r]`.
    pub d_b: Tensor<B, 2>,
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use super::LoraBackend;
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

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
