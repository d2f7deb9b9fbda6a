//! LayerNorm: one row per cube at a time.

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, cubes, empty, units};
use super::norm::sum_rows;
use super::reduce::cube_sum;

/// Rows over which one cube sums the gradients of weight and bias before writing them.
const ROWS: usize = 16;

/// The mean and the standard deviation of a row.
#[cube]
fn statistics<F: Float>(
    x: &Array<F>,
    first: usize,
    features: usize,
    eps: f32,
    shared: &mut SharedMemory<f32>,
) -> (f32, f32) {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < features {
        sum += f32::cast_from(x[first + i]);
        i += UNITS;
    }
    let mean = cube_sum(shared, sum) / f32::cast_from(features);
    let mut squares = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < features {
        let centred = f32::cast_from(x[first + i]) - mean;
        squares += centred * centred;
        i += UNITS;
    }
    let variance = cube_sum(shared, squares) / f32::cast_from(features);
    (mean, (variance + eps).sqrt())
}

#[cube(launch_unchecked)]
fn forward_kernel<F: Float, W: Float>(
    x: &Array<F>,
    weight: &Array<W>,
    bias: &Array<W>,
    y: &mut Array<F>,
    rows: usize,
    features: usize,
    eps: f32,
    #[define(F, W)] _dtypes: [StorageType; 2],
) {
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let first = row * features;
    let (mean, deviation) = statistics(x, first, features, eps, &mut shared);
    let mut i = UNIT_POS as usize;
    while i < features {
        let normed = (f32::cast_from(x[first + i]) - mean) / deviation;
        let value = normed * f32::cast_from(weight[i]) + f32::cast_from(bias[i]);
        y[first + i] = F::cast_from(value);
        i += UNITS;
    }
}

/// Writes `d_x`, and for each [`ROWS`] rows their partial gradients of weight and bias: `[rows / ROWS, features]`.
#[cube(launch_unchecked)]
fn backward_kernel<F: Float, W: Float>(
    x: &Array<F>,
    weight: &Array<W>,
    grad: &Array<F>,
    d_x: &mut Array<F>,
    d_weight: &mut Array<f32>,
    d_bias: &mut Array<f32>,
    rows: usize,
    features: usize,
    eps: f32,
    #[comptime] features_per_unit: usize,
    #[define(F, W)] _dtypes: [StorageType; 2],
) {
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let block = CUBE_POS;
    if block * ROWS >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let mut by_weight = Array::<f32>::new(features_per_unit);
    let mut by_bias = Array::<f32>::new(features_per_unit);
    #[unroll]
    for j in 0..features_per_unit {
        by_weight[j] = 0.0f32;
        by_bias[j] = 0.0f32;
    }
    let last = min(rows, (block + 1) * ROWS);
    for row in block * ROWS..last {
        let first = row * features;
        let (mean, deviation) = statistics(x, first, features, eps, &mut shared);
        let mut slopes = 0.0f32;
        let mut along = 0.0f32;
        let mut i = unit;
        while i < features {
            let d_normed = f32::cast_from(grad[first + i]) * f32::cast_from(weight[i]);
            slopes += d_normed;
            along += d_normed * (f32::cast_from(x[first + i]) - mean);
            i += UNITS;
        }
        // Centering and scaling remove the mean of the gradient and its component along x.
        let d_mean = cube_sum(&mut shared, slopes) / f32::cast_from(features);
        let along = cube_sum(&mut shared, along) / deviation / f32::cast_from(features);
        #[unroll]
        for j in 0..features_per_unit {
            let i = unit + j * UNITS;
            if i < features {
                let normed = (f32::cast_from(x[first + i]) - mean) / deviation;
                let slope = f32::cast_from(grad[first + i]);
                let d_normed = slope * f32::cast_from(weight[i]);
                d_x[first + i] = F::cast_from((d_normed - d_mean - normed * along) / deviation);
                by_weight[j] += slope * normed;
                by_bias[j] += slope;
            }
        }
    }
    #[unroll]
    for j in 0..features_per_unit {
        let i = unit + j * UNITS;
        if i < features {
            d_weight[block * features + i] = by_weight[j];
            d_bias[block * features + i] = by_bias[j];
        }
    }
}

/// `x`: `[rows, features]`, `weight`, `bias`: `[features]`.
pub(super) fn forward<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    bias: CubeTensor<R>,
    [rows, features]: [usize; 2],
    eps: f32,
) -> CubeTensor<R> {
    let (x, weight, bias) = (into_contiguous(x), into_contiguous(weight), into_contiguous(bias));
    let client = x.client.clone();
    let y = empty(&x, [rows, features], x.dtype);
    let dtypes = [x.dtype.into(), weight.dtype.into()];
    // SAFETY: a cube past the last row ends, and units stay below `features`.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            cubes(&client, rows),
            units(),
            x.into_array_arg(),
            weight.into_array_arg(),
            bias.into_array_arg(),
            y.clone().into_array_arg(),
            rows,
            features,
            eps,
            dtypes,
        );
    }
    y
}

/// The gradients by `x` `[rows, features]`, and by weight and bias `[features]`, in the weight's type.
pub(super) fn backward<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    grad: CubeTensor<R>,
    [rows, features]: [usize; 2],
    eps: f32,
) -> [CubeTensor<R>; 3] {
    let (x, weight, grad) = (into_contiguous(x), into_contiguous(weight), into_contiguous(grad));
    let client = x.client.clone();
    let blocks = rows.div_ceil(ROWS);
    let d_x = empty(&x, [rows, features], x.dtype);
    let by_weight = empty(&x, [blocks, features], DType::F32);
    let by_bias = empty(&x, [blocks, features], DType::F32);
    let weight_type = weight.dtype;
    let dtypes = [x.dtype.into(), weight_type.into()];
    // SAFETY: a cube past the last block ends, rows stay below `rows` and units below `features`.
    unsafe {
        backward_kernel::launch_unchecked(
            &client,
            cubes(&client, blocks),
            units(),
            x.into_array_arg(),
            weight.into_array_arg(),
            grad.into_array_arg(),
            d_x.clone().into_array_arg(),
            by_weight.clone().into_array_arg(),
            by_bias.clone().into_array_arg(),
            rows,
            features,
            eps,
            features.div_ceil(UNITS),
            dtypes,
        );
    }
    let [d_weight, d_bias] =
        [by_weight, by_bias].map(|parts| sum_rows(parts, [blocks, features], weight_type));
    [d_x, d_weight, d_bias]
}
