//! Rotary positions, gated activations and scaling, one pass over memory each.

use burn::tensor::Tensor;
use burn_flex::Flex;
use rayon::prelude::*;

use super::activation::{gelu, gelu_tanh, silu};
use super::simd::vectorized;
use super::views::{Contiguous, Heads, from_primitive, from_values, primitive};
use crate::Activation;

/// Elements per task.
const BLOCK: usize = 1 << 14;

/// Reads `x` in any layout and writes `[batch, heads, seq, head_dim]`, contiguous.
pub(super) fn rotate_half(
    x: Tensor<Flex, 4>,
    cos: &Contiguous,
    sin: &Contiguous,
) -> Tensor<Flex, 4> {
    let dims = x.dims();
    let [_, heads, seq, head_dim] = dims;
    let half = head_dim / 2;
    let x = Heads::new(x);
    let mut y = vec![0.0; dims.iter().product()];
    y.par_chunks_mut(seq * head_dim).enumerate().for_each(|(i, y)| {
        let (batch, head) = (i / heads, i % heads);
        let source = x.head(batch, head);
        let angles = batch * seq * half..(batch + 1) * seq * half;
        let (cos, sin) = (&cos.values()[angles.clone()], &sin.values()[angles]);
        vectorized(|| {
            for (token, y) in y.chunks_exact_mut(head_dim).enumerate() {
                let x = &source[token * x.token_stride()..][..head_dim];
                let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
                let ((a, b), (y_a, y_b)) = (x.split_at(half), y.split_at_mut(half));
                for i in 0..half {
                    y_a[i] = a[i] * cos[i] - b[i] * sin[i];
                    y_b[i] = b[i] * cos[i] + a[i] * sin[i];
                }
            }
        });
    });
    from_values(y, dims)
}

/// Works in place, or on a copy if `x` is shared.
pub(super) fn scaled(x: Tensor<Flex, 2>, factor: f32) -> Tensor<Flex, 2> {
    let mut x = primitive(x).to_contiguous();
    x.storage_mut::<f32>().par_chunks_mut(BLOCK).for_each(|x| {
        vectorized(|| {
            for x in x.iter_mut() {
                *x *= factor;
            }
        });
    });
    from_primitive(x)
}

/// `activation(gate) · up`.
pub(super) fn gated(gate: &[f32], up: &[f32], activation: Activation) -> Vec<f32> {
    match activation {
        Activation::Silu => gated_by(gate, up, silu),
        Activation::Gelu => gated_by(gate, up, gelu),
        Activation::GeluTanh => gated_by(gate, up, gelu_tanh),
    }
}

/// The gradients of [`gated`] by `gate` and by `up`.
pub(super) fn gated_backward(
    gate: &[f32],
    up: &[f32],
    grad: &[f32],
    activation: Activation,
) -> (Vec<f32>, Vec<f32>) {
    match activation {
        Activation::Silu => gated_backward_by(gate, up, grad, silu),
        Activation::Gelu => gated_backward_by(gate, up, grad, gelu),
        Activation::GeluTanh => gated_backward_by(gate, up, grad, gelu_tanh),
    }
}

/// `f` returns an activation and its derivative.
fn gated_by(gate: &[f32], up: &[f32], f: impl Fn(f32) -> (f32, f32) + Sync) -> Vec<f32> {
    let mut y = vec![0.0; gate.len()];
    y.par_chunks_mut(BLOCK).zip(gate.par_chunks(BLOCK)).zip(up.par_chunks(BLOCK)).for_each(
        |((y, gate), up)| {
            vectorized(|| {
                for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                    *y = f(g).0 * u;
                }
            });
        },
    );
    y
}

fn gated_backward_by(
    gate: &[f32],
    up: &[f32],
    grad: &[f32],
    f: impl Fn(f32) -> (f32, f32) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let (mut d_gate, mut d_up) = (vec![0.0; gate.len()], vec![0.0; gate.len()]);
    d_gate
        .par_chunks_mut(BLOCK)
        .zip(d_up.par_chunks_mut(BLOCK))
        .zip(gate.par_chunks(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .zip(grad.par_chunks(BLOCK))
        .for_each(|((((d_gate, d_up), gate), up), grad)| {
            vectorized(|| {
                for i in 0..gate.len() {
                    let (value, slope) = f(gate[i]);
                    d_up[i] = grad[i] * value;
                    d_gate[i] = grad[i] * up[i] * slope;
                }
            });
        });
    (d_gate, d_up)
}
