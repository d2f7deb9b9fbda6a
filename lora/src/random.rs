//! Random numbers that depend on their purpose, not on the order of drawing.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// A generator for one purpose: the same `seed`, `purpose` and `counters` give the same numbers on every machine,
/// backend and thread count.
pub fn generator(seed: u64, purpose: &str, counters: &[u64]) -> ChaCha8Rng {
    let mut state = mix(seed);
    for byte in purpose.bytes() {
        state = mix(state ^ u64::from(byte));
    }
    for &counter in counters {
        state = mix(state ^ counter);
    }
    let mut key = [0; 32];
    for chunk in key.chunks_exact_mut(8) {
        state = mix(state);
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// SplitMix64's step and finaliser (Steele, Lea, Flood, 2014): a bijection that spreads each bit over all.
fn mix(x: u64) -> u64 {
    finalize(x.wrapping_add(GOLDEN_GAMMA))
}

/// SplitMix64's increment.
pub(crate) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser.
pub(crate) fn finalize(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number in `[0, 1)` with 24 random bits: exact in an f32.
pub fn unit(rng: &mut impl Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32
}

/// Fills `out` with uniform numbers in `[-bound, bound)` that depend only on `start` and their index. Runs on all
/// cores.
pub fn fill_counted(start: u64, bound: f32, out: &mut [f32]) {
    /// Values per task; even, because one random number gives two values.
    const BLOCK: usize = 1 << 14;
    let number = |bits: u32| (2.0 * ((bits >> 8) as f32 / (1u32 << 24) as f32) - 1.0) * bound;
    out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
        // SplitMix64 can start at any position: its state is a counter.
        let first = (block * BLOCK / 2) as u64;
        for (pair, count) in out.chunks_mut(2).zip(first + 1..) {
            let bits = finalize(start.wrapping_add(GOLDEN_GAMMA.wrapping_mul(count)));
            pair[0] = number(bits as u32);
            if let Some(second) = pair.get_mut(1) {
                *second = number((bits >> 32) as u32);
            }
        }
    });
}

/// `n` numbers, uniform in `[-bound, bound)`.
pub fn uniform(rng: &mut impl Rng, n: usize, bound: f32) -> Vec<f32> {
    (0..n).map(|_| (2.0 * unit(rng) - 1.0) * bound).collect()
}

/// `n` numbers from a normal distribution with mean 0 (Box and Muller, 1958).
pub fn normal(rng: &mut impl Rng, n: usize, deviation: f32) -> Vec<f32> {
    let mut values = Vec::with_capacity(n + 1);
    while values.len() < n {
        let radius = (-2.0 * (1.0 - unit(rng)).ln()).sqrt();
        let angle = std::f32::consts::TAU * unit(rng);
        values.push(radius * angle.cos() * deviation);
        values.push(radius * angle.sin() * deviation);
    }
    values.truncate(n);
    values
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::*;

    #[test]
    fn streams_differ_by_every_part_of_their_key() {
        let draw =
            |seed, purpose: &str, counters: &[u64]| generator(seed, purpose, counters).next_u64();
        let base = draw(1, "dropout", &[2, 3]);
        assert_eq!(base, draw(1, "dropout", &[2, 3]));
        for other in [
            draw(2, "dropout", &[2, 3]),
            draw(1, "dropouu", &[2, 3]),
            draw(1, "dropout", &[3, 2]),
            draw(1, "dropout", &[2, 3, 0]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn counted_numbers_do_not_depend_on_the_length_and_are_uniform() {
        let numbers = |n| {
            let mut out = vec![0.0; n];
            fill_counted(9, 0.5, &mut out);
            out
        };
        let long = numbers(40_001);
        assert_eq!(numbers(20_000), long[..20_000]);
        let mean = long.iter().sum::<f32>() / long.len() as f32;
        let variance = long.iter().map(|v| v * v).sum::<f32>() / long.len() as f32;
        assert!(mean.abs() < 0.01 && (variance - 0.25 / 3.0).abs() < 0.005, "{mean} {variance}");
        assert!(long.iter().all(|v| (-0.5..0.5).contains(v)));
    }

    #[test]
    fn normal_numbers_have_the_requested_deviation() {
        let values = normal(&mut generator(0, "test", &[]), 20_001, 0.5);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02 && (variance.sqrt() - 0.5).abs() < 0.02, "{mean} {variance}");
    }
}
