//! Loops for the widest vectors of the processor at hand.

use std::sync::OnceLock;

/// Runs `f`, compiled for the widest vectors there are. `f` must be a closure that inlines: plain loops over slices.
#[inline(always)]
pub(super) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    ARCH.get_or_init(pulp::Arch::new).dispatch(f)
}

/// `eˣ` to within 2 units in the last place, 0 below -87. Free of branches, so that loops over it vectorize.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 · 2²³ rounds to a whole number, which then lies in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = clamped - whole * LN_2_HIGH - whole * LN_2_LOW;
    // Cephes' polynomial for e^r - 1 - r on |r| ≤ ln 2 / 2.
    let mut p = 1.987_569_1e-4;
    p = p * rest + 1.398_2e-3;
    p = p * rest + 8.333_452e-3;
    p = p * rest + 4.166_579_6e-2;
    p = p * rest + 1.666_666_5e-1;
    p = p * rest + 0.5;
    let value = p * rest * rest + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let result = value * f32::from_bits(exponent);
    if x < -87.0 { 0.0 } else { result }
}

/// Lanes of partial sums: as many as the widest vectors hold, twice.
const LANES: usize = 32;

/// The sum of `f(i)` for i in `0..n`, in an order that depends on n alone.
#[inline(always)]
pub(super) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = n - n % LANES;
    let mut i = 0;
    while i < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(i + lane);
        }
        i += LANES;
    }
    let mut tail = 0.0;
    for i in whole..n {
        tail += f(i);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0] + tail
}

/// The greatest of `values`.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_two_units() {
        for i in -8_700_000..8_800_000 {
            let x = i as f32 * 1e-5;
            let (found, expected) = (exp(x), f64::from(x).exp());
            let error = (f64::from(found) - expected).abs() / expected;
            assert!(error < 2.5e-7, "exp({x}) = {found}, not {expected}");
        }
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn sums_and_maxima_take_everything() {
        for n in [0, 1, 31, 32, 33, 100] {
            let values: Vec<f32> = (0..n).map(|i| i as f32 - 40.0).collect();
            assert_eq!(vectorized(|| sum(n, |i| values[i])), values.iter().sum::<f32>());
            let expected = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&values), expected);
        }
    }
}
