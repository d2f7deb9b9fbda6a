//! Kernels for CubeCL's backends, one source for CUDA and WGPU, and their registration with `Fusion`.
//!
//! Values are f32, f16 or bf16; every sum is in f32, in an order that depends only on sizes. Other types use the
//! portable operations.

mod attention;
mod cross_entropy;
mod elementwise;
mod fused;
mod launch;
mod layer_norm;
mod norm;
mod reduce;
mod soft_cap;
mod views;

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};

use crate::AttentionGradients;
use crate::{Activation, AttentionMask, MaskRanges, ModelBackend, Scoring, portable};
use attention::Attention;
use launch::{alike, fits, has_kernels, primitive, sum_type, tensor};

/// Whether queries, keys and values have one type and the mask's sizes. Others are left to the portable operations,
/// which check shapes; kernels don't.
fn attend<B: ModelBackend>(
    q: &Tensor<B, 4>,
    k: &Tensor<B, 4>,
    v: &Tensor<B, 4>,
    mask: &AttentionMask,
) -> bool {
    let ([batch, heads, seq, head_dim], [_, kv_heads, _, _]) = (q.dims(), k.dims());
    q.dtype() == k.dtype()
        && alike(&[k, v])
        && k.dims() == [batch, kv_heads, mask.past + mask.seq, head_dim]
        && heads % kv_heads == 0
        && [mask.rows, mask.seq] == [batch, seq]
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> ModelBackend
    for CubeBackend<R, F, I, BT>
{
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        let [_, features] = x.dims();
        if !fits(&[&x]) || !has_kernels(weight.dtype()) || weight.dims() != [features] {
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
        let [_, features] = x.dims();
        let has_weight = has_kernels(weight.dtype()) && weight.dims() == [features];
        if !fits(&[&x]) || !alike(&[&x, &grad]) || !has_weight {
            return portable::rms_norm_backward(x, weight, grad, eps);
        }
        let dims = x.dims();
        let (x, weight, grad) = (primitive(x), primitive(weight), primitive(grad));
        let (d_x, d_weight) = norm::backward(x, weight, grad, dims, eps as f32);
        (tensor(d_x), tensor(d_weight))
    }

    fn layer_norm_forward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        bias: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        let [_, features] = x.dims();
        let has_weights = has_kernels(weight.dtype()) && weight.dims() == [features];
        if !fits(&[&x]) || !has_weights || !alike(&[&weight, &bias]) {
            return portable::layer_norm_forward(x, weight, bias, eps);
        }
        let dims = x.dims();
        let (x, weight, bias) = (primitive(x), primitive(weight), primitive(bias));
        tensor(layer_norm::forward(x, weight, bias, dims, eps as f32))
    }

    fn layer_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>, Tensor<Self, 1>) {
        let [_, features] = x.dims();
        let has_weight = has_kernels(weight.dtype()) && weight.dims() == [features];
        if !fits(&[&x]) || !alike(&[&x, &grad]) || !has_weight {
            return portable::layer_norm_backward(x, weight, grad, eps);
        }
        let dims = x.dims();
        let (x, weight, grad) = (primitive(x), primitive(weight), primitive(grad));
        let [d_x, d_weight, d_bias] = layer_norm::backward(x, weight, grad, dims, eps as f32);
        (tensor(d_x), tensor(d_weight), tensor(d_bias))
    }

    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        let [batch, _, seq, head_dim] = x.dims();
        let has_angles = cos.dims() == [batch, 1, seq, head_dim / 2] && alike(&[&cos, &sin]);
        if !fits(&[&x, &cos]) || !has_angles || head_dim % 2 != 0 {
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
        if !fits(&[&gate]) || !alike(&[&gate, &up]) {
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
        if !fits(&[&gate]) || !alike(&[&gate, &up, &grad]) {
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
        scoring: Scoring,
    ) -> (Tensor<Self, 4>, Tensor<Self, 3>) {
        if !fits(&[&q, &k, &v]) || !attend(&q, &k, &v, mask) {
            return portable::attention_forward(q, k, v, mask, scoring);
        }
        let MaskRanges { first_key, .. } = mask.ranges::<Self>(&q.device());
        let inputs = Attention {
            q: primitive(q),
            k: primitive(k),
            v: primitive(v),
            first_key: first_key.into_primitive(),
            past: mask.past,
            scoring,
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
        scoring: Scoring,
    ) -> AttentionGradients<Self> {
        let has_outputs = alike(&[&q, &out, &grad]) && log_sum.dtype() == sum_type(q.dtype());
        let client = R::client(&q.device());
        let has_bindings = client.properties().hardware.max_bindings >= attention::BINDINGS;
        let are_inputs = fits(&[&q, &k, &v]) && attend(&q, &k, &v, mask);
        if !are_inputs || !has_outputs || !has_bindings {
            return portable::attention_backward(q, k, v, out, log_sum, grad, mask, scoring);
        }
        let MaskRanges { first_key, end_query } = mask.ranges::<Self>(&q.device());
        let inputs = Attention {
            q: primitive(q),
            k: primitive(k),
            v: primitive(v),
            first_key: first_key.into_primitive(),
            past: mask.past,
            scoring,
        };
        let (out, log_sum, grad) = (primitive(out), primitive(log_sum), primitive(grad));
        let gradients = attention::backward(inputs, out, log_sum, grad, end_query.into_primitive());
        let [d_q, d_k, d_v] = gradients.map(tensor);
        AttentionGradients { d_q, d_k, d_v }
    }

    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> Tensor<Self, 1> {
        let [rows, _] = logits.dims();
        if !fits(&[&logits]) || targets.dims() != [rows] {
            return portable::cross_entropy_sum(logits, targets, soft_cap);
        }
        let dims = logits.dims();
        tensor(cross_entropy::sum(primitive(logits), targets.into_primitive(), dims, soft_cap))
    }

    fn cross_entropy_with_grad(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> (Tensor<Self, 1>, Tensor<Self, 2>) {
        let [rows, _] = logits.dims();
        if !fits(&[&logits]) || targets.dims() != [rows] {
            return portable::cross_entropy_with_grad(logits, targets, soft_cap);
        }
        let dims = logits.dims();
        let (sum, gradient) =
            cross_entropy::with_grad(primitive(logits), targets.into_primitive(), dims, soft_cap);
        (tensor(sum), tensor(gradient))
    }
}
