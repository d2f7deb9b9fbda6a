//! NF4 and FP4 codes of a tensor, as in bitsandbytes.

use std::sync::LazyLock;

use rayon::prelude::*;

use crate::QuantFormat;

/// bitsandbytes' block size.
pub(crate) const BLOCK: usize = 64;

/// The smallest divisor, so that a block of zeros does not divide by 0.
const LEAST: f32 = 1e-38;

/// Lookup of a format's codes: the upper bound of each, in the order of their values.
struct Bounds {
    /// The midpoints of adjacent values, ascending. A value equal to a bound gets the lower code.
    middles: [f32; 15],
    /// The code of each value, ascending.
    codes: [u8; 16],
}

impl Bounds {
    fn of(format: QuantFormat) -> &'static Self {
        static NF4: LazyLock<Bounds> = LazyLock::new(|| Bounds::new(QuantFormat::Nf4));
        static FP4: LazyLock<Bounds> = LazyLock::new(|| Bounds::new(QuantFormat::Fp4));
        if format == QuantFormat::Fp4 { &FP4 } else { &NF4 }
    }

    fn new(format: QuantFormat) -> Self {
        let values = format.values();
        let mut codes: [u8; 16] = std::array::from_fn(|code| code as u8);
        // Stable: FP4's two zeros keep their order, 0 before 8.
        codes.sort_by(|&a, &b| values[usize::from(a)].total_cmp(&values[usize::from(b)]));
        let value = |i: usize| values[usize::from(codes[i])];
        let middles = std::array::from_fn(|i| (value(i) + value(i + 1)) / 2.0);
        Self { middles, codes }
    }

    #[inline(always)]
    fn code(&self, value: f32) -> u8 {
        let above = self.middles.iter().map(|&middle| u8::from(value > middle)).sum::<u8>();
        self.codes[usize::from(above)]
    }
}

/// Codes, two per byte with the first in the high half, and the largest magnitude of each block of 64; both row-major.
///
/// An odd last code is padded with the code of 0.
pub(crate) fn quantize(values: &[f32], format: QuantFormat) -> (Vec<u8>, Vec<f32>) {
    let bounds = Bounds::of(format);
    let mut packed = vec![0u8; values.len().div_ceil(2)];
    let scales = packed
        .par_chunks_mut(BLOCK / 2)
        .zip(values.par_chunks(BLOCK))
        .map(|(packed, values)| {
            let absmax = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let is_short = values.len() < BLOCK;
            let divisor = absmax.max(LEAST);
            let inverse = 1.0 / divisor;
            // bitsandbytes multiplies by the inverse in full blocks, and divides in a short last block.
            let code = |value: f32| {
                let scaled = if is_short { value / divisor } else { value * inverse };
                bounds.code(scaled.clamp(-1.0, 1.0))
            };
            for (byte, pair) in packed.iter_mut().zip(values.chunks(2)) {
                let second = pair.get(1).copied().unwrap_or(0.0);
                *byte = code(pair[0]) << 4 | code(second);
            }
            if is_short { divisor } else { absmax }
        })
        .collect();
    (packed, scales)
}
