//! RMSNorm, forward and backward, row by row.

use rayon::prelude::*;

use super::simd::{sum, vectorized};

/// Rows per task. The weight's gradient is summed within such a block and then over blocks.
const ROWS: usize = 64;

pub(super) fn forward(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let features = weight.len();
    let mut y = vec![0.0; x.len()];
    y.par_chunks_mut(ROWS * features).zip(x.par_chunks(ROWS * features)).for_each(|(y, x)| {
        vectorized(|| {
            for (y, x) in y.chunks_exact_mut(features).zip(x.chunks_exact(features)) {
                let scale = inverse_rms(x, eps);
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
        });
    });
    y
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x.len(), |i| x[i] * x[i]) / x.len() as f32 + eps).sqrt()
}

pub(super) fn backward(x: &[f32], weight: &[f32], grad: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let features = weight.len();
    let block = ROWS * features;
    let mut d_x = vec![0.0; x.len()];
    let partial: Vec<Vec<f32>> = d_x
        .par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .zip(grad.par_chunks(block))
        .map(|((d_x, x), grad)| {
            let mut d_weight = vec![0.0; features];
            vectorized(|| {
                let rows = x.chunks_exact(features).zip(grad.chunks_exact(features));
                for (d_x, (x, grad)) in d_x.chunks_exact_mut(features).zip(rows) {
                    let scale = inverse_rms(x, eps);
                    let along = sum(features, |i| grad[i] * weight[i] * x[i]);
                    // scale² · mean(grad · weight · x): the component of the gradient along x.
                    let along = along * scale * scale / features as f32;
                    for i in 0..features {
                        d_x[i] = scale * (grad[i] * weight[i] - x[i] * along);
                        d_weight[i] += grad[i] * x[i] * scale;
                    }
                }
            });
            d_weight
        })
        .collect();
    let mut d_weight = vec![0.0; features];
    for part in &partial {
        for (sum, value) in d_weight.iter_mut().zip(part) {
            *sum += value;
        }
    }
    (d_x, d_weight)
}
