//! Bounding numbers softly, as Gemma 2 bounds attention's scores and the logits (arXiv:2408.00118): `tanh(x / cap) · cap`.

use burn::tensor::{Tensor, backend::Backend};

/// How attention's scores follow from `q · kᵀ`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// Factor on the scalar products.
    pub scale: f64,
    /// The bound that scores approach, before the mask; `None`: they have none.
    pub soft_cap: Option<f64>,
}

impl Scoring {
    /// Scores without a bound.
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

/// `grad` times the slope of [`soft_capped`] where it gives `y`: `1 − (y / cap)²`.
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
