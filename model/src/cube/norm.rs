//! RMSNorm: one row per cube at a time.

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, cubes, empty, units};
use super::reduce::cube_sum;

/// Rows over which one cube sums the weight's gradient before writing it.
const ROWS: usize = 16;

#[cube(launch_unchecked)]
fn forward_kernel<F: Float, W: Float>(
    x: &Array<F>,
    weight: &Array<W>,
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
    let unit = UNIT_POS as usize;
    let first = row * features;
    let mut squares = 0.0f32;
    let mut i = unit;
    while i < features {
        let value = f32::cast_from(x[first + i]);
        squares += value * value;
        i += UNITS;
    }
    let squares = cube_sum(&mut shared, squares);
    let rms = (squares / f32::cast_from(features) + eps).sqrt();
    let mut i = unit;
    while i < features {
        let value = f32::cast_from(x[first + i]);
        y[first + i] = F::cast_from(value / rms * f32::cast_from(weight[i]));
        i += UNITS;
    }
}

/// Writes `d_x`, and for each [`ROWS`] rows their partial gradient of the weight: `[rows / ROWS, features]`.
#[cube(launch_unchecked)]
fn backward_kernel<F: Float, W: Float>(
    x: &Array<F>,
    weight: &Array<W>,
    grad: &Array<F>,
    d_x: &mut Array<F>,
    d_weight: &mut Array<f32>,
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
    let mut sums = Array::<f32>::new(features_per_unit);
    #[unroll]
    for j in 0..features_per_unit {
        sums[j] = 0.0f32;
    }
    let last = min(rows, (block + 1) * ROWS);
    for row in block * ROWS..last {
        let first = row * features;
        let mut squares = 0.0f32;
        let mut along = 0.0f32;
        let mut i = unit;
        while i < features {
            let value = f32::cast_from(x[first + i]);
            squares += value * value;
            along += f32::cast_from(grad[first + i]) * f32::cast_from(weight[i]) * value;
            i += UNITS;
        }
        let squares = cube_sum(&mut shared, squares);
        let along = cube_sum(&mut shared, along);
        let rms = (squares / f32::cast_from(features) + eps).sqrt();
        // The norm removes the component of the gradient along x.
        let along = along / rms / f32::cast_from(features);
        #[unroll]
        for j in 0..features_per_unit {
            let i = unit + j * UNITS;
            if i < features {
                let normed = f32::cast_from(x[first + i]) / rms;
                let slope = f32::cast_from(grad[first + i]);
                let d_normed = slope * f32::cast_from(weight[i]);
                d_x[first + i] = F::cast_from((d_normed - normed * along) / rms);
                sums[j] += slope * normed;
            }
        }
    }
    #[unroll]
    for j in 0..features_per_unit {
        let i = unit + j * UNITS;
        if i < features {
            d_weight[block * features + i] = sums[j];
        }
    }
}

/// The sum over rows of `[rows, features]`, one unit per feature, in row order.
#[cube(launch_unchecked)]
fn sum_rows_kernel<W: Float>(
    parts: &Array<f32>,
    out: &mut Array<W>,
    rows: usize,
    features: usize,
    #[define(W)] _dtype: StorageType,
) {
    if ABSOLUTE_POS < features {
        let mut sum = 0.0f32;
        for row in 0..rows {
            sum += parts[row * features + ABSOLUTE_POS];
        }
        out[ABSOLUTE_POS] = W::cast_from(sum);
    }
}

/// `x`: `[rows, features]`, `weight`: `[features]`.
pub(super) fn forward<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    [rows, features]: [usize; 2],
    eps: f32,
) -> CubeTensor<R> {
    let (x, weight) = (into_contiguous(x), into_contiguous(weight));
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
            y.clone().into_array_arg(),
            rows,
            features,
            eps,
            dtypes,
        );
    }
    y
}

/// `d_x`: `[rows, features]`, `d_weight`: `[features]`.
pub(super) fn backward<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    grad: CubeTensor<R>,
    [rows, features]: [usize; 2],
    eps: f32,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let (x, weight, grad) = (into_contiguous(x), into_contiguous(weight), into_contiguous(grad));
    let client = x.client.clone();
    let blocks = rows.div_ceil(ROWS);
    let d_x = empty(&x, [rows, features], x.dtype);
    let parts = empty(&x, [blocks, features], DType::F32);
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
            parts.clone().into_array_arg(),
            rows,
            features,
            eps,
            features.div_ceil(UNITS),
            dtypes,
        );
    }
    (d_x, sum_rows(parts, [blocks, features], weight_type))
}

/// The sum over rows of `[rows, features]`, f32: `[features]`.
pub(super) fn sum_rows<R: CubeRuntime>(
    parts: CubeTensor<R>,
    [rows, features]: [usize; 2],
    dtype: DType,
) -> CubeTensor<R> {
    let client = parts.client.clone();
    let out = empty(&parts, [features], dtype);
    // SAFETY: a unit past the last feature does nothing.
    unsafe {
        sum_rows_kernel::launch_unchecked(
            &client,
            cubes(&client, features.div_ceil(UNITS)),
            units(),
            parts.into_array_arg(),
            out.clone().into_array_arg(),
            rows,
            features,
            dtype.into(),
        );
    }
    out
}
