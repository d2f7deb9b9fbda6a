//! Decoding codes from host slices.

use std::sync::LazyLock;

use rayon::prelude::*;

use crate::QuantFormat;

/// A quantized matrix as slices.
#[derive(Clone, Copy)]
pub(crate) struct CodesView<'a> {
    pub(crate) format: QuantFormat,
    /// Elements per scale.
    pub(crate) block: usize,
    pub(crate) codes: &'a [u8],
    pub(crate) scales: ScalesView<'a>,
}

/// Scales as slices.
#[derive(Clone, Copy)]
pub(crate) enum ScalesView<'a> {
    Plain(&'a [f32]),
    Nested { codes: &'a [u8], absmax: &'a [f32], block: usize, map: &'a [f32], offset: f32 },
}

impl ScalesView<'_> {
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> f32 {
        match *self {
            Self::Plain(scales) => scales[i],
            Self::Nested { codes, absmax, block, map, offset } => {
                map[usize::from(codes[i])] * absmax[i / block] + offset
            }
        }
    }
}

/// The two values of each byte of 4-bit codes.
type Pairs = [[f32; 2]; 256];

fn pairs(format: QuantFormat) -> Option<&'static Pairs> {
    fn build(format: QuantFormat) -> Pairs {
        let values = format.values();
        std::array::from_fn(|byte| [values[byte >> 4], values[byte & 15]])
    }
    static NF4: LazyLock<Pairs> = LazyLock::new(|| build(QuantFormat::Nf4));
    static FP4: LazyLock<Pairs> = LazyLock::new(|| build(QuantFormat::Fp4));
    match format {
        QuantFormat::Nf4 => Some(&NF4),
        QuantFormat::Fp4 => Some(&FP4),
        QuantFormat::Int8 => None,
    }
}

/// A matrix whose rows can be decoded to f32.
pub(crate) trait Rows: Copy + Sync {
    /// Decodes the values from element `start` on, until `out` is full.
    fn decode(&self, start: usize, out: &mut [f32]);

    /// Decodes rows of `d_in` values from row `first` on, until `out` is full; in parallel.
    fn decode_rows(&self, first: usize, d_in: usize, out: &mut [f32]) {
        // Enough work for a task.
        let rows = (1usize << 15).div_ceil(d_in.max(1));
        out.par_chunks_mut((rows * d_in).max(1)).enumerate().for_each(|(i, out)| {
            self.decode((first + i * rows) * d_in, out);
        });
    }
}

impl Rows for CodesView<'_> {
    fn decode(&self, start: usize, out: &mut [f32]) {
        let (mut at, mut out) = (start, out);
        while !out.is_empty() {
            let here = (self.block - at % self.block).min(out.len());
            let (now, rest) = std::mem::take(&mut out).split_at_mut(here);
            let scale = self.scales.at(at / self.block);
            match pairs(self.format) {
                Some(pairs) => self.decode_nibbles(pairs, at, scale, now),
                None => {
                    let unit = self.format.unit();
                    for (value, &code) in now.iter_mut().zip(&self.codes[at..]) {
                        *value = f32::from(code.cast_signed()) * scale * unit;
                    }
                }
            }
            at += here;
            out = rest;
        }
    }
}

impl CodesView<'_> {
    #[inline(always)]
    fn decode_nibbles(&self, pairs: &Pairs, start: usize, scale: f32, out: &mut [f32]) {
        let pair = |byte: u8| pairs[usize::from(byte)];
        // Rows of odd length start in the middle of a byte.
        let (odd, out) = out.split_at_mut(start % 2);
        if let [value] = odd {
            *value = pair(self.codes[start / 2])[1] * scale;
        }
        let codes = &self.codes[start.div_ceil(2)..];
        let (whole, last) = out.as_chunks_mut::<2>();
        for (out, &byte) in whole.iter_mut().zip(codes) {
            let [first, second] = pair(byte);
            *out = [first * scale, second * scale];
        }
        if let [value] = last {
            *value = pair(codes[whole.len()])[0] * scale;
        }
    }
}
