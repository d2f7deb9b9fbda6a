//! Activation functions and their derivatives.

use burn::tensor::{Tensor, backend::Backend};

/// The activation function of a gated feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`, exactly (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
}

/// `√(2/π)` and the cubic factor of GELU's tanh approximation.
pub(crate) const TANH_SCALE: f64 = 0.797_884_560_802_865_4;
pub(crate) const TANH_CUBE: f64 = 0.044_715;

impl Activation {
    /// The names that [`from_name`](Self::from_name) accepts, for messages.
    pub const NAMES: &str = "silu, swish, gelu, gelu_new or gelu_pytorch_tanh";

    /// Parses the name in `config.json`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            _ => None,
        }
    }

    /// Applies it, element by element.
    ///
    /// Not for autodiff: where `exp` overflows, the composed derivative would be `∞ · 0`. [`derivative`](Self::derivative)
    /// is finite everywhere.
    pub fn apply<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::Silu => x.clone() / (x.neg().exp() + 1.0),
            Self::Gelu => x.clone() * normal_share(x),
            Self::GeluTanh => x.clone() * ((tanh_argument(x)).tanh() + 1.0) * 0.5,
        }
    }

    /// Its derivative at `x`, element by element.
    pub fn derivative<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::Silu => {
                // s + x·s·(1 − s). Burn's sigmoid always computes in f32.
                let sigmoid = (x.clone().neg().exp() + 1.0).powi_scalar(-1);
                sigmoid.clone() * (x * (sigmoid.neg() + 1.0) + 1.0)
            }
            Self::Gelu => {
                let density = x.clone().powi_scalar(2).mul_scalar(-0.5).exp() * INV_SQRT_TAU;
                normal_share(x.clone()) + x * density
            }
            Self::GeluTanh => {
                let tanh = tanh_argument(x.clone()).tanh();
                let slope = (x.clone().powi_scalar(2) * (3.0 * TANH_CUBE) + 1.0) * TANH_SCALE;
                let rest = tanh.clone().powi_scalar(2).neg() + 1.0;
                (tanh + 1.0 + x * rest * slope) * 0.5
            }
        }
    }
}

/// `1 / √(2π)`.
pub(crate) const INV_SQRT_TAU: f64 = 0.398_942_280_401_432_7;

/// `Φ(x)`, the standard normal distribution function.
fn normal_share<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

fn tanh_argument<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    (x.clone() + x.powi_scalar(3) * TANH_CUBE) * TANH_SCALE
}
