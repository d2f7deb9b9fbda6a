//! Dropout with reproducible masks, for recomputation.

use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::host::float_tensor_in;
use rand::RngCore;
use rayon::prelude::*;

use crate::random::{GOLDEN_GAMMA, finalize, generator};

/// Identifies the dropout masks of one forward pass: equal keys give equal masks.
///
/// Burn's dropout draws from the backend's generator and only under autodiff, so a block that runs first without
/// autodiff and later with it would get two different masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Micro-batch within the step, from 0.
    pub micro_batch: u64,
}

/// The dropout of one adapter in one forward pass. It is an elementwise factor, so backward applies the same mask to
/// the gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    /// The forward pass.
    pub key: DropoutKey,
    /// Probability of dropping a value, in [0, 1).
    pub p: f64,
    /// The layer's path, so that layers have different masks.
    pub site: String,
}

/// Values per task; even, because one random number gives two values.
const BLOCK: usize = 1 << 14;

impl Dropout {
    /// Zeroes values of `x` with probability `p` and scales the rest by `1 / (1 - p)`.
    pub fn apply<B: Backend>(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [tokens, features] = x.dims();
        let (mask, dims) = (self.mask(tokens * features), [tokens, features]);
        let mask = float_tensor_in(mask, dims, x.dtype(), &x.device());
        x * mask
    }

    /// The first `n` factors: 0 or `1 / (1 - p)`.
    fn mask(&self, n: usize) -> Vec<f32> {
        let DropoutKey { seed, step, micro_batch } = self.key;
        let start = generator(seed, &self.site, &[step, micro_batch]).next_u64();
        let kept = (1.0 / (1.0 - self.p)) as f32;
        let dropped_below = (self.p * 2f64.powi(32)).round() as u32;
        let factor = |bits: u32| if bits < dropped_below { 0.0 } else { kept };
        let mut mask = vec![0.0; n];
        mask.par_chunks_mut(BLOCK).enumerate().for_each(|(block, mask)| {
            // SplitMix64 can start at any position: its state is a counter.
            let first = start.wrapping_add(GOLDEN_GAMMA.wrapping_mul((block * BLOCK / 2) as u64));
            let mut state = first;
            for pair in mask.chunks_mut(2) {
                state = state.wrapping_add(GOLDEN_GAMMA);
                let bits = finalize(state);
                pair[0] = factor(bits as u32);
                if let Some(second) = pair.get_mut(1) {
                    *second = factor((bits >> 32) as u32);
                }
            }
        });
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropout(p: f64) -> Dropout {
        let key = DropoutKey { seed: 5, step: 2, micro_batch: 1 };
        Dropout { key, p, site: "q_proj".into() }
    }

    #[test]
    fn the_dropped_fraction_is_p_and_the_mean_is_unchanged() {
        for p in [0.05, 0.5, 0.9] {
            let mask = dropout(p).mask(200_001);
            let dropped = mask.iter().filter(|&&factor| factor == 0.0).count() as f64;
            assert!((dropped / mask.len() as f64 - p).abs() < 0.005, "{p}: {dropped}");
            let mean = mask.iter().copied().map(f64::from).sum::<f64>() / mask.len() as f64;
            assert!((mean - 1.0).abs() < 0.02, "{p}: {mean}");
        }
        assert!(dropout(0.0).mask(1000).iter().all(|&factor| factor == 1.0));
    }

    #[test]
    fn a_mask_does_not_depend_on_its_length() {
        let long = dropout(0.3).mask(3 * BLOCK + 5);
        assert_eq!(dropout(0.3).mask(BLOCK + 1), long[..BLOCK + 1]);
        let repeats = (0..BLOCK).filter(|&i| long[i] == long[i + BLOCK]).count();
        assert!(repeats < BLOCK * 7 / 10, "blocks are not copies of each other: {repeats}");
    }

    #[test]
    fn every_part_of_the_key_changes_the_mask() {
        let mask = dropout(0.5).mask(64);
        let with = |key, site: &str| Dropout { key, p: 0.5, site: site.into() }.mask(64);
        let key = dropout(0.5).key;
        assert_ne!(mask, with(DropoutKey { seed: 6, ..key }, "q_proj"));
        assert_ne!(mask, with(DropoutKey { step: 3, ..key }, "q_proj"));
        assert_ne!(mask, with(DropoutKey { micro_batch: 2, ..key }, "q_proj"));
        assert_ne!(mask, with(key, "k_proj"));
    }
}
