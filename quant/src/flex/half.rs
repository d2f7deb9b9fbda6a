//! A dense matrix in 16 bits, widened to f32 where it is used.

use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::codec::Rows;

/// A matrix in 16 bits that lies in a slice, row-major.
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
    /// `None` where the tensor is of another type, or has gaps.
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
            // The crate's own loop looks for NaN at every number, and so doesn't vectorize.
            Self::Bf16(values) => {
                for (value, half) in out.iter_mut().zip(&values[range]) {
                    *value = f32::from_bits(u32::from(half.to_bits()) << 16);
                }
            }
        }
    }
}
