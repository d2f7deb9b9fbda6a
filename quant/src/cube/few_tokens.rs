//! The product for a few tokens, as in generation. It is bound by reading the weight, so codes are decoded and
//! multiplied in registers, without a dense matrix.

use burn::tensor::{Tensor, TensorPrimitive};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::codes::{Buffers, NestedScales, code, scale, shared_table, value};
use super::has_kernels;
use crate::quantized::Quantized;

/// Maximum number of tokens for the kernel.
pub(super) const FEW_TOKENS: usize = 4;

/// Units that share a row of the weight.
const UNITS_PER_ROW: usize = 32;

/// Rows of a cube.
const ROWS: usize = 8;

/// Units of a cube.
const UNITS: usize = UNITS_PER_ROW * ROWS;

/// Elements of `x` that are read at once.
const VECTOR: usize = 4;

/// A unit takes every 32nd word of its row; the units of a row add up their sums in a fixed order.
#[cube(launch_unchecked)]
fn few_tokens_kernel<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    codes: &Array<u32>,
    table: &Array<f32>,
    scales: &Array<u32>,
    nested: &ComptimeOption<NestedScales>,
    y: &mut Array<F>,
    d_out: usize,
    d_in: usize,
    block: usize,
    unit_value: f32,
    #[comptime] tokens: usize,
    #[comptime] bits: usize,
    // Whether the elements of a word always share a scale.
    #[comptime] one_scale: bool,
    #[define(F)] _dtype: StorageType,
) {
    let table = shared_table(table, bits);
    let mut shared = SharedMemory::<f32>::new(comptime![tokens * UNITS]);
    let unit = UNIT_POS as usize;
    let place = unit % UNITS_PER_ROW;
    let row = CUBE_POS * ROWS + unit / UNITS_PER_ROW;
    let per_word = comptime![32 / bits];
    let vectors = comptime![per_word / VECTOR];
    let mut sums = Array::<f32>::new(tokens);
    #[unroll]
    for token in 0..tokens {
        sums[token] = 0.0f32;
    }
    if row < d_out {
        let mut word = place;
        while word < d_in / per_word {
            let first = row * d_in + word * per_word;
            let mut scale_here = scale(scales, nested, first / block) * unit_value;
            #[unroll]
            for v in 0..vectors {
                let mut values = Array::<f32>::new(VECTOR);
                #[unroll]
                for lane in 0..VECTOR {
                    let at = first + comptime![v * VECTOR + lane];
                    if comptime![!one_scale && v + lane > 0] {
                        scale_here = scale(scales, nested, at / block) * unit_value;
                    }
                    values[lane] = value(&table, code(codes, at, bits), bits) * scale_here;
                }
                #[unroll]
                for token in 0..tokens {
                    let of_x = x[token * (d_in / VECTOR) + word * vectors + v];
                    #[unroll]
                    for lane in 0..VECTOR {
                        sums[token] += values[lane] * f32::cast_from(of_x[lane]);
                    }
                }
            }
            word += UNITS_PER_ROW;
        }
    }
    #[unroll]
    for token in 0..tokens {
        shared[token * UNITS + unit] = sums[token];
    }
    sync_cube();
    let mut half = comptime![UNITS_PER_ROW / 2].runtime();
    while half > 0 {
        if place < half {
            #[unroll]
            for token in 0..tokens {
                let other = shared[token * UNITS + unit + half];
                shared[token * UNITS + unit] += other;
            }
        }
        sync_cube();
        half /= 2;
    }
    if place == 0 && row < d_out {
        #[unroll]
        for token in 0..tokens {
            y[token * d_out + row] = F::cast_from(shared[token * UNITS + unit]);
        }
    }
}

/// `x · Wᵀ`: `[tokens, d_in] -> [tokens, d_out]`; `None` for too many tokens, rows that are not full words, or
/// unsupported types or sizes.
pub(super) fn few_tokens<R, F, I, BT>(
    x: &Tensor<CubeBackend<R, F, I, BT>, 2>,
    weight: &Quantized<CubeBackend<R, F, I, BT>>,
) -> Option<Tensor<CubeBackend<R, F, I, BT>, 2>>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    let ([d_out, d_in], [tokens, width]) = (weight.dims(), x.dims());
    let bits = weight.format().bits();
    let (per_word, dtype) = (32 / bits, x.dtype());
    let is_few = (1..=FEW_TOKENS).contains(&tokens) && d_out > 0 && d_in > 0;
    let is_aligned = d_in.is_multiple_of(per_word) && u32::try_from(d_out * d_in).is_ok();
    if !has_kernels(dtype) || !is_few || !is_aligned || width != d_in {
        return None;
    }
    let buffers = Buffers::of(weight)?;
    let nested = buffers.nested();
    let x = into_contiguous(x.clone().into_primitive().tensor());
    let (client, device) = (x.client.clone(), x.device.clone());
    let y = empty_device_contiguous_dtype(client.clone(), device, [tokens, d_out].into(), dtype);
    let count = calculate_cube_count_elemwise(&client, d_out.div_ceil(ROWS), CubeDim::new_single());
    // SAFETY: a unit past the last row neither reads the weight nor writes; rows are whole words, and so whole vectors.
    unsafe {
        few_tokens_kernel::launch_unchecked(
            &client,
            count,
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            x.into_array_arg(),
            buffers.codes.into_array_arg(),
            buffers.table.into_array_arg(),
            buffers.scales.into_array_arg(),
            nested,
            y.clone().into_array_arg(),
            d_out,
            d_in,
            weight.block,
            weight.format().unit(),
            tokens,
            bits,
            weight.block.is_multiple_of(per_word),
            dtype.into(),
        );
    }
    Some(Tensor::from_primitive(TensorPrimitive::Float(y)))
}
