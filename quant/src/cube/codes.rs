//! Reading codes and scales in kernels.

use burn::tensor::{DType, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use crate::PackedBytes;
use crate::quantized::{Quantized, QuantizedScales};

/// Values of a 4-bit format.
const TABLE: usize = 16;

/// Quantized scales (double quantization).
#[derive(CubeType, CubeLaunch)]
pub(super) struct NestedScales {
    absmax: Array<f32>,
    map: Array<f32>,
    block: usize,
    offset: f32,
    /// 0, but not known at compile time.
    zero: u32,
}

/// The code of element `at`. Four bytes per word, the first in the lowest bits; two 4-bit codes per byte, the first in
/// the high half. So elements 0, 1, 2, 3 start at bits 4, 0, 12, 8.
#[cube]
pub(super) fn code(codes: &Array<u32>, at: usize, #[comptime] bits: usize) -> u32 {
    let per_word = comptime![32 / bits];
    let place = (at % per_word) as u32;
    let word = codes[at / per_word];
    if comptime![bits == 4] {
        (word >> ((place ^ 1) * 4)) & 15
    } else {
        (word >> (place * 8)) & 255
    }
}

/// The table of a 4-bit format in shared memory. All units of a cube must call it.
#[cube]
pub(super) fn shared_table(table: &Array<f32>, #[comptime] bits: usize) -> SharedMemory<f32> {
    let mut shared = SharedMemory::<f32>::new(TABLE);
    if comptime![bits == 4] {
        let entry = UNIT_POS as usize;
        if entry < TABLE {
            shared[entry] = table[entry];
        }
        sync_cube();
    }
    shared
}

/// The value of a code before scaling: an entry of the table, or for 8 bits the signed code itself.
#[cube]
pub(super) fn value(table: &SharedMemory<f32>, code: u32, #[comptime] bits: usize) -> f32 {
    if comptime![bits == 4] {
        table[code as usize]
    } else {
        f32::cast_from(i32::cast_from(code ^ 128) - 128)
    }
}

/// Scale `at`.
#[cube]
pub(super) fn scale(scales: &Array<u32>, nested: &ComptimeOption<NestedScales>, at: usize) -> f32 {
    #[comptime]
    match nested {
        ComptimeOption::Some(nested) => {
            let value = nested.map[code(scales, at, 8usize) as usize];
            let product = value * nested.absmax[at / nested.block];
            // GPU compilers fuse a product and a sum into one operation, which rounds once where bitsandbytes rounds
            // twice. An integer operation with a result unknown at compile time prevents that.
            f32::reinterpret(u32::reinterpret(product) ^ nested.zero) + nested.offset
        }
        ComptimeOption::None => f32::reinterpret(scales[at]),
    }
}

/// A weight's tensors as kernel arguments.
pub(super) struct Buffers<R: CubeRuntime> {
    pub(super) codes: CubeTensor<R>,
    pub(super) table: CubeTensor<R>,
    /// Floats, or the codes of nested scales.
    pub(super) scales: CubeTensor<R>,
    nested: Option<NestedBuffers<R>>,
}

struct NestedBuffers<R: CubeRuntime> {
    absmax: CubeTensor<R>,
    map: CubeTensor<R>,
    block: usize,
    offset: f32,
}

impl<R: CubeRuntime> Buffers<R> {
    /// `None` if kernels do not support the tensors' types.
    pub(super) fn of<F: FloatElement, I: IntElement, BT: BoolElement>(
        weight: &Quantized<CubeBackend<R, F, I, BT>>,
    ) -> Option<Self> {
        let words = |bytes: &PackedBytes<_>| of_type(bytes.tensor().into_primitive(), DType::I32);
        let floats = |tensor: &Tensor<CubeBackend<R, F, I, BT>, 1>| {
            of_type(tensor.clone().into_primitive().tensor(), DType::F32)
        };
        let (scales, nested) = match &weight.scales {
            QuantizedScales::Plain(scales) => (floats(scales)?, None),
            QuantizedScales::Nested(nested) => {
                let buffers = NestedBuffers {
                    absmax: floats(&nested.absmax)?,
                    map: floats(&nested.map)?,
                    block: nested.block,
                    offset: nested.offset as f32,
                };
                (words(&nested.codes)?, Some(buffers))
            }
        };
        Some(Self { codes: words(&weight.codes)?, table: floats(&weight.table)?, scales, nested })
    }

    /// The kernel argument for [`NestedScales`].
    pub(super) fn nested(&self) -> ComptimeOptionArgs<NestedScales, R> {
        match &self.nested {
            None => ComptimeOptionArgs::None,
            Some(NestedBuffers { absmax, map, block, offset }) => {
                let (absmax, map) = (absmax.clone(), map.clone());
                let launch = NestedScalesLaunch::new(
                    absmax.into_array_arg(),
                    map.into_array_arg(),
                    *block,
                    *offset,
                    0,
                );
                ComptimeOptionArgs::Some(launch)
            }
        }
    }
}

/// The tensor, made contiguous, if it has this type.
fn of_type<R: CubeRuntime>(tensor: CubeTensor<R>, dtype: DType) -> Option<CubeTensor<R>> {
    (tensor.dtype == dtype).then(|| into_contiguous(tensor))
}
