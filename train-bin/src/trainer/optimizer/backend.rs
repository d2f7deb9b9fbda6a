//! An optimizer's operation of the backend: AdamW's step.

use burn::tensor::Tensor;
use emberlm_model::ModelBackend;

use crate::trainer::optimizer::adamw::{AdamWStep, Moments};

/// A backend that runs a model and its optimizer.
///
/// The default composes Burn's operations, which `Fusion` fuses into one kernel. A backend with a faster kernel overrides
/// it, and must equal it.
pub trait OptimizerBackend: ModelBackend {
    /// The weight and the moments after a step of AdamW. All are `[elements]`; `old`: the moments before, `None` at the first
    /// step.
    fn adamw(
        step: AdamWStep,
        weight: Tensor<Self, 1>,
        gradient: Tensor<Self, 1>,
        old: Option<Moments<Self>>,
    ) -> (Tensor<Self, 1>, Moments<Self>) {
        portable_adamw(step, weight, gradient, old)
    }
}

/// A step of AdamW composed of Burn's operations. Kernels are tested against it.
pub fn portable_adamw<B: ModelBackend>(
    step: AdamWStep,
    weight: Tensor<B, 1>,
    gradient: Tensor<B, 1>,
    old: Option<Moments<B>>,
) -> (Tensor<B, 1>, Moments<B>) {
    let AdamWStep { beta1, beta2, eps, root_bias2, change, keep } = step;
    let moments = match old {
        None => Moments {
            first: gradient.clone() * (1.0 - beta1),
            second: gradient.powi_scalar(2) * (1.0 - beta2),
        },
        Some(old) => Moments {
            first: old.first * beta1 + gradient.clone() * (1.0 - beta1),
            second: old.second * beta2 + gradient.powi_scalar(2) * (1.0 - beta2),
        },
    };
    let root = moments.second.clone().sqrt() / root_bias2 + eps;
    let moved = moments.first.clone() / root * change;
    (weight * keep - moved, moments)
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    use super::OptimizerBackend;

    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> OptimizerBackend
        for NdArray<E, I, Q>
    where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
    }
}

#[cfg(feature = "wgpu")]
impl OptimizerBackend for burn_wgpu::Wgpu {}

#[cfg(feature = "cuda")]
impl OptimizerBackend for burn_cuda::Cuda {}
