//! Loss and its gradient over rows of logits; the gradient takes the logits' place where nobody else needs them.

use burn::tensor::{Int, Tensor, TensorMetadata};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::simd::{exp, max, sum as ordered_sum, vectorized};
use super::views::{from_primitive, from_values, primitive};

/// The target tokens on the host.
pub(super) fn indices(targets: Tensor<Flex, 1, Int>) -> Vec<usize> {
    targets.into_data().iter::<i64>().map(|token| token as usize).collect()
}

/// The loss of each row.
pub(super) fn losses(logits: &[f32], targets: &[usize]) -> Vec<f32> {
    let vocab = logits.len() / targets.len().max(1);
    let rows = logits.par_chunks(vocab.max(1)).zip(targets);
    rows.map(|(row, &target)| log_sum_exp(row) - row[target]).collect()
}

fn log_sum_exp(row: &[f32]) -> f32 {
    vectorized(|| {
        let greatest = max(row);
        ordered_sum(row.len(), |i| exp(row[i] - greatest)).ln() + greatest
    })
}

/// The sum as a tensor `[1]`; in f64, as there may be many rows.
pub(super) fn sum(losses: &[f32]) -> Tensor<Flex, 1> {
    let sum: f64 = losses.iter().copied().map(f64::from).sum();
    from_values(vec![sum as f32], [1])
}

/// Loss and `softmax − onehot`, in one pass over each row while it is in the cache.
pub(super) fn with_grad(
    logits: Tensor<Flex, 2>,
    targets: &[usize],
) -> (Tensor<Flex, 1>, Tensor<Flex, 2>) {
    let mut logits: FlexTensor = primitive(logits).to_contiguous();
    let vocab = logits.shape()[1];
    // Copies if the logits are shared, else works in place.
    let rows = logits.storage_mut::<f32>().par_chunks_mut(vocab.max(1)).zip(targets);
    let losses: Vec<f32> = rows
        .map(|(row, &target)| {
            let log_sum = log_sum_exp(row);
            let loss = log_sum - row[target];
            vectorized(|| {
                for value in row.iter_mut() {
                    *value = exp(*value - log_sum);
                }
            });
            row[target] -= 1.0;
            loss
        })
        .collect();
    (sum(&losses), from_primitive(logits))
}
