//! Every kernel equals the portable default, in value and gradient, and gives the same bits with any number of threads.

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use emberlm_lora::DeltaGradients;
use emberlm_lora::random::{generator, normal};
use emberlm_model::{
    Activation, AttentionGradients, AttentionMask, ModelBackend, Scoring, portable,
};
use emberlm_quant::host::{float_tensor, index_tensor};
use emberlm_tests::{assert_close, values};

use crate::support::{Flex, NdArray};

const VALUES: f64 = 1e-5;
const GRADIENTS: f64 = 1e-4;

/// No soft cap, and one in the midst of scores and logits.
const CAPS: [Option<f64>; 2] = [None, Some(1.5)];

/// Random numbers, the same on every backend.
fn numbers<B: Backend, const D: usize>(seed: u64, shape: [usize; D], size: f32) -> Tensor<B, D> {
    let n = shape.iter().product();
    float_tensor(normal(&mut generator(seed, "kernels", &[]), n, size), shape, &Default::default())
}

/// A case of attention: batch, heads, kv heads, seq, past, head_dim, window, segments of a row.
struct Case {
    heads: [usize; 2],
    seq: usize,
    past: usize,
    head_dim: usize,
    window: Option<usize>,
    /// Where each row's sequences end; the rest is padding.
    rows: Vec<Vec<usize>>,
}

fn cases() -> Vec<Case> {
    let case = |heads, seq, past, head_dim, window, rows: &[&[usize]]| Case {
        heads,
        seq,
        past,
        head_dim,
        window,
        rows: rows.iter().map(|row| row.to_vec()).collect(),
    };
    vec![
        case([1, 1], 1, 0, 2, None, &[&[1]]),
        case([4, 2], 7, 0, 6, None, &[&[7], &[3]]),
        case([3, 1], 65, 0, 16, None, &[&[65], &[10, 40, 64]]),
        case([2, 2], 130, 0, 8, Some(5), &[&[130]]),
        case([6, 3], 300, 0, 10, Some(70), &[&[299], &[1, 2, 260]]),
        // A row of padding alone.
        case([2, 1], 9, 0, 4, None, &[&[9], &[]]),
        // Heads wider than a tile's line, and of no round number.
        case([2, 1], 70, 0, 96, None, &[&[70]]),
        case([1, 1], 40, 0, 130, Some(33), &[&[7, 40]]),
        // After a cache.
        case([4, 2], 1, 33, 8, None, &[&[1]]),
        case([4, 2], 5, 300, 8, Some(20), &[&[5]]),
    ]
}

impl Case {
    fn mask(&self) -> Arc<AttentionMask> {
        let segment = |row: &Vec<usize>, at: usize| {
            row.iter().position(|&end| at < end).map_or(0, |i| i as u32 + 1)
        };
        let segments: Vec<u32> = self
            .rows
            .iter()
            .flat_map(|row| (0..self.seq).map(move |at| segment(row, at)))
            .collect();
        Arc::new(AttentionMask::new(self.rows.len(), self.seq, self.past, &segments, self.window))
    }

    fn inputs<B: Backend>(&self) -> [Tensor<B, 4>; 4] {
        let [heads, kv_heads] = self.heads;
        let (rows, keys, dim) = (self.rows.len(), self.past + self.seq, self.head_dim);
        // Queries and gradient as the model gives them: a view with the heads inside.
        let inside = |seed| numbers(seed, [rows, self.seq, heads, dim], 1.0).swap_dims(1, 2);
        let outside = |seed| numbers(seed, [rows, kv_heads, keys, dim], 1.0);
        [inside(1), outside(2), outside(3), inside(4)]
    }

    fn run<B: ModelBackend>(&self, soft_cap: Option<f64>) -> [Vec<f64>; 4] {
        let ([q, k, v, grad], mask) = (self.inputs::<B>(), self.mask());
        let scoring = Scoring { scale: 0.3, soft_cap };
        let (out, log_sum) = B::attention_forward(q.clone(), k.clone(), v.clone(), &mask, scoring);
        let AttentionGradients { d_q, d_k, d_v } =
            B::attention_backward(q, k, v, out.clone(), log_sum, grad, &mask, scoring);
        [values(out), values(d_q), values(d_k), values(d_v)]
    }
}

pub(crate) fn attention_equals_the_portable_one<B: ModelBackend>() {
    for (i, case) in cases().iter().enumerate() {
        for cap in CAPS {
            let what = format!("case {i}, cap {cap:?}");
            same(&what, case.run::<B>(cap), case.run::<NdArray>(cap));
        }
    }
}

#[test]
fn flex_attention() {
    attention_equals_the_portable_one::<Flex>();
}

pub(crate) fn a_masked_token_has_no_influence<B: ModelBackend>() {
    for case in cases().into_iter().filter(|case| case.past + case.seq > 1) {
        let ([q, k, v, _], mask) = (case.inputs::<B>(), case.mask());
        let out = |k, v| values(B::causal_attention(q.clone(), k, v, &mask, Scoring::scaled(0.3)));
        let before = out(k.clone(), v.clone());
        // The last key is seen by the last query alone.
        let [_, _, keys, _] = k.dims();
        let nudge = |x: Tensor<B, 4>| {
            let kept = x.clone().narrow(2, 0, keys - 1);
            Tensor::cat(vec![kept, x.narrow(2, keys - 1, 1) + 100.0], 2)
        };
        let after = out(nudge(k), nudge(v));
        let (seq, dim) = (case.seq, case.head_dim);
        for (before, after) in before.chunks(seq * dim).zip(after.chunks(seq * dim)) {
            assert_eq!(before[..(seq - 1) * dim], after[..(seq - 1) * dim]);
            assert_ne!(before[(seq - 1) * dim..], after[(seq - 1) * dim..]);
        }
    }
}

#[test]
fn flex_masked_tokens() {
    a_masked_token_has_no_influence::<Flex>();
}

fn norm<B: ModelBackend>(rows: usize, features: usize) -> [Vec<f64>; 3] {
    let (x, grad) = (numbers::<B, 2>(1, [rows, features], 2.0), numbers(2, [rows, features], 1.0));
    let weight = numbers::<B, 1>(3, [features], 1.0);
    let y = B::rms_norm(x.clone(), weight.clone(), 1e-5);
    let (d_x, d_weight) = B::rms_norm_backward(x, weight, grad, 1e-5);
    [values(y), values(d_x), values(d_weight)]
}

fn layer_norm<B: ModelBackend>(rows: usize, features: usize) -> [Vec<f64>; 4] {
    // A mean that is large beside the deviation.
    let x = numbers::<B, 2>(1, [rows, features], 2.0) + 7.0;
    let grad = numbers(2, [rows, features], 1.0);
    let (weight, bias) = (numbers::<B, 1>(3, [features], 1.0), numbers(4, [features], 1.0));
    let y = B::layer_norm_forward(x.clone(), weight.clone(), bias, 1e-5);
    let (d_x, d_weight, d_bias) = B::layer_norm_backward(x, weight, grad, 1e-5);
    [values(y), values(d_x), values(d_weight), values(d_bias)]
}

fn gated<B: ModelBackend>(
    rows: usize,
    features: usize,
    activation: Activation,
    size: f32,
) -> [Vec<f64>; 3] {
    let (gate, up) =
        (numbers::<B, 2>(1, [rows, features], size), numbers(2, [rows, features], 1.0));
    let grad = numbers(3, [rows, features], 1.0);
    let y = B::gated(gate.clone(), up.clone(), activation);
    let (d_gate, d_up) = B::gated_backward(gate, up, grad, activation);
    [values(y), values(d_gate), values(d_up)]
}

fn delta<B: ModelBackend>(tokens: usize, d_in: usize, d_out: usize) -> [Vec<f64>; 5] {
    let base = numbers::<B, 2>(1, [tokens, d_out], 1.0);
    let x = numbers::<B, 2>(2, [tokens, d_in], 1.0);
    let (a, b) = (numbers::<B, 2>(3, [5, d_in], 0.3), numbers::<B, 2>(4, [d_out, 5], 0.3));
    let grad = numbers::<B, 2>(5, [tokens, d_out], 1.0);
    // The base's output is still held elsewhere: it must not change under its holder.
    let held = base.clone();
    let (y, narrow) = B::add_delta_forward(base, x.clone(), a.clone(), b.clone(), 1.7);
    let DeltaGradients { d_x, d_a, d_b } = B::add_delta_backward(x, narrow, a, b, grad, 1.7);
    [values(y), values(d_x), values(d_a), values(d_b), values(held)]
}

fn rotated<B: ModelBackend>(heads: usize, seq: usize, head_dim: usize) -> [Vec<f64>; 1] {
    let x = numbers::<B, 4>(1, [2, seq, heads, head_dim], 1.0).swap_dims(1, 2);
    let angle = |seed| numbers::<B, 4>(seed, [2, 1, seq, head_dim / 2], 1.0);
    [values(B::rotate_half(x, angle(2), angle(3)))]
}

fn cross_entropy<B: ModelBackend>(
    rows: usize,
    vocab: usize,
    soft_cap: Option<f64>,
) -> [Vec<f64>; 3] {
    let logits = numbers::<B, 2>(1, [rows, vocab], 10.0);
    let targets: Tensor<B, 1, Int> =
        index_tensor((0..rows).map(|row| row * 7 % vocab), [rows], &Default::default());
    let sum = B::cross_entropy_sum(logits.clone(), targets.clone(), soft_cap);
    let (same, gradient) = B::cross_entropy_with_grad(logits, targets, soft_cap);
    [values(sum), values(same), values(gradient)]
}

fn same<const N: usize>(what: &str, found: [Vec<f64>; N], expected: [Vec<f64>; N]) {
    for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let tolerance = if part == 0 { VALUES } else { GRADIENTS };
        assert_close(&format!("{what}, part {part}"), found, expected, tolerance);
    }
}

pub(crate) fn small_kernels_equal_the_portable_ones<B: ModelBackend>() {
    type N = NdArray;
    for (rows, features) in [(1, 2), (3, 33), (130, 100), (65, 576), (2, 1031)] {
        let what = |name: &str| format!("{name} on {rows} × {features}");
        same(&what("norm"), norm::<B>(rows, features), norm::<N>(rows, features));
        if features > 2 {
            same(
                &what("layer norm"),
                layer_norm::<B>(rows, features),
                layer_norm::<N>(rows, features),
            );
        }
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            // Where it bends, and far out, where a naive sigmoid overflows.
            for size in [1.0, 40.0] {
                same(
                    &what(&format!("{activation:?}, {size}")),
                    gated::<B>(rows, features, activation, size),
                    gated::<N>(rows, features, activation, size),
                );
            }
        }
        for cap in CAPS {
            let (found, expected) =
                (cross_entropy::<B>(rows, features, cap), cross_entropy::<N>(rows, features, cap));
            same(&what(&format!("cross-entropy, cap {cap:?}")), found, expected);
        }
        let (found, expected) = (dense::<B>(rows, features, 7), dense::<N>(rows, features, 7));
        same(&what("dense"), found, expected);
        let (found, expected) = (delta::<B>(rows, features, 7), delta::<N>(rows, features, 7));
        same(&what("delta"), found, expected);
        let heads = 1 + rows % 3;
        same(&what("rotation"), rotated::<B>(heads, rows, 8), rotated::<N>(heads, rows, 8));
    }
}

#[test]
fn flex_small_kernels() {
    small_kernels_equal_the_portable_ones::<Flex>();
}

/// What every kernel gives, value and gradient.
pub(crate) fn everything<B: ModelBackend>() -> Vec<Vec<f64>> {
    let mut results: Vec<Vec<f64>> = Vec::new();
    for cap in CAPS {
        results.extend(cases().iter().flat_map(|case| case.run::<B>(cap)));
        results.extend(cross_entropy::<B>(50, 1000, cap));
    }
    results.extend(norm::<B>(200, 96));
    results.extend(layer_norm::<B>(200, 96));
    for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
        results.extend(gated::<B>(200, 960, activation, 3.0));
    }
    results.extend(dense::<B>(200, 300, 1000));
    results
}

/// `x · Wᵀ` and `grad · W`.
fn dense<B: ModelBackend>(tokens: usize, d_in: usize, d_out: usize) -> [Vec<f64>; 2] {
    let (x, weight) = (numbers::<B, 2>(1, [tokens, d_in], 1.0), numbers(2, [d_out, d_in], 1.0));
    let grad = numbers::<B, 2>(3, [tokens, d_out], 1.0);
    let d_x = B::matmul_dense_backward(grad, weight.clone());
    [values(B::matmul_dense(x, weight)), values(d_x)]
}

/// Kernels on values of 16 bits: sums are in f32, so that only inputs and outputs are rounded.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(crate) fn half_precision_is_close<B: ModelBackend>() {
    type N = NdArray;
    fn close<const N: usize>(what: &str, found: [Vec<f64>; N], expected: [Vec<f64>; N]) {
        for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_close(&format!("{what}, part {part}"), found, expected, 1e-2);
        }
    }
    let (rows, features) = (130, 100);
    close("norm", norm::<B>(rows, features), norm::<N>(rows, features));
    close("layer norm", layer_norm::<B>(rows, features), layer_norm::<N>(rows, features));
    for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
        let found = gated::<B>(rows, features, activation, 3.0);
        close("gated", found, gated::<N>(rows, features, activation, 3.0));
    }
    close("rotation", rotated::<B>(3, rows, 8), rotated::<N>(3, rows, 8));
    let [sum, same, gradient] = cross_entropy::<B>(rows, features, None);
    let [expected, _, expected_gradient] = cross_entropy::<N>(rows, features, None);
    // A sum in 16 bits would be off by more.
    assert_close("loss", &sum, &expected, 1e-4);
    close("cross-entropy", [same, gradient], [expected, expected_gradient]);
    for case in cases().iter().filter(|case| case.head_dim <= 8 && case.seq < 200) {
        for cap in CAPS {
            close("attention", case.run::<B>(cap), case.run::<N>(cap));
        }
    }
}

#[test]
fn the_node_of_layer_norm_gives_its_gradients() {
    type A = emberlm::Training<Flex>;
    let leaf = |seed| numbers::<A, 1>(seed, [33], 1.0).require_grad();
    let (x, grad) = (numbers::<A, 2>(1, [5, 33], 2.0).require_grad(), numbers(2, [5, 33], 1.0));
    let (weight, bias) = (leaf(3), leaf(4));
    let y = A::layer_norm_forward(x.clone(), weight.clone(), bias.clone(), 1e-5);
    let found = (y * grad.clone()).sum().backward();
    let (d_x, d_weight, d_bias) = portable::layer_norm_backward(
        x.clone().inner(),
        weight.clone().inner(),
        grad.inner(),
        1e-5,
    );
    let close = |what, found: Vec<f64>, expected: Vec<f64>| {
        assert_close(what, &found, &expected, GRADIENTS);
    };
    close("x", values(x.grad(&found).unwrap()), values(d_x));
    close("weight", values(weight.grad(&found).unwrap()), values(d_weight));
    close("bias", values(bias.grad(&found).unwrap()), values(d_bias));
}

#[test]
fn threads_change_no_bit() {
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(everything::<Flex>)
    };
    let one = with(1);
    for threads in [2, 3] {
        assert!(one == with(threads), "{threads} threads give other bits than 1");
    }
}

/// The written-out gradients of the portable operations against differences in f64.
mod differences {
    use super::*;

    type F64 = burn_ndarray::NdArray<f64>;

    fn check<const D: usize>(
        what: &str,
        x: Tensor<F64, D>,
        gradient: Tensor<F64, D>,
        f: impl Fn(Tensor<F64, D>) -> f64,
    ) {
        let (dims, gradient) = (x.dims(), values(gradient));
        let greatest = gradient.iter().fold(0.0f64, |max, g| max.max(g.abs()));
        for (i, expected) in gradient.iter().enumerate().step_by(1 + gradient.len() / 20) {
            let h = 1e-5;
            let mut one = vec![0.0f32; gradient.len()];
            one[i] = 1.0;
            let one = float_tensor::<F64, D>(one, dims, &Default::default());
            let (up, down) = (f(x.clone() + one.clone() * h), f(x.clone() - one * h));
            let difference = (up - down) / (2.0 * h);
            let error = (difference - expected).abs();
            assert!(error <= 1e-7 * greatest, "{what}[{i}]: {expected}, differences {difference}");
        }
    }

    fn total<const D: usize>(y: Tensor<F64, D>, grad: Tensor<F64, D>) -> f64 {
        values((y * grad).sum())[0]
    }

    #[test]
    fn of_norm_and_gated() {
        let (x, grad) = (numbers::<F64, 2>(1, [3, 5], 2.0), numbers::<F64, 2>(2, [3, 5], 1.0));
        let weight = numbers::<F64, 1>(3, [5], 1.0);
        let (d_x, d_weight) =
            portable::rms_norm_backward(x.clone(), weight.clone(), grad.clone(), 1e-5);
        let norm = |x, weight| total(portable::rms_norm(x, weight, 1e-5), grad.clone());
        check("norm by x", x.clone(), d_x, |x| norm(x, weight.clone()));
        check("norm by weight", weight.clone(), d_weight, |weight| norm(x.clone(), weight));
        let bias = numbers::<F64, 1>(5, [5], 1.0);
        let (d_x, d_weight, d_bias) =
            portable::layer_norm_backward(x.clone(), weight.clone(), grad.clone(), 1e-5);
        let norm = |x, weight, bias| {
            total(portable::layer_norm_forward(x, weight, bias, 1e-5), grad.clone())
        };
        check("layer norm by x", x.clone(), d_x, |x| norm(x, weight.clone(), bias.clone()));
        check("layer norm by weight", weight.clone(), d_weight, |weight| {
            norm(x.clone(), weight, bias.clone())
        });
        check("layer norm by bias", bias, d_bias, |bias| norm(x.clone(), weight.clone(), bias));
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let up = numbers::<F64, 2>(4, [3, 5], 1.0);
            let (d_gate, d_up) =
                portable::gated_backward(x.clone(), up.clone(), grad.clone(), activation);
            let gated = |gate, up| total(portable::gated(gate, up, activation), grad.clone());
            check("gated by gate", x.clone(), d_gate, |gate| gated(gate, up.clone()));
            check("gated by up", up.clone(), d_up, |up| gated(x.clone(), up));
        }
    }

    #[test]
    fn of_attention_and_cross_entropy() {
        for soft_cap in CAPS {
            let scoring = Scoring { scale: 0.3, soft_cap };
            for case in cases().into_iter().take(3) {
                attention(&case, scoring);
            }
            let logits = numbers::<F64, 2>(1, [4, 9], 3.0);
            let targets = index_tensor::<F64, 1>([0, 8, 3, 3], [4], &Default::default());
            let (_, gradient) =
                portable::cross_entropy_with_grad(logits.clone(), targets.clone(), soft_cap);
            check("cross-entropy", logits, gradient, |logits| {
                values(portable::cross_entropy_sum(logits, targets.clone(), soft_cap))[0]
            });
        }
    }

    fn attention(case: &Case, scoring: Scoring) {
        let ([q, k, v, grad], mask) = (case.inputs::<F64>(), case.mask());
        let forward = |q, k, v| portable::attention_forward(q, k, v, &mask, scoring);
        let (out, log_sum) = forward(q.clone(), k.clone(), v.clone());
        let (q2, k2, v2, grad2) = (q.clone(), k.clone(), v.clone(), grad.clone());
        let AttentionGradients { d_q, d_k, d_v } =
            portable::attention_backward(q2, k2, v2, out, log_sum, grad2, &mask, scoring);
        let f = |q, k, v| total(forward(q, k, v).0, grad.clone());
        check("attention by v", v.clone(), d_v, |v| f(q.clone(), k.clone(), v));
        if case.seq > 1 {
            check("attention by q", q.clone(), d_q, |q| f(q, k.clone(), v.clone()));
            check("attention by k", k.clone(), d_k, |k| f(q.clone(), k, v.clone()));
        }
    }
}
