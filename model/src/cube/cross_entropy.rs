//! Cross-entropy: one cube per row of logits.

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, cubes, empty, units};
use super::reduce::{cube_max, cube_sum};
use super::soft_cap::{slope, soft_capped};

/// The logarithm of the sum over a row of the exponentials, in one pass over the row.
#[cube]
fn log_sum_exp<F: Float>(
    logits: &Array<F>,
    first: usize,
    vocab: usize,
    cap: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] is_capped: bool,
) -> f32 {
    let mut greatest = f32::min_value();
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < vocab {
        let logit = soft_capped(f32::cast_from(logits[first + i]), cap, is_capped);
        if logit > greatest {
            sum = sum * (greatest - logit).exp() + 1.0f32;
            greatest = logit;
        } else {
            sum += (logit - greatest).exp();
        }
        i += UNITS;
    }
    let of_row = cube_max(shared, greatest);
    let sum = cube_sum(shared, sum * (greatest - of_row).exp());
    of_row + sum.ln()
}

/// `targets` are below `vocab`: larger ones are clamped, so that nothing outside the row is read.
#[cube(launch_unchecked)]
fn losses_kernel<F: Float, I: Int>(
    logits: &Array<F>,
    targets: &Array<I>,
    losses: &mut Array<f32>,
    rows: usize,
    vocab: usize,
    cap: f32,
    #[comptime] is_capped: bool,
    #[define(F, I)] _dtypes: [StorageType; 2],
) {
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let first = row * vocab;
    let log_sum = log_sum_exp(logits, first, vocab, cap, &mut shared, is_capped);
    if UNIT_POS == 0 {
        let target = min(u32::cast_from(targets[row]) as usize, vocab - 1);
        let logit = soft_capped(f32::cast_from(logits[first + target]), cap, is_capped);
        losses[row] = log_sum - logit;
    }
}

/// As [`losses_kernel`], and the gradient by the logits; it may reuse the logits' memory.
#[cube(launch_unchecked)]
fn losses_with_grad_kernel<F: Float, I: Int>(
    logits: &Array<F>,
    targets: &Array<I>,
    losses: &mut Array<f32>,
    gradient: &mut Array<F>,
    rows: usize,
    vocab: usize,
    cap: f32,
    #[comptime] is_capped: bool,
    #[define(F, I)] _dtypes: [StorageType; 2],
) {
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let first = row * vocab;
    let log_sum = log_sum_exp(logits, first, vocab, cap, &mut shared, is_capped);
    let target = min(u32::cast_from(targets[row]) as usize, vocab - 1);
    // A unit writes only values that no other unit reads.
    let mut i = unit;
    while i < vocab {
        let logit = soft_capped(f32::cast_from(logits[first + i]), cap, is_capped);
        let mut by_logit = (logit - log_sum).exp();
        if i == target {
            by_logit -= 1.0f32;
            losses[row] = log_sum - logit;
        }
        gradient[first + i] = F::cast_from(by_logit * slope(logit, cap, is_capped));
        i += UNITS;
    }
}

/// The sum of all values, by one cube.
#[cube(launch_unchecked)]
fn sum_kernel(values: &Array<f32>, out: &mut Array<f32>, count: usize) {
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < count {
        sum += values[i];
        i += UNITS;
    }
    let sum = cube_sum(&mut shared, sum);
    if UNIT_POS == 0 {
        out[0] = sum;
    }
}

/// The sum of the rows' losses: `[1]`, f32. `logits`: `[rows, vocab]`, `targets`: `[rows]`.
pub(super) fn sum<R: CubeRuntime>(
    logits: CubeTensor<R>,
    targets: CubeTensor<R>,
    [rows, vocab]: [usize; 2],
    soft_cap: Option<f64>,
) -> CubeTensor<R> {
    let (logits, targets) = (into_contiguous(logits), into_contiguous(targets));
    let client = logits.client.clone();
    let losses = empty(&logits, [rows], DType::F32);
    let dtypes = [logits.dtype.into(), targets.dtype.into()];
    // SAFETY: a cube past the last row ends, and everything stays below `vocab`.
    unsafe {
        losses_kernel::launch_unchecked(
            &client,
            cubes(&client, rows),
            units(),
            logits.into_array_arg(),
            targets.into_array_arg(),
            losses.clone().into_array_arg(),
            rows,
            vocab,
            soft_cap.unwrap_or(1.0) as f32,
            soft_cap.is_some(),
            dtypes,
        );
    }
    total(losses, rows)
}

/// As [`sum`], with the gradient by the logits; in the logits' memory, if it is not shared.
pub(super) fn with_grad<R: CubeRuntime>(
    logits: CubeTensor<R>,
    targets: CubeTensor<R>,
    [rows, vocab]: [usize; 2],
    soft_cap: Option<f64>,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let (logits, targets) = (into_contiguous(logits), into_contiguous(targets));
    let client = logits.client.clone();
    let losses = empty(&logits, [rows], DType::F32);
    let dtypes = [logits.dtype.into(), targets.dtype.into()];
    let (gradient, gradient_arg) = if logits.can_mut() {
        let alias = logits.as_tensor_alias(0).into_array_arg();
        (logits.clone(), alias)
    } else {
        let gradient = empty(&logits, [rows, vocab], logits.dtype);
        (gradient.clone(), gradient.into_array_arg())
    };
    // SAFETY: a cube past the last row ends, and everything stays below `vocab`.
    unsafe {
        losses_with_grad_kernel::launch_unchecked(
            &client,
            cubes(&client, rows),
            units(),
            logits.into_array_arg(),
            targets.into_array_arg(),
            losses.clone().into_array_arg(),
            gradient_arg,
            rows,
            vocab,
            soft_cap.unwrap_or(1.0) as f32,
            soft_cap.is_some(),
            dtypes,
        );
    }
    (total(losses, rows), gradient)
}

fn total<R: CubeRuntime>(losses: CubeTensor<R>, rows: usize) -> CubeTensor<R> {
    let client = losses.client.clone();
    let out = empty(&losses, [1], DType::F32);
    // SAFETY: one cube, whose units stay below `rows`.
    unsafe {
        sum_kernel::launch_unchecked(
            &client,
            CubeCount::new_single(),
            units(),
            losses.into_array_arg(),
            out.clone().into_array_arg(),
            rows,
        );
    }
    out
}
