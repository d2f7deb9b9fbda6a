//! Soft caps, as Gemma 2 uses them for attention scores and logits (arXiv:2408.00118): `tanh(x / cap) · cap`.

use burn::tensor::{Tensor, backend::Backend};

/// How attention scores are computed from `q · kᵀ`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// Factor on the dot products.
    pub scale: f64,
    /// Soft cap of the scores, before the mask.
    pub soft_cap: Option<f64>,
}

impl Scoring {
    /// Scores without a soft cap.
    pub fn scaled(scale: f64) -> Self {
        Self { scale, soft_cap: None }
    }
}

/// `tanh(x / cap) · cap`, element by element; without a cap, `x`.
pub fn soft_capped<B: Backend, const D: usize>(x: Tensor<B, D>, cap: Option<f64>) -> Tensor<B, D> {
    match cap {
        Some(cap) => (x / cap).tanh() * cap,
        None => x,
    }
}

/// `grad` times the derivative of [`soft_capped`] at its output `y`: `1 − (y / cap)²`.
pub(crate) fn soft_cap_backward<B: Backend, const D: usize>(
    y: Tensor<B, D>,
    grad: Tensor<B, D>,
    cap: Option<f64>,
) -> Tensor<B, D> {
    match cap {
        Some(cap) => grad * ((y / cap).powi_scalar(2).neg() + 1.0),
        None => grad,
    }
}
