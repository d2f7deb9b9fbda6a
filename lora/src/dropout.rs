//! Dropout that a recomputation replays.

use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::host::float_tensor;

use crate::random::{generator, unit};

/// Names the dropout masks of one forward pass: the same key gives the same masks.
///
/// Burn's own dropout draws from the backend's generator and only under autodiff, so a block that is first run
/// without autodiff and then again with it would see two different masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Micro-batch within the step, from 0.
    pub micro_batch: u64,
}

impl DropoutKey {
    /// Zeroes elements of `x` with probability `p` and scales the rest by `1 / (1 - p)`.
    ///
    /// `site` tells the layers of a model apart (a module's path).
    pub fn apply<B: Backend>(&self, x: Tensor<B, 2>, p: f64, site: &str) -> Tensor<B, 2> {
        let [tokens, features] = x.dims();
        let mut rng = generator(self.seed, site, &[self.step, self.micro_batch]);
        let keep = (1.0 / (1.0 - p)) as f32;
        let mask: Vec<f32> = (0..tokens * features)
            .map(|_| if f64::from(unit(&mut rng)) < p { 0.0 } else { keep })
            .collect();
        let mask = float_tensor(mask, [tokens, features], &x.device());
        x * mask
    }
}
