//! Loops compiled for the widest vectors of the processor.

use std::sync::OnceLock;

/// Runs `f`, compiled for the widest available vectors. `f` must be a closure that inlines: plain loops over slices.
#[inline(always)]
pub(super) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    ARCH.get_or_init(pulp::Arch::new).dispatch(f)
}

/// `eˣ` to within 2 units in the last place, 0 below -87. Branch-free, so that loops over it vectorize.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (power, rest) = exp_parts(x);
    // Largest term last, so that the sum rounds only once near it.
    let result = power * (rest + 1.0);
    if x < -87.0 { 0.0 } else { result }
}

/// `tanh(x)` to within a few units in the last place, also near 0.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    // With m = e²ˣ − 1, tanh is m / (m + 2), and m = 2ᵏ · (eʳ − 1) + (2ᵏ − 1) is accurate for small x.
    let (power, rest) = exp_parts(2.0 * x.clamp(-20.0, 20.0));
    let m = power * rest + (power - 1.0);
    m / (m + 2.0)
}

/// `tanh(x / cap) · cap`.
#[inline(always)]
pub(super) fn soft_capped(x: f32, cap: f32) -> f32 {
    tanh(x / cap) * cap
}

/// `erfc(x)` with a relative error below 2e-6: a Chebyshev fit of the exponent (Press et al., Numerical Recipes in C,
/// 2nd ed., 6.2).
#[inline(always)]
pub(super) fn erfc(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let mut p = 0.170_872_77f32;
    p = p * t - 0.822_152_23;
    p = p * t + 1.488_515_9;
    p = p * t - 1.135_204;
    p = p * t + 0.278_868_07;
    p = p * t - 0.186_288_06;
    p = p * t + 0.096_784_18;
    p = p * t + 0.374_091_96;
    p = p * t + 1.000_023_7;
    p = p * t - 1.265_512_2;
    let above = t * exp(p - x * x);
    if x < 0.0 { 2.0 - above } else { above }
}

/// `2ᵏ` and `eʳ − 1` with `x = k · ln 2 + r`, for x from -87 to 88; values outside are clamped.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    // Adding and subtracting 1.5 · 2²³ rounds to an integer, which is then in the low bits.
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
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    (f32::from_bits(exponent), p * rest * rest + rest)
}

/// Lanes of partial sums: as many as the widest vectors hold, twice.
const LANES: usize = 32;

/// The sum of `f(i)` for i in `0..n`, in an order that depends only on n.
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

/// The maximum of `values`.
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
    fn tanh_is_accurate_near_zero() {
        for i in -1_200_000..1_200_000 {
            let x = if i % 2 == 0 { i as f32 * 1e-5 } else { (i as f32 * 1e-5).powi(7) * 1e-3 };
            let (found, expected) = (f64::from(tanh(x)), f64::from(x).tanh());
            let error = (found - expected).abs();
            assert!(error <= 4e-7 * expected.abs(), "tanh({x}) = {found}, not {expected}");
        }
        assert_eq!([tanh(0.0), tanh(1e30), tanh(-1e30)], [0.0, 1.0, -1.0]);
        assert!((soft_capped(1e9, 50.0) - 50.0).abs() < 1e-4);
    }

    #[test]
    fn erfc_is_accurate_in_its_tail() {
        // Reference values of erfc(x).
        let table = [
            (0.0, 1.0),
            (0.1, 0.887_537_083_981_715_2),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 4.677_734_981_047_266e-3),
            (3.0, 2.209_049_699_858_544e-5),
            (5.0, 1.537_459_794_428_035e-12),
        ];
        for (x, expected) in table {
            let error = |found: f32, expected: f64| (f64::from(found) - expected).abs() / expected;
            assert!(error(erfc(x), expected) < 2e-6, "erfc({x}) = {}", erfc(x));
            assert!(error(erfc(-x), 2.0 - expected) < 4e-7, "erfc(-{x}) = {}", erfc(-x));
        }
        assert_eq!((erfc(1e9), erfc(-1e9)), (0.0, 2.0));
    }

    #[test]
    fn sums_and_maxima_include_every_value() {
        for n in [0, 1, 31, 32, 33, 100] {
            let values: Vec<f32> = (0..n).map(|i| i as f32 - 40.0).collect();
            assert_eq!(vectorized(|| sum(n, |i| values[i])), values.iter().sum::<f32>());
            let expected = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&values), expected);
        }
    }
}
