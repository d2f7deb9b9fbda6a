//! Activations with their derivatives, branch-free, so that loops over them vectorize.

use super::simd::{erfc, exp};
use crate::activation::{INV_SQRT_TAU, TANH_CUBE, TANH_SCALE};

/// See [`Activation::Silu`](crate::Activation::Silu).
#[inline(always)]
pub(super) fn silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    (x * s, s * (1.0 + x * (1.0 - s)))
}

/// See [`Activation::Gelu`](crate::Activation::Gelu).
#[inline(always)]
pub(super) fn gelu(x: f32) -> (f32, f32) {
    // From the complement, which is accurate for small values.
    let share = 0.5 * erfc(-x * std::f32::consts::FRAC_1_SQRT_2);
    let density = exp(-0.5 * x * x) * INV_SQRT_TAU as f32;
    (x * share, share + x * density)
}

/// See [`Activation::GeluTanh`](crate::Activation::GeluTanh).
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> (f32, f32) {
    let (scale, cube) = (TANH_SCALE as f32, TANH_CUBE as f32);
    // (1 + tanh(u)) / 2 is sigmoid(2u).
    let s = sigmoid(2.0 * scale * (x + cube * x * x * x));
    let slope = scale * (1.0 + 3.0 * cube * x * x);
    (x * s, s + 2.0 * x * s * (1.0 - s) * slope)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
