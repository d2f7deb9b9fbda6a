//! Codes to a dense matrix: a unit decodes a few neighbouring elements and writes them as one vector.

use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use crate::PackedBytes;
use crate::quantized::{Quantized, QuantizedScales};

/// Values of a 4-bit format.
const TABLE: usize = 16;

/// Elements of a vector, where the matrix has a multiple of it.
const VECTOR: usize = 4;

/// Scales that are quantized themselves.
#[derive(CubeType, CubeLaunch)]
struct NestedScales {
    absmax: Array<f32>,
    map: Array<f32>,
    block: usize,
    offset: f32,
    /// 0, which the compiler doesn't know.
    zero: u32,
}

/// The code of element `at`. Bytes lie four to a word, the first in the lowest bits; codes of 4 bits two to a byte, the
/// first in the high half, so that elements 0, 1, 2, 3 begin at bits 4, 0, 12, 8.
#[cube]
fn code(codes: &Array<u32>, at: usize, #[comptime] bits: usize) -> u32 {
    let per_word = comptime![32 / bits];
    let place = (at % per_word) as u32;
    let word = codes[at / per_word];
    if comptime![bits == 4] {
        (word >> ((place ^ 1) * 4)) & 15
    } else {
        (word >> (place * 8)) & 255
    }
}

/// Scale `at`.
#[cube]
fn scale(scales: &Array<u32>, nested: &ComptimeOption<NestedScales>, at: usize) -> f32 {
    #[comptime]
    match nested {
        ComptimeOption::Some(nested) => {
            let value = nested.map[code(scales, at, 8usize) as usize];
            let product = value * nested.absmax[at / nested.block];
            // Compilers for GPUs make one operation of a product and a sum, which rounds once where bitsandbytes rounds
            // twice. Through an integer operation whose result they can't foresee, they don't.
            f32::reinterpret(u32::reinterpret(product) ^ nested.zero) + nested.offset
        }
        ComptimeOption::None => f32::reinterpret(scales[at]),
    }
}

#[cube(launch_unchecked)]
fn dequantize_kernel<F: Float, N: Size>(
    codes: &Array<u32>,
    table: &Array<f32>,
    scales: &Array<u32>,
    nested: &ComptimeOption<NestedScales>,
    out: &mut Array<Vector<F, N>>,
    block: usize,
    unit: f32,
    vectors: usize,
    #[comptime] bits: usize,
    // Whether the elements of a vector always share a scale.
    #[comptime] one_scale: bool,
    #[define(F)] _dtype: StorageType,
) {
    let mut shared = SharedMemory::<f32>::new(TABLE);
    if comptime![bits == 4] {
        let entry = UNIT_POS as usize;
        if entry < TABLE {
            shared[entry] = table[entry];
        }
        sync_cube();
    }
    if ABSOLUTE_POS < vectors {
        let lanes = N::value();
        let first = ABSOLUTE_POS * lanes;
        let mut vector = Vector::<F, N>::empty();
        let mut scale_here = scale(scales, nested, first / block);
        #[unroll]
        for lane in 0..lanes {
            let at = first + lane;
            if comptime![!one_scale && lane > 0] {
                scale_here = scale(scales, nested, at / block);
            }
            let code = code(codes, at, bits);
            // Codes of 8 bits are their own values, signed.
            let value = if comptime![bits == 4] {
                shared[code as usize]
            } else {
                f32::cast_from(i32::cast_from(code ^ 128) - 128)
            };
            vector[lane] = F::cast_from(value * scale_here * unit);
        }
        out[ABSOLUTE_POS] = vector;
    }
}

/// The dense matrix; `None` where types or sizes are not those that the kernel is made for.
pub(super) fn dequantize<R, F, I, BT>(
    weight: &Quantized<CubeBackend<R, F, I, BT>>,
) -> Option<Tensor<CubeBackend<R, F, I, BT>, 2>>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    let [d_out, d_in] = weight.dims();
    let elements = d_out * d_in;
    let dtype = F::dtype();
    let is_known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_known || elements == 0 || u32::try_from(elements).is_err() {
        return None;
    }
    let words = |bytes: &PackedBytes<_>| of_type(bytes.tensor().into_primitive(), DType::I32);
    let floats = |tensor: &Tensor<_, 1>| of_type(primitive(tensor.clone()), DType::F32);
    let (codes, table) = (words(&weight.codes)?, floats(&weight.table)?);
    let (client, device) = (codes.client.clone(), codes.device.clone());
    let (scales, nested) = match &weight.scales {
        QuantizedScales::Plain(scales) => (floats(scales)?, ComptimeOptionArgs::None),
        QuantizedScales::Nested(nested) => {
            let launch = NestedScalesLaunch::new(
                floats(&nested.absmax)?.into_array_arg(),
                floats(&nested.map)?.into_array_arg(),
                nested.block,
                nested.offset as f32,
                0,
            );
            (words(&nested.codes)?, ComptimeOptionArgs::Some(launch))
        }
    };
    let vector = if elements.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let vectors = elements / vector;
    let out = empty_device_contiguous_dtype(client.clone(), device, [d_out, d_in].into(), dtype);
    let dim = CubeDim::new_1d(256);
    let count = calculate_cube_count_elemwise(&client, vectors, dim);
    // SAFETY: units past the last vector write nothing; codes and scales are filled up to whole blocks, so what the others
    // read is there.
    unsafe {
        dequantize_kernel::launch_unchecked(
            &client,
            count,
            dim,
            vector,
            codes.into_array_arg(),
            table.into_array_arg(),
            scales.into_array_arg(),
            nested,
            out.clone().into_array_arg(),
            weight.block,
            weight.format().unit(),
            vectors,
            weight.format().bits(),
            weight.block.is_multiple_of(vector),
            dtype.into(),
        );
    }
    Some(Tensor::from_primitive(TensorPrimitive::Float(out)))
}

fn primitive<R, F, I, BT>(tensor: Tensor<CubeBackend<R, F, I, BT>, 1>) -> CubeTensor<R>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    tensor.into_primitive().tensor()
}

/// The tensor without gaps, if it is of this type.
fn of_type<R: CubeRuntime>(tensor: CubeTensor<R>, dtype: DType) -> Option<CubeTensor<R>> {
    (tensor.dtype == dtype).then(|| into_contiguous(tensor))
}
