//! The operations of [`ModelBackend`](crate::ModelBackend), composed of Burn's operations: the fallback for every
//! backend and the reference for kernels. Each one has an explicit gradient, so none of them runs under autodiff.
//!
//! 16-bit values are computed in f32 and rounded at the end, as in the kernels.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, backend::Backend};
use emberlm_quant::portable::in_type;

use crate::soft_cap::soft_cap_backward;
use crate::{Activation, AttentionMask, Scoring, soft_capped};

/// The gradients of attention.
pub struct AttentionGradients<B: Backend> {
    /// `[batch, heads, seq, head_dim]`.
    pub d_q: Tensor<B, 4>,
    /// `[batch, kv_heads, keys, head_dim]`.
    pub d_k: Tensor<B, 4>,
    /// `[batch, kv_heads, keys, head_dim]`.
    pub d_v: Tensor<B, 4>,
}

/// 16-bit values as f32; others unchanged.
fn widened<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let dtype = match x.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    };
    in_type(x, dtype)
}

/// See [`ModelBackend::rms_norm`](crate::ModelBackend::rms_norm).
pub fn rms_norm<B: Backend>(x: Tensor<B, 2>, weight: Tensor<B, 1>, eps: f64) -> Tensor<B, 2> {
    let dtype = x.dtype();
    let (x, weight) = (widened(x), widened(weight));
    let rms = root_mean_square(x.clone(), eps);
    in_type(x / rms * weight.unsqueeze(), dtype)
}

/// See [`ModelBackend::rms_norm_backward`](crate::ModelBackend::rms_norm_backward).
pub fn rms_norm_backward<B: Backend>(
    x: Tensor<B, 2>,
    weight: Tensor<B, 1>,
    grad: Tensor<B, 2>,
    eps: f64,
) -> (Tensor<B, 2>, Tensor<B, 1>) {
    let (dtype, weight_type) = (x.dtype(), weight.dtype());
    let (x, weight, grad) = (widened(x), widened(weight), widened(grad));
    let rms = root_mean_square(x.clone(), eps);
    let normed = x / rms.clone();
    let d_weight = (grad.clone() * normed.clone()).sum_dim(0).squeeze_dim(0);
    let d_normed = grad * weight.unsqueeze();
    // The norm removes the component of the gradient along x.
    let along = (d_normed.clone() * normed.clone()).mean_dim(1);
    let d_x = (d_normed - normed * along) / rms;
    (in_type(d_x, dtype), in_type(d_weight, weight_type))
}

fn root_mean_square<B: Backend>(x: Tensor<B, 2>, eps: f64) -> Tensor<B, 2> {
    (x.powi_scalar(2).mean_dim(1) + eps).sqrt()
}

/// See [`ModelBackend::layer_norm_forward`](crate::ModelBackend::layer_norm_forward).
pub fn layer_norm_forward<B: Backend>(
    x: Tensor<B, 2>,
    weight: Tensor<B, 1>,
    bias: Tensor<B, 1>,
    eps: f64,
) -> Tensor<B, 2> {
    let dtype = x.dtype();
    let (normed, _) = normalised(widened(x), eps);
    in_type(normed * widened(weight).unsqueeze() + widened(bias).unsqueeze(), dtype)
}

/// See [`ModelBackend::layer_norm_backward`](crate::ModelBackend::layer_norm_backward).
pub fn layer_norm_backward<B: Backend>(
    x: Tensor<B, 2>,
    weight: Tensor<B, 1>,
    grad: Tensor<B, 2>,
    eps: f64,
) -> (Tensor<B, 2>, Tensor<B, 1>, Tensor<B, 1>) {
    let (dtype, weight_type) = (x.dtype(), weight.dtype());
    let (weight, grad) = (widened(weight), widened(grad));
    let (normed, deviation) = normalised(widened(x), eps);
    let d_weight = (grad.clone() * normed.clone()).sum_dim(0).squeeze_dim(0);
    let d_bias = grad.clone().sum_dim(0).squeeze_dim(0);
    let d_normed = grad * weight.unsqueeze();
    // Centering and scaling remove the mean of the gradient and its component along x.
    let mean = d_normed.clone().mean_dim(1);
    let along = (d_normed.clone() * normed.clone()).mean_dim(1);
    let d_x = (d_normed - mean - normed * along) / deviation;
    (in_type(d_x, dtype), in_type(d_weight, weight_type), in_type(d_bias, weight_type))
}

/// `x` with mean 0 and variance 1 in each row, and the standard deviation before.
fn normalised<B: Backend>(x: Tensor<B, 2>, eps: f64) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let centred = x.clone() - x.mean_dim(1);
    let deviation = (centred.clone().powi_scalar(2).mean_dim(1) + eps).sqrt();
    (centred / deviation.clone(), deviation)
}

/// See [`ModelBackend::rotate_half`](crate::ModelBackend::rotate_half).
pub fn rotate_half<B: Backend>(
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Tensor<B, 4> {
    let [_, _, _, head_dim] = x.dims();
    let dtype = x.dtype();
    let (x, cos, sin) = (widened(x), widened(cos), widened(sin));
    let first = x.clone().narrow(3, 0, head_dim / 2);
    let second = x.narrow(3, head_dim / 2, head_dim / 2);
    let rotated_first = first.clone() * cos.clone() - second.clone() * sin.clone();
    let rotated_second = second * cos + first * sin;
    in_type(Tensor::cat(vec![rotated_first, rotated_second], 3), dtype)
}

/// See [`ModelBackend::gated`](crate::ModelBackend::gated).
pub fn gated<B: Backend>(
    gate: Tensor<B, 2>,
    up: Tensor<B, 2>,
    activation: Activation,
) -> Tensor<B, 2> {
    let dtype = gate.dtype();
    in_type(activation.apply(widened(gate)) * widened(up), dtype)
}

/// See [`ModelBackend::gated_backward`](crate::ModelBackend::gated_backward).
pub fn gated_backward<B: Backend>(
    gate: Tensor<B, 2>,
    up: Tensor<B, 2>,
    grad: Tensor<B, 2>,
    activation: Activation,
) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let dtype = gate.dtype();
    let (gate, up, grad) = (widened(gate), widened(up), widened(grad));
    let d_up = grad.clone() * activation.apply(gate.clone());
    let d_gate = grad * up * activation.derivative(gate);
    (in_type(d_gate, dtype), in_type(d_up, dtype))
}

/// See [`ModelBackend::attention_forward`](crate::ModelBackend::attention_forward).
pub fn attention_forward<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    mask: &AttentionMask,
    scoring: Scoring,
) -> (Tensor<B, 4>, Tensor<B, 3>) {
    let [batch, heads, seq, head_dim] = q.dims();
    let [_, kv_heads, _, _] = k.dims();
    let dtype = q.dtype();
    let (q, k, v) = (widened(q), widened(k), widened(v));
    let scores = masked(scores(q, k, scoring), mask);
    let greatest = scores.clone().max_dim(3);
    let exponents = (scores - greatest.clone()).exp();
    let sum = exponents.clone().sum_dim(3);
    let y = stacked(exponents / sum.clone(), kv_heads).matmul(v);
    let log_sum = (sum.log() + greatest).reshape([batch, heads, seq]);
    (in_type(y.reshape([batch, heads, seq, head_dim]), dtype), log_sum)
}

/// See [`ModelBackend::attention_backward`](crate::ModelBackend::attention_backward).
#[allow(clippy::too_many_arguments, reason = "inputs and outputs of the forward, and the gradient")]
pub fn attention_backward<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    out: Tensor<B, 4>,
    log_sum: Tensor<B, 3>,
    grad: Tensor<B, 4>,
    mask: &AttentionMask,
    scoring: Scoring,
) -> AttentionGradients<B> {
    let [batch, heads, seq, head_dim] = q.dims();
    let [_, kv_heads, keys, _] = k.dims();
    let dtype = q.dtype();
    let [q, k, v, out, grad] = [q, k, v, out, grad].map(widened);
    let unstack = |x: Tensor<B, 4>| x.reshape([batch, heads, seq, keys]);
    let scores = scores(q.clone(), k.clone(), scoring);
    let shares = (masked(scores.clone(), mask) - log_sum.unsqueeze_dim(3)).exp();
    let stacked_grad = stacked(grad.clone(), kv_heads);
    let d_v = stacked(shares.clone(), kv_heads).transpose().matmul(stacked_grad.clone());
    let d_shares = unstack(stacked_grad.matmul(v.transpose()));
    // Σ p · dp over the keys, without another pass over them.
    let along = (grad * out).sum_dim(3);
    let d_scores = soft_cap_backward(scores, shares * (d_shares - along), scoring.soft_cap);
    let d_scores = stacked(d_scores * scoring.scale, kv_heads);
    let d_q = d_scores.clone().matmul(k).reshape([batch, heads, seq, head_dim]);
    let d_k = d_scores.transpose().matmul(stacked(q, kv_heads));
    let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(|gradient| in_type(gradient, dtype));
    AttentionGradients { d_q, d_k, d_v }
}

/// `q · kᵀ · scale`, soft-capped, before the mask: `[batch, heads, seq, keys]`.
fn scores<B: Backend>(q: Tensor<B, 4>, k: Tensor<B, 4>, scoring: Scoring) -> Tensor<B, 4> {
    let [batch, heads, seq, _] = q.dims();
    let [_, kv_heads, keys, _] = k.dims();
    let scores = stacked(q * scoring.scale, kv_heads).matmul(k.transpose());
    soft_capped(scores.reshape([batch, heads, seq, keys]), scoring.soft_cap)
}

fn masked<B: Backend>(scores: Tensor<B, 4>, mask: &AttentionMask) -> Tensor<B, 4> {
    match mask.additive(&scores.device()) {
        Some(mask) => scores + mask,
        None => scores,
    }
}

/// The query heads of each key head, stacked along the sequence: `[batch, heads, seq, n] -> [batch, kv_heads, group ·
/// seq, n]`.
fn stacked<B: Backend>(x: Tensor<B, 4>, kv_heads: usize) -> Tensor<B, 4> {
    let [batch, heads, seq, n] = x.dims();
    x.reshape([batch, kv_heads, heads / kv_heads * seq, n])
}

/// See [`ModelBackend::cross_entropy_sum`](crate::ModelBackend::cross_entropy_sum).
pub fn cross_entropy_sum<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
    soft_cap: Option<f64>,
) -> Tensor<B, 1> {
    let [rows, _] = logits.dims();
    let logits = soft_capped(widened(logits), soft_cap);
    let log_sum = log_sum_exp(logits.clone());
    let chosen = logits.gather(1, targets.reshape([rows, 1]));
    (log_sum - chosen).sum()
}

/// See [`ModelBackend::cross_entropy_with_grad`](crate::ModelBackend::cross_entropy_with_grad).
pub fn cross_entropy_with_grad<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
    soft_cap: Option<f64>,
) -> (Tensor<B, 1>, Tensor<B, 2>) {
    let [rows, _] = logits.dims();
    let (targets, dtype) = (targets.reshape([rows, 1]), logits.dtype());
    let logits = soft_capped(widened(logits), soft_cap);
    let log_sum = log_sum_exp(logits.clone());
    let chosen = logits.clone().gather(1, targets.clone());
    let sum = (log_sum.clone() - chosen.clone()).sum();
    let shares = (logits.clone() - log_sum).exp();
    let minus_one = chosen.ones_like().neg();
    let gradient = shares.scatter(1, targets, minus_one, IndexingUpdateOp::Add);
    let gradient = soft_cap_backward(logits, gradient, soft_cap);
    (sum, in_type(gradient, dtype))
}

/// See [`ModelBackend::scaled`](crate::ModelBackend::scaled).
pub fn scaled<B: Backend>(x: Tensor<B, 2>, factor: Tensor<B, 1>) -> Tensor<B, 2> {
    let dtype = x.dtype();
    x * in_type(factor, dtype).unsqueeze()
}

fn log_sum_exp<B: Backend>(logits: Tensor<B, 2>) -> Tensor<B, 2> {
    let greatest = logits.clone().max_dim(1);
    (logits - greatest.clone()).exp().sum_dim(1).log() + greatest
}
