//! Packed bytes on a device.

use burn::module::Module;
use burn::tensor::{
    DType, Element, ElementConversion, Int, IntDType, Tensor, TensorData, backend::Backend,
};

use crate::QuantBackend;

/// How a backend stores bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As U8: the CPU backends.
    Bytes,
    /// Four per 32-bit word, the first in the lowest bits: WGPU has no 8-bit type.
    Words,
}

/// Bytes on a device, in the backend's own [`Packing`]. Not a parameter: never trained or visited.
#[derive(Module, Debug)]
pub struct PackedBytes<B: Backend> {
    tensor: Tensor<B, 1, Int>,
    len: usize,
}

impl<B: QuantBackend> PackedBytes<B> {
    /// Moves bytes to a device.
    pub fn new(bytes: Vec<u8>, device: &B::Device) -> Self {
        Self::with_packing(bytes, B::PACKING, device)
    }

    /// Packs numbers from 0 to 255 on a device: `[len]`.
    pub fn pack(numbers: Tensor<B, 1, Int>) -> Self {
        Self::pack_as(numbers, B::PACKING)
    }
}

impl<B: Backend> PackedBytes<B> {
    fn with_packing(bytes: Vec<u8>, packing: Packing, device: &B::Device) -> Self {
        let len = bytes.len();
        let tensor = match packing {
            Packing::Bytes => Tensor::from_data(TensorData::new(bytes, [len]), (device, DType::U8)),
            Packing::Words => {
                let word = |chunk: &[u8]| {
                    let mut word = [0; 4];
                    word[..chunk.len()].copy_from_slice(chunk);
                    i32::from_le_bytes(word)
                };
                let words: Vec<i32> = bytes.chunks(4).map(word).collect();
                let words_len = words.len();
                Tensor::from_data(TensorData::new(words, [words_len]), (device, DType::I32))
            }
        };
        Self { tensor, len }
    }

    fn pack_as(numbers: Tensor<B, 1, Int>, packing: Packing) -> Self {
        let ([len], device) = (numbers.dims(), numbers.device());
        if packing == Packing::Bytes {
            return Self { tensor: numbers.cast(IntDType::U8), len };
        }
        let words = len.div_ceil(4);
        let filled = match words * 4 - len {
            0 => numbers,
            missing => {
                let zeros = Tensor::zeros([missing], (&device, numbers.dtype()));
                Tensor::cat(vec![numbers, zeros], 0)
            }
        };
        let rows = filled.reshape([words, 4]);
        let lane = |i: usize| {
            let lane = rows.clone().narrow(1, i, 1).reshape([words]);
            match i {
                0 => lane,
                // Sign extension, for backends with integers wider than a word.
                3 => (lane.clone() - lane.greater_equal_elem(128).int() * 256) * (1 << 24),
                _ => lane * (1 << (8 * i)),
            }
        };
        let tensor = (1..4).fold(lane(0), |word, i| word.bitwise_or(lane(i)));
        Self { tensor: tensor.cast(IntDType::I32), len }
    }

    /// The first `len` bytes of a tensor returned by [`tensor`](Self::tensor).
    #[cfg(feature = "cube")]
    pub(crate) fn from_tensor(tensor: Tensor<B, 1, Int>, len: usize) -> Self {
        Self { tensor, len }
    }

    /// The bytes on the host.
    pub fn to_host(&self) -> Vec<u8> {
        let data = self.tensor.to_data();
        let mut bytes: Vec<u8> = match self.packing() {
            Packing::Bytes => data.iter::<u8>().collect(),
            Packing::Words => data.iter::<i32>().flat_map(i32::to_le_bytes).collect(),
        };
        bytes.truncate(self.len);
        bytes
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        match self.packing() {
            Packing::Bytes => self.len,
            Packing::Words => self.len.div_ceil(4) * 4,
        }
    }

    /// Each byte as a number from 0 to 255: `[len]`.
    pub fn unpack(&self) -> Tensor<B, 1, Int> {
        match self.packing() {
            Packing::Bytes => self.lanes(&[0], 0xff),
            Packing::Words => self.lanes(&[0, 8, 16, 24], 0xff).narrow(0, 0, self.len),
        }
    }

    /// Each half of each byte, the high one first, as a number from 0 to 15: `[2 · len]`.
    pub fn unpack_nibbles(&self) -> Tensor<B, 1, Int> {
        match self.packing() {
            Packing::Bytes => self.lanes(&[4, 0], 0xf),
            Packing::Words => {
                self.lanes(&[4, 0, 12, 8, 20, 16, 28, 24], 0xf).narrow(0, 0, 2 * self.len)
            }
        }
    }

    /// For each element in turn, `element >> shift & mask` for each shift in turn.
    fn lanes(&self, shifts: &[i64], mask: i64) -> Tensor<B, 1, Int> {
        let [n] = self.tensor.dims();
        let elements = self.tensor.clone().cast(IntDType::from(B::IntElem::dtype()));
        // An arithmetic shift is fine: the mask removes the sign bits.
        let lane = |&shift: &i64| {
            let shifted = match shift {
                0 => elements.clone(),
                _ => elements.clone().bitwise_right_shift_scalar(shift.elem()),
            };
            shifted.bitwise_and_scalar(mask.elem()).reshape([n, 1])
        };
        let lanes: Vec<Tensor<B, 2, Int>> = shifts.iter().map(lane).collect();
        Tensor::cat(lanes, 1).reshape([n * shifts.len()])
    }

    fn packing(&self) -> Packing {
        if self.tensor.dtype() == DType::U8 { Packing::Bytes } else { Packing::Words }
    }

    /// The tensor itself: U8 `[len]`, or I32 words `[len / 4, rounded up]`. For kernels.
    pub fn tensor(&self) -> Tensor<B, 1, Int> {
        self.tensor.clone()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(all(test, feature = "cpu", feature = "ndarray"))]
mod tests {
    use super::*;

    fn unpacks<B: Backend>(packing: Packing) {
        // Every byte, in an order that sets high bits of words, and a partial last word.
        let bytes: Vec<u8> = (0..=u8::MAX).rev().chain([255, 1, 128]).collect();
        let packed = PackedBytes::<B>::with_packing(bytes.clone(), packing, &Default::default());
        assert_eq!(packed.packing(), packing);
        assert_eq!(packed.to_host(), bytes);
        let unpacked = packed.unpack().into_data();
        assert!(unpacked.iter::<i64>().eq(bytes.iter().map(|&byte| i64::from(byte))));
        let again = PackedBytes::pack_as(packed.unpack(), packing);
        assert_eq!((again.packing(), again.to_host()), (packing, bytes.clone()));
        let nibbles = packed.unpack_nibbles().into_data();
        let expected = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(i64::from);
        assert!(nibbles.iter::<i64>().eq(expected));
    }

    #[test]
    fn bytes_and_words_give_equal_results() {
        for packing in [Packing::Bytes, Packing::Words] {
            unpacks::<burn_ndarray::NdArray>(packing);
            unpacks::<burn_flex::Flex>(packing);
        }
    }
}
