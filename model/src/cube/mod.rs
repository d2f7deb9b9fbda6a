//! Kernels for CubeCL's backends, one source for CUDA and WGPU, and their passage through `Fusion`.
//!
//! Values lie in f32, f16 or bf16; every sum is in f32, and runs in an order that depends on sizes alone. Other types
//! take the portable way.

mod attention;
mod cross_entropy;
mod elementwise;
mod fused;
mod launch;
mod norm;
mod reduce;
mod views;

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};

use crate::backend::AttentionGradients;
use crate::{Activation, AttentionMask, MaskRanges, ModelBackend, portable};
use attention::Attention;
use launch::{fits, has_kernels, primitive, tensor};

impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> ModelBackend
    for CubeBackend<R, F, I, BT>
{
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        if !fits(&[&x]) || !has_kernels(weight.dtype()) {
            return portable::rms_norm(x, weight, eps);
        }
        let dims = x.dims();
        tensor(norm::forward(primitive(x), primitive(weight), dims, eps as f32))
    }

    fn rms_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>) {
        if !fits(&[&x]) || grad.dtype() != x.dtype() || !has_kernels(weight.dtype()) {
            return portable::rms_norm_backward(x, weight, grad, eps);
        }
        let dims = x.dims();
        let (x, weight, grad) = (primitive(x), primitive(weight), primitive(grad));
        let (d_x, d_weight) = norm::backward(x, weight, grad, dims, eps as f32);
        (tensor(d_x), tensor(d_weight))
    }

    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        if !fits(&[&x, &cos]) || sin.dtype() != cos.dtype() {
            return portable::rotate_half(x, cos, sin);
        }
        let dims = x.dims();
        tensor(elementwise::rotate_half(primitive(x), primitive(cos), primitive(sin), dims))
    }

    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        if !fits(&[&gate]) || up.dtype() != gate.dtype() {
            return portable::gated(gate, up, activation);
        }
        let dims = gate.dims();
        tensor(elementwise::gated(primitive(gate), primitive(up), dims, activation))
    }

    fn gated_backward(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        activation: Activation,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        let dtype = gate.dtype();
        if !fits(&[&gate]) || up.dtype() != dtype || grad.dtype() != dtype {
            return portable::gated_backward(gate, up, grad, activation);
        }
        let dims = gate.dims();
        let (gate, up, grad) = (primitive(gate), primitive(up), primitive(grad));
        let (d_gate, d_up) = elementwise::gated_backward(gate, up, grad, dims, activation);
        (tensor(d_gate), tensor(d_up))
    }

    fn attention_forward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scale: f64,
    ) -> (Tensor<Self, 4>, Tensor<Self, 3>) {
        if !fits(&[&q, &k, &v]) || k.dtype() != q.dtype() || v.dtype() != q.dtype() {
            return portable::attention_forward(q, k, v, mask, scale);
        }
        let MaskRanges { first_key, .. } = mask.ranges::<Self>(&q.device());
        let inputs = Attention {
            q: primitive(q),
            k: primitive(k),
            v: primitive(v),
            first_key: first_key.into_primitive(),
            past: mask.past,
            scale: scale as f32,
        };
        let (out, log_sum) = attention::forward(inputs);
        (tensor(out), tensor(log_sum))
    }

    fn attention_backward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        out: Tensor<Self, 4>,
        log_sum: Tensor<Self, 3>,
        grad: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scale: f64,
    ) -> AttentionGradients<Self> {
        let all = [&q, &k, &v, &out, &grad];
        let one_type = all.iter().all(|x| x.dtype() == q.dtype());
        if !fits(&all) || !one_type || log_sum.dtype() != launch::sum_type(q.dtype()) {
            return portable::attention_backward(q, k, v, out, log_sum, grad, mask, scale);
        }
        let MaskRanges { first_key, end_query } = mask.ranges::<Self>(&q.device());
        let inputs = Attention {
            q: primitive(q),
            k: primitive(k),
            v: primitive(v),
            first_key: first_key.into_primitive(),
            past: mask.past,
            scale: scale as f32,
        };
        let (out, log_sum, grad) = (primitive(out), primitive(log_sum), primitive(grad));
        let gradients = attention::backward(inputs, out, log_sum, grad, end_query.into_primitive());
        let [d_q, d_k, d_v] = gradients.map(tensor);
        AttentionGradients { d_q, d_k, d_v }
    }

    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
    ) -> Tensor<Self, 1> {
        if !fits(&[&logits]) {
            return portable::cross_entropy_sum(logits, targets);
        }
        let dims = logits.dims();
        tensor(cross_entropy::sum(primitive(logits), targets.into_primitive(), dims))
    }

    fn cross_entropy_with_grad(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
    ) -> (Tensor<Self, 1>, Tensor<Self, 2>) {
        if !fits(&[&logits]) {
            return portable::cross_entropy_with_grad(logits, targets);
        }
        let dims = logits.dims();
        let (sum, gradient) =
            cross_entropy::with_grad(primitive(logits), targets.into_primitive(), dims);
        (tensor(sum), tensor(gradient))
    }
}
