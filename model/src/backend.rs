//! Decoder operations that backends implement with kernels.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use emberlm_lora::LoraBackend;

use crate::portable::{self, AttentionGradients};
use crate::{Activation, AttentionMask, Scoring};

/// A backend that runs a decoder.
///
/// Every operation has a portable default ([`portable`]). A kernel overrides it and must equal it in value and
/// gradient. Under autodiff each forward is one node, whose gradient is the matching `_backward` (`autodiff.rs`).
pub trait ModelBackend: LoraBackend {
    /// `x / √(mean(x²) + eps) · weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).
    ///
    /// `x`, output: `[tokens, features]`; `weight`: `[features]`.
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        portable::rms_norm(x, weight, eps)
    }

    /// The gradients of [`rms_norm`](Self::rms_norm) by `x` and by `weight`.
    fn rms_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>) {
        portable::rms_norm_backward(x, weight, grad, eps)
    }

    /// `(x − mean(x)) / √(var(x) + eps) · weight + bias` (Ba et al., 2016, arXiv:1607.06450); with the population
    /// variance (no Bessel correction).
    ///
    /// `x`, output: `[tokens, features]`; `weight`, `bias`: `[features]`.
    fn layer_norm_forward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        bias: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        portable::layer_norm_forward(x, weight, bias, eps)
    }

    /// The gradients of [`layer_norm_forward`](Self::layer_norm_forward) by `x`, by `weight` and by the bias, which has the weight's type.
    fn layer_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>, Tensor<Self, 1>) {
        portable::layer_norm_backward(x, weight, grad, eps)
    }

    /// As [`rms_norm`](Self::rms_norm). Under autodiff the output isn't kept: backward recomputes it from `x`, without
    /// a matrix product.
    fn rms_norm_recomputed(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        Self::rms_norm(x, weight, eps)
    }

    /// Adds a block's output to the residual stream: `x` `[batch, seq, features]`, `y` `[batch · seq, features]`.
    ///
    /// One node under autodiff, because Burn recomputes its own sums in backward, and with them every sum before.
    fn residual(x: Tensor<Self, 3>, y: Tensor<Self, 2>) -> Tensor<Self, 3> {
        let dims = x.dims();
        x + y.reshape(dims)
    }

    /// Splits each token's features into heads: `[batch · seq, heads · head_dim] -> [batch, heads, seq, head_dim]`, a
    /// view.
    ///
    /// One node under autodiff, because Burn's views keep their source until backward.
    fn split_heads(x: Tensor<Self, 2>, dims: [usize; 4]) -> Tensor<Self, 4> {
        let [batch, heads, seq, head_dim] = dims;
        x.reshape([batch, seq, heads, head_dim]).swap_dims(1, 2)
    }

    /// Rotates the halves of each head's features: `(a, b) -> (a·cos − b·sin, b·cos + a·sin)`. Its gradient is the
    /// rotation by `-sin`.
    ///
    /// `x`, output: `[batch, heads, seq, head_dim]`; `cos`, `sin`: `[batch, 1, seq, head_dim / 2]`.
    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        portable::rotate_half(x, cos, sin)
    }

    /// `activation(gate) · up`, element by element, on `[tokens, features]` (Shazeer, 2020, arXiv:2002.05202).
    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        portable::gated(gate, up, activation)
    }

    /// As [`gated`](Self::gated). Under autodiff the output isn't kept: backward recomputes it from `gate` and `up`.
    fn gated_recomputed(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        Self::gated(gate, up, activation)
    }

    /// The gradients of [`gated`](Self::gated) by `gate` and by `up`.
    fn gated_backward(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        activation: Activation,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        portable::gated_backward(gate, up, grad, activation)
    }

    /// Masked attention: softmax of `q · kᵀ · scale`, soft-capped as given by `scoring`, times `v`.
    ///
    /// Query head h reads key and value head `h / (heads / kv_heads)`.
    ///
    /// # Shapes
    /// - `q`, output: `[batch, heads, seq, head_dim]`
    /// - `k`, `v`: `[batch, kv_heads, keys, head_dim]`
    fn causal_attention(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> Tensor<Self, 4> {
        Self::attention_forward(q, k, v, mask, scoring).0
    }

    /// As [`causal_attention`](Self::causal_attention), with the logarithm of each softmax's denominator, `[batch,
    /// heads, seq]`, which the gradient needs in addition to inputs and output.
    fn attention_forward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> (Tensor<Self, 4>, Tensor<Self, 3>) {
        portable::attention_forward(q, k, v, mask, scoring)
    }

    /// The gradients of attention by `q`, `k` and `v`, for the output's gradient `grad`.
    #[allow(
        clippy::too_many_arguments,
        reason = "inputs, outputs of the forward, and the gradient"
    )]
    fn attention_backward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        out: Tensor<Self, 4>,
        log_sum: Tensor<Self, 3>,
        grad: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> AttentionGradients<Self> {
        portable::attention_backward(q, k, v, out, log_sum, grad, mask, scoring)
    }

    /// The sum over rows of `-log softmax(logits)[target]`, of soft-capped logits if `soft_cap` is given.
    ///
    /// `logits`: `[rows, vocab]`; `targets`: `[rows]`; output: `[1]`, in f32 for 16-bit logits.
    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> Tensor<Self, 1> {
        portable::cross_entropy_sum(logits, targets, soft_cap)
    }

    /// `x · factor` with a scalar factor: `[rows, columns]` and `[1]`. In the type of `x`; the factor's may differ.
    fn scaled(x: Tensor<Self, 2>, factor: Tensor<Self, 1>) -> Tensor<Self, 2> {
        portable::scaled(x, factor)
    }

    /// As [`cross_entropy_sum`](Self::cross_entropy_sum), with the gradient by `logits`: `softmax(logits) −
    /// onehot(target)`, times the soft cap's derivative.
    fn cross_entropy_with_grad(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> (Tensor<Self, 1>, Tensor<Self, 2>) {
        portable::cross_entropy_with_grad(logits, targets, soft_cap)
    }
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use super::ModelBackend;
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> ModelBackend
        for NdArray<E, I, Q>
    where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
    }
}
