//! LayerNorm, forward and backward, row by row.

use rayon::prelude::*;

use super::simd::{sum, vectorized};

/// Rows per task. The gradients of weight and bias are summed within such a block and then over blocks.
const ROWS: usize = 64;

/// The mean of a row and the inverse of its standard deviation.
#[inline(always)]
fn statistics(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = sum(x.len(), |i| x[i]) / n;
    let variance = sum(x.len(), |i| (x[i] - mean) * (x[i] - mean)) / n;
    (mean, 1.0 / (variance + eps).sqrt())
}

pub(super) fn forward(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let features = weight.len();
    let mut y = vec![0.0; x.len()];
    y.par_chunks_mut(ROWS * features).zip(x.par_chunks(ROWS * features)).for_each(|(y, x)| {
        vectorized(|| {
            for (y, x) in y.chunks_exact_mut(features).zip(x.chunks_exact(features)) {
                let (mean, scale) = statistics(x, eps);
                for i in 0..features {
                    y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
                }
            }
        });
    });
    y
}

/// The gradients by `x`, by the weight and by the bias.
pub(super) fn backward(x: &[f32], weight: &[f32], grad: &[f32], eps: f32) -> [Vec<f32>; 3] {
    let features = weight.len();
    let block = ROWS * features;
    let mut d_x = vec![0.0; x.len()];
    let partial: Vec<[Vec<f32>; 2]> = d_x
        .par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .zip(grad.par_chunks(block))
        .map(|((d_x, x), grad)| {
            let (mut d_weight, mut d_bias) = (vec![0.0; features], vec![0.0; features]);
            vectorized(|| {
                let rows = x.chunks_exact(features).zip(grad.chunks_exact(features));
                for (d_x, (x, grad)) in d_x.chunks_exact_mut(features).zip(rows) {
                    let (mean, scale) = statistics(x, eps);
                    let n = features as f32;
                    // Centering and scaling remove the mean of the gradient and its component along x.
                    let d_mean = sum(features, |i| grad[i] * weight[i]) / n;
                    let along = sum(features, |i| grad[i] * weight[i] * (x[i] - mean)) * scale / n;
                    for i in 0..features {
                        let normed = (x[i] - mean) * scale;
                        d_x[i] = scale * (grad[i] * weight[i] - d_mean - normed * along);
                        d_weight[i] += grad[i] * normed;
                        d_bias[i] += grad[i];
                    }
                }
            });
            [d_weight, d_bias]
        })
        .collect();
    let (mut d_weight, mut d_bias) = (vec![0.0; features], vec![0.0; features]);
    for [of_weight, of_bias] in &partial {
        for i in 0..features {
            d_weight[i] += of_weight[i];
            d_bias[i] += of_bias[i];
        }
    }
    [d_x, d_weight, d_bias]
}
