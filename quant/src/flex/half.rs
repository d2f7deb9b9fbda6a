//! A dense 16-bit matrix, widened to f32 when used.

use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::codec::Rows;

/// A row-major 16-bit matrix as a slice.
#[derive(Clone, Copy)]
pub(super) enum Half<'a> {
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// Whether this is a type of 16 bits.
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl<'a> Half<'a> {
    /// `None` if the tensor has another type or is not contiguous.
    pub(super) fn of(tensor: &'a FlexTensor) -> Option<Self> {
        match tensor.dtype() {
            DType::F16 => tensor.as_slice().map(Self::F16),
            DType::BF16 => tensor.as_slice().map(Self::Bf16),
            _ => None,
        }
    }
}

impl Rows for Half<'_> {
    fn decode(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Self::F16(values) => values[range].convert_to_f32_slice(out),
            // The crate's loop checks every number for NaN, and so doesn't vectorize.
            Self::Bf16(values) => {
                for (value, half) in out.iter_mut().zip(&values[range]) {
                    *value = f32::from_bits(u32::from(half.to_bits()) << 16);
                }
            }
        }
    }
}
