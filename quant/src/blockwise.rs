//! A vector in 8 bits on a device, with portable quantizing and dequantizing.

use burn::tensor::{DType, Element, Int, Tensor, TensorData, backend::Backend};

use crate::codec::blockwise::{BLOCK, BlockwiseVector, DynamicMap, LEAST};
use crate::{PackedBytes, QuantBackend};

/// A vector in 8 bits on a device: one code per value, and the largest magnitude of each block of 256 values.
#[derive(Debug, Clone)]
pub struct Blockwise<B: Backend> {
    /// One code per value.
    pub codes: PackedBytes<B>,
    /// `[blocks]`.
    pub absmax: Tensor<B, 1>,
    /// The map from codes to values.
    pub map: DynamicMap,
}

impl<B: QuantBackend> Blockwise<B> {
    /// Quantizes a vector.
    pub fn quantize(values: Tensor<B, 1>, map: DynamicMap) -> Self {
        B::quantize_blockwise(values, map)
    }

    /// Dequantizes: `[len]`.
    pub fn dequantize(&self) -> Tensor<B, 1> {
        B::dequantize_blockwise(self)
    }

    /// Moves a host vector to a device.
    pub fn from_host(vector: BlockwiseVector, device: &B::Device) -> Self {
        let BlockwiseVector { map, codes, absmax } = vector;
        let blocks = absmax.len();
        let absmax =
            Tensor::from_data(TensorData::new(absmax, [blocks]), (device, B::FloatElem::dtype()));
        Self { codes: PackedBytes::new(codes, device), absmax, map }
    }
}

impl<B: Backend> Blockwise<B> {
    /// The same vector on the host.
    pub fn to_host(&self) -> BlockwiseVector {
        let absmax = self.absmax.to_data().iter::<f32>().collect();
        BlockwiseVector { map: self.map, codes: self.codes.to_host(), absmax }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let [blocks] = self.absmax.dims();
        self.codes.memory() + blocks * self.absmax.dtype().size()
    }
}

/// Quantizes a vector with Burn's operations, on any backend. Kernels are tested against it.
pub fn quantize<B: QuantBackend>(values: Tensor<B, 1>, map: DynamicMap) -> Blockwise<B> {
    let ([n], device) = (values.dims(), values.device());
    let blocks = n.div_ceil(BLOCK);
    let filled = match blocks * BLOCK - n {
        0 => values,
        missing => {
            let zeros = Tensor::zeros([missing], (&device, values.dtype()));
            Tensor::cat(vec![values, zeros], 0)
        }
    };
    let rows = filled.reshape([blocks, BLOCK]);
    let absmax = rows.clone().abs().max_dim(1);
    let scaled = rows * absmax.clone().clamp_min(LEAST).recip();
    let codes = nearest(scaled.reshape([blocks * BLOCK]), map).narrow(0, 0, n);
    Blockwise { codes: PackedBytes::pack(codes), absmax: absmax.reshape([blocks]), map }
}

/// Dequantizes with Burn's operations.
pub fn dequantize<B: Backend>(vector: &Blockwise<B>) -> Tensor<B, 1> {
    let (n, [blocks]) = (vector.codes.len(), vector.absmax.dims());
    let map = table(vector.map.values(), &vector.absmax);
    let values = map.select(0, vector.codes.unpack());
    let absmax = vector.absmax.clone().reshape([blocks, 1]).repeat_dim(1, BLOCK);
    values * absmax.reshape([blocks * BLOCK]).narrow(0, 0, n)
}

/// The number of bounds below each value: a binary search, eight steps for all values at once.
fn nearest<B: Backend>(values: Tensor<B, 1>, map: DynamicMap) -> Tensor<B, 1, Int> {
    let bounds = table(&map.codes().bounds, &values);
    let mut codes = Tensor::<B, 1, Int>::zeros(values.shape(), &values.device());
    for step in (0..8).rev().map(|bit| 1i64 << bit) {
        let bound = bounds.clone().select(0, codes.clone() + (step - 1));
        codes = codes + values.clone().greater(bound).int() * step;
    }
    codes
}

/// A table on the device and in the type of `like`.
fn table<B: Backend>(values: &[f32], like: &Tensor<B, 1>) -> Tensor<B, 1> {
    let dtype: DType = like.dtype();
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::from_data(data, (&like.device(), dtype))
}

#[cfg(all(test, feature = "cpu", feature = "ndarray"))]
mod tests {
    use super::*;
    use crate::host::float_tensor;

    /// Numbers of many magnitudes and both signs, in irregular order.
    fn numbers(n: usize) -> Vec<f32> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next() * 10f32.powf(8.0 * next())).collect()
    }

    fn agrees_with_the_host<B: QuantBackend>() {
        let device = Default::default();
        for n in [1, 255, 256, 5000] {
            for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
                let mut values = numbers(n);
                if map == DynamicMap::Unsigned {
                    values.iter_mut().for_each(|value| *value = value.abs());
                }
                let expected = BlockwiseVector::quantize(&values, map);
                let tensor = float_tensor::<B, 1>(values, [n], &device);
                for coded in [quantize(tensor.clone(), map), B::quantize_blockwise(tensor, map)] {
                    assert_eq!(coded.to_host(), expected, "{n} {map:?}");
                    for again in [dequantize(&coded), coded.dequantize()] {
                        assert!(again.to_data().iter::<f32>().eq(expected.dequantize()));
                    }
                    let back = Blockwise::<B>::from_host(coded.to_host(), &device);
                    assert_eq!(back.to_host(), expected);
                }
            }
        }
    }

    #[test]
    fn host_portable_operations_and_kernel_agree() {
        agrees_with_the_host::<burn_ndarray::NdArray>();
        agrees_with_the_host::<burn_flex::Flex>();
    }

    #[test]
    fn memory_is_a_byte_per_value_and_a_scale_per_block() {
        let values = float_tensor::<burn_flex::Flex, 1>(numbers(5000), [5000], &Default::default());
        let coded = Blockwise::quantize(values, DynamicMap::Signed);
        assert_eq!(coded.memory(), 5000 + 20 * 4);
    }
}
