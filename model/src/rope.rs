//! Rotary positions: cosines and sines for the positions of a batch.

/// Rotary positions (Su et al., 2021, arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies are scaled.
    pub kind: RopeKind,
}

/// Scaling of rotary frequencies for longer contexts, as in transformers' `modeling_rope_utils`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeKind {
    /// Not at all.
    Default,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// NTK-aware: the base grows beyond the trained length.
    Dynamic {
        /// The factor.
        factor: f64,
        /// The trained length.
        original_max: usize,
    },
    /// YaRN (Peng et al., 2023, arXiv:2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// The trained length.
        original_max: usize,
        /// Rotations above which a frequency is unchanged.
        beta_fast: f64,
        /// Rotations below which a frequency is divided by the factor.
        beta_slow: f64,
        /// Factor on cosines and sines.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Ding et al., 2024, arXiv:2402.13753).
    LongRope {
        /// Divisors of the frequencies up to the trained length.
        short_factor: Vec<f64>,
        /// Divisors of the frequencies beyond it.
        long_factor: Vec<f64>,
        /// The trained length.
        original_max: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Llama 3.1's scaling.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original_max / low_freq_factor` are divided by the full factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// The trained length.
        original_max: usize,
    },
}

/// Cosines and sines for a list of positions, computed in f32 as transformers does.
///
/// Tables are computed for given positions, not for a range, because packed sequences restart at 0. Some kinds depend
/// on the sequence length; each sequence uses its own, so padding and packing change nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryTable {
    /// `[positions, head_dim / 2]`, row-major.
    pub cos: Vec<f32>,
    /// `[positions, head_dim / 2]`, row-major.
    pub sin: Vec<f32>,
}

impl RotaryTable {
    /// The table for `positions`, where position i belongs to the sequence `sequences[i]`.
    ///
    /// Adjacent positions with the same number are one sequence; its length is its largest position plus 1.
    ///
    /// # Panics
    /// If the two slices differ in length.
    pub fn new(rope: &RopeConfig, head_dim: usize, positions: &[u32], sequences: &[u64]) -> Self {
        assert_eq!(positions.len(), sequences.len(), "one sequence a position");
        let mut table = Self { cos: Vec::new(), sin: Vec::new() };
        table.cos.reserve(positions.len() * head_dim / 2);
        table.sin.reserve(positions.len() * head_dim / 2);
        let mut start = 0;
        for group in sequences.chunk_by(|a, b| a == b) {
            let positions = &positions[start..start + group.len()];
            start += group.len();
            let length = positions.iter().max().map_or(0, |&last| last as usize + 1);
            let (frequencies, factor) = rope.frequencies(head_dim, length);
            for &position in positions {
                for &frequency in &frequencies {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    table.cos.push(cos * factor);
                    table.sin.push(sin * factor);
                }
            }
        }
        table
    }
}

impl RopeConfig {
    /// Angles per position (`[head_dim / 2]`) and the factor on cosines and sines, for a sequence of `length`
    /// positions.
    pub fn frequencies(&self, head_dim: usize, length: usize) -> (Vec<f32>, f32) {
        let half = head_dim / 2;
        let (frequencies, factor): (Vec<f64>, f64) = match &self.kind {
            RopeKind::Default => (plain(self.theta, head_dim), 1.0),
            RopeKind::Linear { factor } => {
                (plain(self.theta, head_dim).into_iter().map(|f| f / factor).collect(), 1.0)
            }
            RopeKind::Dynamic { factor, original_max } => {
                let stretch = length.max(*original_max) as f64 / *original_max as f64;
                let dim = head_dim as f64;
                let base = (factor * stretch - (factor - 1.0)).powf(dim / (dim - 2.0));
                (plain(self.theta * base, head_dim), 1.0)
            }
            RopeKind::Yarn {
                factor,
                original_max,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate,
            } => {
                let ramp = yarn_ramp(
                    self.theta,
                    head_dim,
                    *original_max,
                    *beta_fast,
                    *beta_slow,
                    *truncate,
                );
                let stretched = plain(self.theta, head_dim)
                    .into_iter()
                    .zip(ramp)
                    .map(|(f, ramp)| f / factor * ramp + f * (1.0 - ramp))
                    .collect();
                (stretched, *attention_factor)
            }
            RopeKind::LongRope { short_factor, long_factor, original_max, attention_factor } => {
                let divisors = if length > *original_max { long_factor } else { short_factor };
                let stretched = plain(self.theta, head_dim);
                (stretched.iter().zip(divisors).map(|(f, d)| f / d).collect(), *attention_factor)
            }
            RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original_max } => {
                let stretch = |f: f64| {
                    // Rotations within the trained length, relative to the two bounds.
                    let turns = *original_max as f64 * f / std::f64::consts::TAU;
                    let keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    let keep = keep.clamp(0.0, 1.0);
                    f / factor * (1.0 - keep) + f * keep
                };
                (plain(self.theta, head_dim).into_iter().map(stretch).collect(), 1.0)
            }
        };
        debug_assert_eq!(frequencies.len(), half);
        (frequencies.into_iter().map(|f| f as f32).collect(), factor as f32)
    }
}

/// `theta^(-2i / head_dim)` for i in `0..head_dim / 2`.
fn plain(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

/// For each frequency, the weight of the scaled one: 0 for high frequencies, 1 for low ones.
fn yarn_ramp(
    theta: f64,
    head_dim: usize,
    original_max: usize,
    beta_fast: f64,
    beta_slow: f64,
    truncate: bool,
) -> Vec<f64> {
    // The (fractional) index of the frequency with this many rotations within the trained length.
    let index_of = |turns: f64| {
        head_dim as f64 * (original_max as f64 / (turns * std::f64::consts::TAU)).ln()
            / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (index_of(beta_fast), index_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let low = low.max(0.0);
    let mut high = high.min(head_dim as f64 - 1.0);
    if low == high {
        high += 0.001;
    }
    (0..head_dim / 2).map(|i| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_has_its_own_length() {
        let rope = RopeConfig {
            theta: 10_000.0,
            kind: RopeKind::Dynamic { factor: 2.0, original_max: 4 },
        };
        let long = RotaryTable::new(&rope, 8, &[0, 1, 2, 3, 4, 5, 6, 7], &[1; 8]);
        let short = RotaryTable::new(&rope, 8, &[0, 1, 2], &[1; 3]);
        let packed = RotaryTable::new(
            &rope,
            8,
            &[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2],
            &[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2],
        );
        assert_eq!(packed.cos, [long.cos.clone(), short.cos.clone()].concat());
        assert_ne!(long.cos[4..12], short.cos[4..12]);
    }
}
