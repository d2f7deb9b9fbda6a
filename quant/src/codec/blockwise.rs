//! Vectors in 8 bits, block by block with a dynamic map: the format of bitsandbytes' optimizer states (Dettmers et al.,
//! 2022, arXiv:2110.02861).
//!
//! Each value gets its nearest code, as in bitsandbytes' portable code and on GPUs, with two differences. bitsandbytes'
//! CPU library uses a table of 65536 steps ([`dynamic`]), in which zero gets a nonzero code, so that weights without a
//! gradient move. And there the nearest code of a small second moment is zero, so that the next step divides by almost
//! nothing; here only zero becomes zero.

use std::sync::LazyLock;

use rayon::prelude::*;

use super::dynamic;

/// Values that share one scale.
pub const BLOCK: usize = dynamic::BLOCK;

/// The smallest divisor, so that a block of zeros does not divide by 0.
pub(crate) const LEAST: f32 = 1e-38;

/// The values of the 256 codes before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DynamicMap {
    /// From -0.993 to 1: for a first moment.
    Signed,
    /// From 0 to 1, with twice as many values: for a second moment, which is never negative.
    Unsigned,
}

/// A vector in 8 bits on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockwiseVector {
    /// The map from codes to values.
    pub map: DynamicMap,
    /// One code per value.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block of [`BLOCK`] values; the last block may be short.
    pub absmax: Vec<f32>,
}

/// Lookup of a map's codes.
pub(crate) struct Codes {
    /// The value of each code, ascending.
    pub(crate) values: [f32; 256],
    /// The bounds between adjacent codes, ascending: the midpoints of adjacent values. A value equal to a bound gets
    /// the lower code.
    pub(crate) bounds: [f32; 255],
    /// Indexed by the upper half of a value's bits: the number of bounds below all values with these bits.
    start: Vec<u8>,
}

impl Codes {
    fn new(values: [f32; 256]) -> Self {
        let mut bounds: [f32; 255] = std::array::from_fn(|i| (values[i] + values[i + 1]) / 2.0);
        if values[0] == 0.0 {
            // Every value above 0 gets a nonzero code.
            bounds[0] = 0.0;
        }
        let below = |value: f32| bounds.iter().filter(|&&bound| bound < value).count() as u8;
        let start = (0..=u16::MAX).map(|half| {
            let ends = [u32::from(half) << 16, u32::from(half) << 16 | 0xffff].map(f32::from_bits);
            below(ends[0].min(ends[1]))
        });
        Self { values, bounds, start: start.collect() }
    }

    #[inline(always)]
    fn nearest(&self, value: f32) -> u8 {
        let mut code = self.start[(value.to_bits() >> 16) as usize];
        // Values with equal upper bits span one or two bounds.
        while self.bounds.get(usize::from(code)).is_some_and(|&bound| value > bound) {
            code += 1;
        }
        code
    }
}

impl DynamicMap {
    /// The value of each code, ascending.
    pub fn values(self) -> &'static [f32; 256] {
        &self.codes().values
    }

    pub(crate) fn codes(self) -> &'static Codes {
        static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(dynamic::map()));
        static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(unsigned()));
        match self {
            Self::Signed => &SIGNED,
            Self::Unsigned => &UNSIGNED,
        }
    }
}

/// The unsigned map: 0, then seven decades of 2, 4, … 128 values, each the midpoint of an equal part of its decade,
/// then 1.
///
/// Computed, not listed: PyTorch's last bit depends on the machine, and these values are never stored.
fn unsigned() -> [f32; 256] {
    let decades = (0..7).flat_map(|decade| {
        let (parts, scale) = (2 << decade, 10f64.powi(decade - 6));
        (0..parts)
            .map(move |i| (scale * (0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(parts))) as f32)
    });
    let mut values = [1.0; 256];
    for (value, computed) in values.iter_mut().zip(std::iter::once(0.0).chain(decades)) {
        *value = computed;
    }
    values
}

/// Quantizes a vector in parallel; blocks are independent.
pub(crate) fn quantize(values: &[f32], map: DynamicMap) -> (Vec<u8>, Vec<f32>) {
    let codes = map.codes();
    let mut coded = vec![0u8; values.len()];
    let absmax = coded
        .par_chunks_mut(BLOCK)
        .zip(values.par_chunks(BLOCK))
        .with_min_len(16)
        .map(|(coded, values)| {
            let absmax = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
            let inverse = 1.0 / absmax.max(LEAST);
            for (code, value) in coded.iter_mut().zip(values) {
                *code = codes.nearest(value * inverse);
            }
            absmax
        })
        .collect();
    (coded, absmax)
}

/// Dequantizes: `value(code) · absmax`.
pub(crate) fn dequantize(codes: &[u8], absmax: &[f32], map: DynamicMap) -> Vec<f32> {
    let map = map.values();
    let mut values = vec![0.0; codes.len()];
    values
        .par_chunks_mut(BLOCK)
        .zip(codes.par_chunks(BLOCK))
        .zip(absmax)
        .with_min_len(16)
        .for_each(|((values, codes), absmax)| {
            for (value, &code) in values.iter_mut().zip(codes) {
                *value = map[usize::from(code)] * absmax;
            }
        });
    values
}

impl BlockwiseVector {
    /// Quantizes a vector.
    pub fn quantize(values: &[f32], map: DynamicMap) -> Self {
        let (codes, absmax) = quantize(values, map);
        Self { map, codes, absmax }
    }

    /// Dequantizes.
    pub fn dequantize(&self) -> Vec<f32> {
        dequantize(&self.codes, &self.absmax, self.map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: [DynamicMap; 2] = [DynamicMap::Signed, DynamicMap::Unsigned];

    #[test]
    fn the_unsigned_map_equals_bitsandbytes() {
        // Some values of bitsandbytes 0.50's `create_dynamic_map(signed=False)`.
        let map = DynamicMap::Unsigned.values();
        assert!(map.is_sorted_by(|a, b| a < b));
        let known = [(0, 0.0), (1, 3.25e-7), (2, 7.75e-7), (3, 2.125e-6), (254, 0.996_484_4)];
        for (code, value) in known {
            assert!((map[code] - value).abs() <= 1e-6 * value, "{code}: {}", map[code]);
        }
        assert_eq!(map[255], 1.0);
    }

    #[test]
    fn every_value_gets_the_code_of_its_interval() {
        for map in MAPS {
            let codes = map.codes();
            // The bounds themselves, their neighbours one bit away, and values of all magnitudes.
            let around = codes.bounds.iter().flat_map(|&b| [b, b.next_up(), b.next_down()]);
            let spread = (0..100_000).map(|i| {
                let x = 10f32.powf(-9.0 * (i as f32 / 1e5)) * 0.999;
                if i % 2 == 0 && map == DynamicMap::Signed { -x } else { x }
            });
            for value in around.chain(spread).chain(codes.values).chain([0.0, -0.0, -1.0]) {
                let found = codes.nearest(value);
                let below = codes.bounds.iter().filter(|&&bound| bound < value).count();
                assert_eq!(usize::from(found), below, "{map:?} {value}");
                let distance = |code: u8| (codes.values[usize::from(code)] - value).abs();
                let least = (0..=u8::MAX).map(distance).fold(f32::INFINITY, f32::min);
                let is_tiny = map == DynamicMap::Unsigned && value < codes.values[1];
                assert!(is_tiny || distance(found) <= least * 1.001, "{map:?} {value}");
            }
        }
    }

    #[test]
    fn a_second_moment_becomes_zero_only_if_it_was_zero() {
        let values = [1.0, 1e-7, 1e-30, 0.0];
        let coded = BlockwiseVector::quantize(&values, DynamicMap::Unsigned);
        assert_eq!(coded.codes, [255, 1, 1, 0]);
    }

    #[test]
    fn all_magnitudes_keep_their_sign() {
        for map in MAPS {
            let values = [1.0, 0.5, 1e-3, 1e-6];
            let coded = BlockwiseVector::quantize(&values, map).dequantize();
            for (found, value) in coded.iter().zip(values) {
                assert!(*found > 0.0 && (found / value - 1.0).abs() < 0.7, "{value} as {found}");
            }
        }
    }

    #[test]
    fn zeros_and_the_largest_magnitude_are_exact() {
        let mut values = vec![0.0f32; 600];
        values[3] = 2.5;
        values[599] = 1e-30;
        for map in MAPS {
            let coded = BlockwiseVector::quantize(&values, map);
            assert_eq!(coded.absmax, [2.5, 0.0, 1e-30]);
            assert_eq!(coded.dequantize(), values);
        }
    }

    #[test]
    fn the_error_is_within_half_a_step() {
        let values: Vec<f32> =
            (0..5000).map(|i| ((i * 7919) % 5000) as f32 / 2500.0 - 1.0).collect();
        let coded = BlockwiseVector::quantize(&values, DynamicMap::Signed);
        for (found, value) in coded.dequantize().iter().zip(&values) {
            // The widest step of the signed map is 0.9 / 64.
            assert!((found - value).abs() <= 0.9 / 64.0 / 2.0 * 1.01, "{value} became {found}");
        }
    }
}
