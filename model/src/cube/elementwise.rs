//! Rotary positions and gated activations: one unit per element, one pass over memory.

use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, cubes, empty, units};
use super::views::{with_tokens_outside, with_whole_rows};
use crate::Activation;
use crate::activation::{INV_SQRT_TAU, TANH_CUBE, TANH_SCALE};

/// A unit rotates one pair of features.
#[cube(launch_unchecked)]
fn rotate_kernel<F: Float, A: Float>(
    x: &Tensor<F>,
    cos: &Array<A>,
    sin: &Array<A>,
    y: &mut Tensor<F>,
    pairs: usize,
    #[define(F, A)] _dtypes: [StorageType; 2],
) {
    if ABSOLUTE_POS < pairs {
        let half = x.shape(3) / 2;
        let (heads, seq) = (x.shape(1), x.shape(2));
        let feature = ABSOLUTE_POS % half;
        let head = ABSOLUTE_POS / half % heads;
        let token = ABSOLUTE_POS / half / heads % seq;
        let batch = ABSOLUTE_POS / half / heads / seq;
        let angle = (batch * seq + token) * half + feature;
        let (cos, sin) = (f32::cast_from(cos[angle]), f32::cast_from(sin[angle]));
        let from = batch * x.stride(0) + head * x.stride(1) + token * x.stride(2) + feature;
        let to = batch * y.stride(0) + head * y.stride(1) + token * y.stride(2) + feature;
        let (a, b) = (f32::cast_from(x[from]), f32::cast_from(x[from + half]));
        y[to] = F::cast_from(a * cos - b * sin);
        y[to + half] = F::cast_from(b * cos + a * sin);
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    // If exp overflows, this is 0, the correct limit.
    1.0f32 / (1.0f32 + (-x).exp())
}

/// The activation and its derivative at x.
#[cube]
fn activated(x: f32, #[comptime] activation: Activation) -> (f32, f32) {
    match comptime![activation] {
        Activation::Silu => {
            let s = sigmoid(x);
            (x * s, s * (1.0f32 + x * (1.0f32 - s)))
        }
        Activation::Gelu => {
            let inverse = comptime![std::f32::consts::FRAC_1_SQRT_2];
            let share = 0.5f32 * (1.0f32 + Erf::erf(x * inverse));
            let density = (-0.5f32 * x * x).exp() * comptime![INV_SQRT_TAU as f32];
            (x * share, share + x * density)
        }
        Activation::GeluTanh => {
            // (1 + tanh(u)) / 2 is sigmoid(2u), which can't overflow.
            let cube = comptime![TANH_CUBE as f32];
            let scale = comptime![TANH_SCALE as f32];
            let s = sigmoid(2.0f32 * scale * (x + cube * x * x * x));
            let slope = scale * (1.0f32 + 3.0f32 * cube * x * x);
            (x * s, s + 2.0f32 * x * s * (1.0f32 - s) * slope)
        }
    }
}

#[cube(launch_unchecked)]
fn gated_kernel<F: Float>(
    gate: &Array<F>,
    up: &Array<F>,
    y: &mut Array<F>,
    elements: usize,
    #[comptime] activation: Activation,
    #[define(F)] _dtype: StorageType,
) {
    if ABSOLUTE_POS < elements {
        let (value, _derivative) = activated(f32::cast_from(gate[ABSOLUTE_POS]), activation);
        y[ABSOLUTE_POS] = F::cast_from(value * f32::cast_from(up[ABSOLUTE_POS]));
    }
}

#[cube(launch_unchecked)]
fn gated_backward_kernel<F: Float>(
    gate: &Array<F>,
    up: &Array<F>,
    grad: &Array<F>,
    d_gate: &mut Array<F>,
    d_up: &mut Array<F>,
    elements: usize,
    #[comptime] activation: Activation,
    #[define(F)] _dtype: StorageType,
) {
    if ABSOLUTE_POS < elements {
        let (value, derivative) = activated(f32::cast_from(gate[ABSOLUTE_POS]), activation);
        let grad = f32::cast_from(grad[ABSOLUTE_POS]);
        d_gate[ABSOLUTE_POS] = F::cast_from(grad * f32::cast_from(up[ABSOLUTE_POS]) * derivative);
        d_up[ABSOLUTE_POS] = F::cast_from(grad * value);
    }
}

/// `x`: `[batch, heads, seq, head_dim]`, in any layout; `cos`, `sin`: `[batch, 1, seq, head_dim / 2]`.
pub(super) fn rotate_half<R: CubeRuntime>(
    x: CubeTensor<R>,
    cos: CubeTensor<R>,
    sin: CubeTensor<R>,
    dims: [usize; 4],
) -> CubeTensor<R> {
    let (x, cos, sin) = (with_whole_rows(x), into_contiguous(cos), into_contiguous(sin));
    let client = x.client.clone();
    let y = with_tokens_outside(&x, dims, x.dtype);
    let pairs = dims.iter().product::<usize>() / 2;
    let dtypes = [x.dtype.into(), cos.dtype.into()];
    // SAFETY: a unit past the last pair does nothing; the others stay within the shapes.
    unsafe {
        rotate_kernel::launch_unchecked(
            &client,
            cubes(&client, pairs.div_ceil(UNITS)),
            units(),
            x.into_tensor_arg(),
            cos.into_array_arg(),
            sin.into_array_arg(),
            y.clone().into_tensor_arg(),
            pairs,
            dtypes,
        );
    }
    y
}

/// `[tokens, features]` all.
pub(super) fn gated<R: CubeRuntime>(
    gate: CubeTensor<R>,
    up: CubeTensor<R>,
    dims: [usize; 2],
    activation: Activation,
) -> CubeTensor<R> {
    let (gate, up) = (into_contiguous(gate), into_contiguous(up));
    let (client, dtype) = (gate.client.clone(), gate.dtype);
    let y = empty(&gate, dims, dtype);
    let elements = dims.iter().product::<usize>();
    // SAFETY: a unit past the last element does nothing.
    unsafe {
        gated_kernel::launch_unchecked(
            &client,
            cubes(&client, elements.div_ceil(UNITS)),
            units(),
            gate.into_array_arg(),
            up.into_array_arg(),
            y.clone().into_array_arg(),
            elements,
            activation,
            dtype.into(),
        );
    }
    y
}

/// The gradients by `gate` and `up`, `[tokens, features]` all.
pub(super) fn gated_backward<R: CubeRuntime>(
    gate: CubeTensor<R>,
    up: CubeTensor<R>,
    grad: CubeTensor<R>,
    dims: [usize; 2],
    activation: Activation,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let (gate, up, grad) = (into_contiguous(gate), into_contiguous(up), into_contiguous(grad));
    let (client, dtype) = (gate.client.clone(), gate.dtype);
    let (d_gate, d_up) = (empty(&gate, dims, dtype), empty(&gate, dims, dtype));
    let elements = dims.iter().product::<usize>();
    // SAFETY: a unit past the last element does nothing.
    unsafe {
        gated_backward_kernel::launch_unchecked(
            &client,
            cubes(&client, elements.div_ceil(UNITS)),
            units(),
            gate.into_array_arg(),
            up.into_array_arg(),
            grad.into_array_arg(),
            d_gate.clone().into_array_arg(),
            d_up.clone().into_array_arg(),
            elements,
            activation,
            dtype.into(),
        );
    }
    (d_gate, d_up)
}
