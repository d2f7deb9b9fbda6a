//! The two matrix products of attention, on tiles in a cube's registers and shared memory.
//!
//! A cube is 16 × 16 units. A tile of scores has `16 · rows_per_unit` rows and [`COLUMNS`] columns; the unit at line r
//! and column c holds rows r, r + 16 … and columns c, c + 16 …. Units exchange data through 16 KiB of shared memory,
//! WebGPU's guaranteed minimum: first [`DEPTH`] features of both factors of a product, then the rows' maxima, then the
//! whole tile.

use cubecl::prelude::*;

use super::super::launch::UNITS;

/// Units in a line, and lines.
pub(super) const LINE: usize = 16;

/// Columns of a tile.
pub(super) const COLUMNS: usize = 64;

/// Columns of a tile that a unit holds.
pub(super) const COLUMNS_PER_UNIT: usize = COLUMNS / LINE;

/// Features of both factors in shared memory at a time.
const DEPTH: usize = 16;

/// Their row stride: one more, so that the units of a line read from different banks.
const ROW: usize = DEPTH + 1;

/// Compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Size {
    pub(super) rows_per_unit: usize,
    pub(super) head_dim: usize,
}

impl Size {
    /// Rows of a tile.
    pub(super) fn rows(self) -> usize {
        self.rows_per_unit * LINE
    }

    /// Numbers of shared memory.
    pub(super) fn shared(self) -> usize {
        (self.rows() * COLUMNS).max((self.rows() + COLUMNS) * ROW)
    }

    /// Scores that a unit holds.
    pub(super) fn scores(self) -> usize {
        self.rows_per_unit * COLUMNS_PER_UNIT
    }

    /// Features of a row of output that a unit holds.
    pub(super) fn features_per_unit(self) -> usize {
        self.head_dim.div_ceil(LINE)
    }

    /// Numbers of output that a unit holds.
    pub(super) fn outputs(self) -> usize {
        self.rows_per_unit * self.features_per_unit()
    }
}

/// Zeros.
#[cube]
pub(super) fn zeros(#[comptime] length: usize) -> Array<f32> {
    let mut array = Array::<f32>::new(length);
    #[unroll]
    for i in 0..length {
        array[i] = 0.0f32;
    }
    array
}

/// Copies `count` rows of [`DEPTH`] features, from feature `first` on, to shared memory at `to`; missing values are
/// zero.
#[cube]
fn bring<F: Float>(
    x: &Tensor<F>,
    at: usize,
    stride: usize,
    count: usize,
    first: usize,
    shared: &mut SharedMemory<f32>,
    #[comptime] to: usize,
    #[comptime] rows_per_unit: usize,
    #[comptime] head_dim: usize,
) {
    let unit = UNIT_POS as usize;
    let feature = unit % DEPTH;
    #[unroll]
    for i in 0..rows_per_unit {
        let row = unit / DEPTH + comptime![i * UNITS / DEPTH];
        let mut value = 0.0f32;
        if row < count && first + feature < head_dim {
            value = f32::cast_from(x[at + row * stride + first + feature]);
        }
        shared[to + row * ROW + feature] = value;
    }
}

/// The dot products of `a_count` rows of `a` with `b_count` rows of `b`, each row `head_dim` features from `at` on.
/// Shared memory is free before and after.
#[cube]
pub(super) fn product<F: Float>(
    a: &Tensor<F>,
    a_at: usize,
    a_stride: usize,
    a_count: usize,
    b: &Tensor<F>,
    b_at: usize,
    b_stride: usize,
    b_count: usize,
    shared: &mut SharedMemory<f32>,
    scores: &mut Array<f32>,
    #[comptime] size: Size,
) {
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    let b_to = comptime![size.rows() * ROW];
    let rows_per_unit = comptime![size.rows_per_unit];
    let head_dim = comptime![size.head_dim];
    #[unroll]
    for i in 0..comptime![size.scores()] {
        scores[i] = 0.0f32;
    }
    let steps = comptime![size.head_dim.div_ceil(DEPTH)];
    for step in 0..steps {
        let first = step * DEPTH;
        bring(a, a_at, a_stride, a_count, first, shared, 0usize, rows_per_unit, head_dim);
        bring(b, b_at, b_stride, b_count, first, shared, b_to, COLUMNS_PER_UNIT, head_dim);
        sync_cube();
        #[unroll]
        for feature in 0..DEPTH {
            let mut right = Array::<f32>::new(COLUMNS_PER_UNIT);
            #[unroll]
            for j in 0..COLUMNS_PER_UNIT {
                right[j] = shared[b_to + (place + j * LINE) * ROW + feature];
            }
            #[unroll]
            for i in 0..rows_per_unit {
                let left = shared[(line + i * LINE) * ROW + feature];
                #[unroll]
                for j in 0..COLUMNS_PER_UNIT {
                    scores[i * COLUMNS_PER_UNIT + j] += left * right[j];
                }
            }
        }
        sync_cube();
    }
}

/// Adds the product of the tile in shared memory with `count` rows of `x` to `out`.
#[cube]
pub(super) fn accumulate<F: Float>(
    shared: &SharedMemory<f32>,
    x: &Tensor<F>,
    at: usize,
    stride: usize,
    count: usize,
    out: &mut Array<f32>,
    #[comptime] size: Size,
) {
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    let rows_per_unit = comptime![size.rows_per_unit];
    let features = comptime![size.features_per_unit()];
    for column in 0..count {
        let mut left = Array::<f32>::new(rows_per_unit);
        #[unroll]
        for i in 0..rows_per_unit {
            left[i] = shared[(line + i * LINE) * COLUMNS + column];
        }
        #[unroll]
        for f in 0..features {
            let feature = place + f * LINE;
            let mut right = 0.0f32;
            if feature < comptime![size.head_dim] {
                right = f32::cast_from(x[at + column * stride + feature]);
            }
            #[unroll]
            for i in 0..rows_per_unit {
                out[i * features + f] += left[i] * right;
            }
        }
    }
}

/// Copies a tile to shared memory, for [`accumulate`].
#[cube]
pub(super) fn share(tile: &Array<f32>, shared: &mut SharedMemory<f32>, #[comptime] size: Size) {
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    #[unroll]
    for i in 0..comptime![size.rows_per_unit] {
        #[unroll]
        for j in 0..COLUMNS_PER_UNIT {
            shared[(line + i * LINE) * COLUMNS + place + j * LINE] = tile[i * COLUMNS_PER_UNIT + j];
        }
    }
}

/// Shares a number for each of the unit's rows with the other units of its line.
#[cube]
pub(super) fn share_rows(
    values: &Array<f32>,
    shared: &mut SharedMemory<f32>,
    #[comptime] size: Size,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for i in 0..comptime![size.rows_per_unit] {
        shared[i * UNITS + unit] = values[i];
    }
}

/// The line's maximum for the unit's row `i`.
#[cube]
pub(super) fn greatest_of_line(shared: &SharedMemory<f32>, #[comptime] i: usize) -> f32 {
    let start = UNIT_POS as usize / LINE * LINE + i * UNITS;
    let mut greatest = shared[start];
    #[unroll]
    for place in 1..LINE {
        greatest = max(greatest, shared[start + place]);
    }
    greatest
}

/// The sum of the line's numbers for the unit's row `i`, in column order.
#[cube]
pub(super) fn sum_of_line(shared: &SharedMemory<f32>, #[comptime] i: usize) -> f32 {
    let start = UNIT_POS as usize / LINE * LINE + i * UNITS;
    let mut sum = shared[start];
    #[unroll]
    for place in 1..LINE {
        sum += shared[start + place];
    }
    sum
}

/// Writes `count` rows of output, each times its factor.
#[cube]
pub(super) fn write<F: Float>(
    out: &Array<f32>,
    factors: &Array<f32>,
    to: &mut Tensor<F>,
    at: usize,
    stride: usize,
    count: usize,
    #[comptime] size: Size,
) {
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    let features = comptime![size.features_per_unit()];
    #[unroll]
    for i in 0..comptime![size.rows_per_unit] {
        let row = line + i * LINE;
        if row < count {
            #[unroll]
            for f in 0..features {
                let feature = place + f * LINE;
                if feature < comptime![size.head_dim] {
                    to[at + row * stride + feature] =
                        F::cast_from(out[i * features + f] * factors[i]);
                }
            }
        }
    }
}
