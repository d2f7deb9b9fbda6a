//! bitsandbytes' 8-bit blockwise quantization with the signed dynamic map, which double quantization uses for scales.

use std::sync::LazyLock;

/// Values that share one scale.
pub const BLOCK: usize = 256;

/// The map's positive values below 1 (Dettmers, 2015, arXiv:1511.04561): seven decades, finer towards 1.
///
/// They are listed, not computed: PyTorch's result depends in the last bit on the machine's vector width.
const POSITIVE: [f32; 127] = [
    5.500_000_4e-7,
    3.250_000_2e-6,
    7.75e-6,
    2.124_999_8e-5,
    4.375e-5,
    6.625e-5,
    8.875e-5,
    1.562_500_1e-4,
    2.687_500_4e-4,
    3.812_500_2e-4,
    4.937_500_3e-4,
    6.062_501e-4,
    7.187_500_6e-4,
    8.312_5e-4,
    9.437_501e-4,
    0.001_281_249_9,
    0.001_843_75,
    0.002_406_25,
    0.002_968_75,
    0.003_531_249_7,
    0.004_093_75,
    0.004_656_249_7,
    0.005_218_750_3,
    0.005_781_25,
    0.006_343_75,
    0.006_906_25,
    0.007_468_75,
    0.008_031_25,
    0.008_593_75,
    0.009_156_249,
    0.009_718_75,
    0.011_406_25,
    0.014_218_75,
    0.017_031_25,
    0.019_843_752,
    0.022_656_25,
    0.025_468_75,
    0.028_281_251,
    0.031_093_75,
    0.033_906_25,
    0.036_718_752,
    0.039_531_25,
    0.042_343_747,
    0.045_156_25,
    0.047_968_75,
    0.050_781_25,
    0.053_593_75,
    0.056_406_25,
    0.059_218_753,
    0.062_031_25,
    0.064_843_75,
    0.067_656_256,
    0.070_468_746,
    0.073_281_25,
    0.076_093_75,
    0.078_906_25,
    0.081_718_76,
    0.084_531_25,
    0.087_343_75,
    0.090_156_25,
    0.092_968_754,
    0.095_781_26,
    0.098_593_75,
    0.107_031_256,
    0.121_093_75,
    0.135_156_24,
    0.149_218_75,
    0.163_281_25,
    0.177_343_76,
    0.191_406_25,
    0.205_468_74,
    0.219_531_25,
    0.233_593_75,
    0.247_656_24,
    0.261_718_75,
    0.275_781_27,
    0.289_843_74,
    0.303_906_26,
    0.317_968_73,
    0.332_031_25,
    0.346_093_74,
    0.360_156_24,
    0.374_218_76,
    0.388_281_23,
    0.402_343_75,
    0.416_406_24,
    0.430_468_74,
    0.444_531_26,
    0.458_593_73,
    0.472_656_25,
    0.486_718_7,
    0.500_781_24,
    0.514_843_7,
    0.528_906_2,
    0.542_968_75,
    0.557_031_3,
    0.571_093_8,
    0.585_156_26,
    0.599_218_7,
    0.613_281_25,
    0.627_343_8,
    0.641_406_3,
    0.655_468_76,
    0.669_531_2,
    0.683_593_75,
    0.697_656_3,
    0.711_718_8,
    0.725_781_26,
    0.739_843_7,
    0.753_906_25,
    0.767_968_8,
    0.782_031_24,
    0.796_093_76,
    0.810_156_2,
    0.824_218_75,
    0.838_281_3,
    0.852_343_74,
    0.866_406_26,
    0.880_468_7,
    0.894_531_25,
    0.908_593_8,
    0.922_656_24,
    0.936_718_76,
    0.950_781_2,
    0.964_843_75,
    0.978_906_3,
    0.992_968_74,
];

/// The signed dynamic map: value by code, ascending.
pub fn map() -> [f32; 256] {
    let mut map = [0.0; 256];
    for (i, value) in POSITIVE.iter().enumerate() {
        map[126 - i] = -value;
        map[128 + i] = *value;
    }
    map[255] = 1.0;
    map
}

/// Steps of the lookup table of codes.
const STEPS: usize = 1 << 16;

/// The nearest code to each of 65536 values from -1 to 1. bitsandbytes' CPU kernel uses this table; near zero, where
/// the map is finer than the table, it does not find the nearest code, and this code reproduces that.
static NEAREST: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let map = map();
    let nearest = |i: usize| {
        let value = i as f32 / (STEPS - 1) as f32 * 2.0 - 1.0;
        let distance = |code: &u8| (value - map[usize::from(*code)]).abs();
        (0..=u8::MAX).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    };
    (0..STEPS).map(nearest).collect()
});

/// Codes, and a scale for each block of [`BLOCK`], of a vector.
pub fn quantize(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::with_capacity(values.len());
    let mut scales = Vec::with_capacity(values.len().div_ceil(BLOCK));
    for block in values.chunks(BLOCK) {
        let absmax = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        scales.push(absmax);
        if absmax == 0.0 {
            // bitsandbytes' code; the value is 0 anyway, because the scale is 0.
            codes.extend(block.iter().map(|_| 0));
            continue;
        }
        let inverse = 1.0 / absmax;
        codes.extend(block.iter().map(|value| {
            let scaled = (value * inverse).clamp(-1.0, 1.0);
            NEAREST[((scaled + 1.0) * 0.5 * (STEPS - 1) as f32 + 0.5) as usize]
        }));
    }
    (codes, scales)
}

/// The mean in PyTorch's single-threaded order (cascade sums of four times eight lanes), so that the offset of double
/// quantization has the same bits. (For more than 32768 scales PyTorch's own result depends on its number of threads.)
pub fn mean(values: &[f32]) -> f32 {
    const LANES: usize = 8;
    let (vectors, tail) = values.as_chunks::<LANES>();
    let lanes = vector_sum(vectors);
    let sum = tail.iter().chain(&lanes).fold(0.0f32, |sum, value| sum + value);
    sum / values.len() as f32
}

fn vector_sum<const LANES: usize>(vectors: &[[f32; LANES]]) -> [f32; LANES] {
    const ROWS: usize = 4;
    const LEVELS: usize = 4;
    let (groups, rest) = vectors.as_chunks::<ROWS>();
    let add = |into: &mut [f32; LANES], from: &[f32; LANES]| {
        for (into, from) in into.iter_mut().zip(from) {
            *into += from;
        }
    };
    let log2 = groups.len().max(1).next_power_of_two().trailing_zeros() as usize;
    let level_step = 1usize << (log2 / LEVELS).max(4);
    let mut levels = [[[0.0f32; LANES]; ROWS]; LEVELS];
    let full = groups.len() - groups.len() % level_step;
    for (i, group) in groups.iter().enumerate() {
        for (sum, vector) in levels[0].iter_mut().zip(group) {
            add(sum, vector);
        }
        let done = i + 1;
        if done > full || !done.is_multiple_of(level_step) {
            continue;
        }
        // A full level is added to the next one, like a carry.
        let mut size = level_step;
        for level in 1..LEVELS {
            let (below, here) = levels.split_at_mut(level);
            for (carried, sum) in below[level - 1].iter_mut().zip(&mut here[0]) {
                add(sum, &std::mem::replace(carried, [0.0; LANES]));
            }
            size *= level_step;
            if !done.is_multiple_of(size) {
                break;
            }
        }
    }
    let [mut sums, upper @ ..] = levels;
    for level in &upper {
        for (sum, from) in sums.iter_mut().zip(level) {
            add(sum, from);
        }
    }
    let [mut total, others @ ..] = sums;
    for vector in rest {
        add(&mut total, vector);
    }
    for other in &others {
        add(&mut total, other);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_ascends_from_below_minus_0_99_to_1() {
        let map = map();
        assert!(map.is_sorted_by(|a, b| a < b));
        assert_eq!((map[127], map[255]), (0.0, 1.0));
        assert!(map[0] < -0.99);
    }

    #[test]
    fn a_mean_counts_every_value_once() {
        for n in [1, 7, 8, 33, 511, 512, 700, 16_384, 40_000] {
            let values: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
            let exact = values.iter().sum::<f32>() / n as f32;
            assert_eq!(mean(&values), exact, "{n}");
        }
    }
}
