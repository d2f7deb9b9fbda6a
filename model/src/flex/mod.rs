//! CPU kernels for the backend Flex, in f32. Other types use the portable operations.
//!
//! Work is split over rows or heads, and the order of every sum depends only on sizes: the same input gives the same
//! bits with any number of threads.

mod activation;
mod attention;
mod cross_entropy;
mod elementwise;
mod layer_norm;
mod norm;
mod simd;
mod views;

use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor};
use burn_flex::Flex;

use crate::AttentionGradients;
use crate::{Activation, AttentionMask, ModelBackend, Scoring, portable};
use views::{contiguous, from_values};

impl ModelBackend for Flex {
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        if x.dtype() != DType::F32 || weight.dtype() != DType::F32 {
            return portable::rms_norm(x, weight, eps);
        }
        let dims = x.dims();
        let (x, weight) = (contiguous(x), contiguous(weight));
        from_values(norm::forward(x.values(), weight.values(), eps as f32), dims)
    }

    fn rms_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>) {
        if x.dtype() != DType::F32 || weight.dtype() != DType::F32 {
            return portable::rms_norm_backward(x, weight, grad, eps);
        }
        let (dims, features) = (x.dims(), weight.dims());
        let (x, weight, grad) = (contiguous(x), contiguous(weight), contiguous(grad));
        let (d_x, d_weight) =
            norm::backward(x.values(), weight.values(), grad.values(), eps as f32);
        (from_values(d_x, dims), from_values(d_weight, features))
    }

    fn layer_norm_forward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        bias: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        if [x.dtype(), weight.dtype(), bias.dtype()] != [DType::F32; 3] {
            return portable::layer_norm_forward(x, weight, bias, eps);
        }
        let dims = x.dims();
        let (x, weight, bias) = (contiguous(x), contiguous(weight), contiguous(bias));
        let y = layer_norm::forward(x.values(), weight.values(), bias.values(), eps as f32);
        from_values(y, dims)
    }

    fn layer_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>, Tensor<Self, 1>) {
        if [x.dtype(), weight.dtype()] != [DType::F32; 2] {
            return portable::layer_norm_backward(x, weight, grad, eps);
        }
        let (dims, features) = (x.dims(), weight.dims());
        let (x, weight, grad) = (contiguous(x), contiguous(weight), contiguous(grad));
        let [d_x, d_weight, d_bias] =
            layer_norm::backward(x.values(), weight.values(), grad.values(), eps as f32);
        (from_values(d_x, dims), from_values(d_weight, features), from_values(d_bias, features))
    }

    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        if x.dtype() != DType::F32 {
            return portable::rotate_half(x, cos, sin);
        }
        elementwise::rotate_half(x, &contiguous(cos), &contiguous(sin))
    }

    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        if gate.dtype() != DType::F32 {
            return portable::gated(gate, up, activation);
        }
        let dims = gate.dims();
        let (gate, up) = (contiguous(gate), contiguous(up));
        from_values(elementwise::gated(gate.values(), up.values(), activation), dims)
    }

    fn gated_backward(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        activation: Activation,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        if gate.dtype() != DType::F32 {
            return portable::gated_backward(gate, up, grad, activation);
        }
        let dims = gate.dims();
        let (gate, up, grad) = (contiguous(gate), contiguous(up), contiguous(grad));
        let (d_gate, d_up) =
            elementwise::gated_backward(gate.values(), up.values(), grad.values(), activation);
        (from_values(d_gate, dims), from_values(d_up, dims))
    }

    fn attention_forward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> (Tensor<Self, 4>, Tensor<Self, 3>) {
        if q.dtype() != DType::F32 {
            return portable::attention_forward(q, k, v, mask, scoring);
        }
        attention::forward(q, k, v, mask, scoring.into())
    }

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
        if q.dtype() != DType::F32 {
            return portable::attention_backward(q, k, v, out, log_sum, grad, mask, scoring);
        }
        attention::backward(q, k, v, out, log_sum, grad, mask, scoring.into())
    }

    fn scaled(x: Tensor<Self, 2>, factor: Tensor<Self, 1>) -> Tensor<Self, 2> {
        if x.dtype() != DType::F32 || factor.dtype() != DType::F32 {
            return portable::scaled(x, factor);
        }
        let factor = contiguous(factor).values()[0];
        elementwise::scaled(x, factor)
    }

    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> Tensor<Self, 1> {
        if logits.dtype() != DType::F32 {
            return portable::cross_entropy_sum(logits, targets, soft_cap);
        }
        let logits = contiguous(logits);
        let (targets, cap) = (cross_entropy::indices(targets), soft_cap.map(|cap| cap as f32));
        let losses = cross_entropy::losses(logits.values(), &targets, cap);
        cross_entropy::sum(&losses)
    }

    fn cross_entropy_with_grad(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> (Tensor<Self, 1>, Tensor<Self, 2>) {
        if logits.dtype() != DType::F32 {
            return portable::cross_entropy_with_grad(logits, targets, soft_cap);
        }
        let cap = soft_cap.map(|cap| cap as f32);
        cross_entropy::with_grad(logits, &cross_entropy::indices(targets), cap)
    }
}
