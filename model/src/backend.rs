//! The backend's share of a decoder: the operations that are worth a kernel of their own.

use burn::tensor::{Int, Tensor, activation};
use emberlm_lora::LoraBackend;

use crate::{Activation, AttentionMask};

/// A backend that runs a decoder.
///
/// Every operation has a portable default in Burn's own operations, which autodiff differentiates by itself. A backend
/// with a kernel overrides it, and must equal the default in value and gradient.
pub trait ModelBackend: LoraBackend {
    /// `x / √(mean(x²) + eps) · weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).
    ///
    /// `x`, output: `[tokens, features]`; `weight`: `[features]`.
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        let mean_square = x.clone().powi_scalar(2).mean_dim(1);
        x / (mean_square + eps).sqrt() * weight.unsqueeze()
    }

    /// Rotates the halves of each head's features: `(a, b) -> (a·cos − b·sin, b·cos + a·sin)`.
    ///
    /// `x`, output: `[batch, heads, seq, head_dim]`; `cos`, `sin`: `[batch, 1, seq, head_dim / 2]`.
    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        let [_, _, _, head_dim] = x.dims();
        let first = x.clone().narrow(3, 0, head_dim / 2);
        let second = x.narrow(3, head_dim / 2, head_dim / 2);
        let rotated_first = first.clone() * cos.clone() - second.clone() * sin.clone();
        let rotated_second = second * cos + first * sin;
        Tensor::cat(vec![rotated_first, rotated_second], 3)
    }

    /// `activation(gate) · up`, element by element, on `[tokens, features]` (Shazeer, 2020, arXiv:2002.05202).
    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        activation.apply(gate) * up
    }

    /// The gradients of [`gated`](Self::gated) by gate and by up, for the output's gradient `grad`.
    fn gated_backward(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        activation: Activation,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        let d_up = grad.clone() * activation.apply(gate.clone());
        (grad * up * activation.derivative(gate), d_up)
    }

    /// Attention in which a query sees what `mask` lets it see; softmax of `q · kᵀ · scale`.
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
        mask: &AttentionMask<Self>,
        scale: f64,
    ) -> Tensor<Self, 4> {
        let [batch, heads, seq, head_dim] = q.dims();
        let [_, kv_heads, keys, _] = k.dims();
        // The query heads of a group lie one after another: stacked along the sequence they share one product with their keys.
        let group = heads / kv_heads;
        let q = (q * scale).reshape([batch, kv_heads, group * seq, head_dim]);
        let scores = q.matmul(k.transpose()).reshape([batch, heads, seq, keys]);
        let scores = match mask.additive() {
            Some(mask) => scores + mask,
            None => scores,
        };
        let shares = activation::softmax(scores, 3);
        shares
            .reshape([batch, kv_heads, group * seq, keys])
            .matmul(v)
            .reshape([batch, heads, seq, head_dim])
    }

    /// The sum over rows of `-log softmax(logits)[target]`.
    ///
    /// `logits`: `[rows, vocab]`; `targets`: `[rows]`; output: `[1]`.
    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
    ) -> Tensor<Self, 1> {
        let [rows, _] = logits.dims();
        let greatest = logits.clone().detach().max_dim(1);
        let log_sum = (logits.clone() - greatest.clone()).exp().sum_dim(1).log() + greatest;
        let chosen = logits.gather(1, targets.reshape([rows, 1]));
        (log_sum - chosen).sum()
    }
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::ModelBackend;
    use burn_flex::Flex;
    use burn_ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArray, NdArrayTensor, QuantElement, SharedArray,
    };

    impl ModelBackend for Flex {}
    impl<E: FloatNdArrayElement, I: IntNdArrayElement, Q: QuantElement> ModelBackend
        for NdArray<E, I, Q>
    where
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
    }
}

#[cfg(feature = "cube")]
mod cube {
    use super::ModelBackend;
    use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
    use burn_fusion::{Fusion, FusionBackend};

    impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> ModelBackend
        for CubeBackend<R, F, I, BT>
    {
    }
    impl<B: FusionBackend + ModelBackend> ModelBackend for Fusion<B> {}
}
