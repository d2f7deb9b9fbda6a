//! Codes to a dense matrix: a unit decodes a few adjacent elements and writes them as one vector.

use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::codes::{Buffers, NestedScales, code, scale, shared_table, value};
use super::has_kernels;
use crate::quantized::Quantized;

/// Elements of a vector, if the matrix size is a multiple.
const VECTOR: usize = 4;

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
    let table = shared_table(table, bits);
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
            let value = value(&table, code(codes, at, bits), bits);
            vector[lane] = F::cast_from(value * scale_here * unit);
        }
        out[ABSOLUTE_POS] = vector;
    }
}

/// The dense matrix; `None` if the kernel does not support types or sizes.
pub(super) fn dequantize<R, F, I, BT>(
    weight: &Quantized<CubeBackend<R, F, I, BT>>,
    dtype: DType,
) -> Option<Tensor<CubeBackend<R, F, I, BT>, 2>>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    let [d_out, d_in] = weight.dims();
    let elements = d_out * d_in;
    if !has_kernels(dtype) || elements == 0 || u32::try_from(elements).is_err() {
        return None;
    }
    let buffers = Buffers::of(weight)?;
    let nested = buffers.nested();
    let (client, device) = (buffers.codes.client.clone(), buffers.codes.device.clone());
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
            buffers.codes.into_array_arg(),
            buffers.table.into_array_arg(),
            buffers.scales.into_array_arg(),
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
