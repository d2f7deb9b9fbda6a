//! Loss and its gradient over rows of logits; the gradient reuses the logits' memory if it is not shared.

use burn::tensor::{Int, Tensor, TensorMetadata};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::simd::{exp, max, soft_capped, sum as ordered_sum, vectorized};
use super::views::{from_primitive, from_values, primitive};

/// The target tokens on the host.
pub(super) fn indices(targets: Tensor<Flex, 1, Int>) -> Vec<usize> {
    targets.into_data().iter::<i64>().map(|token| token as usize).collect()
}

/// The loss of each row.
pub(super) fn losses(logits: &[f32], targets: &[usize], cap: Option<f32>) -> Vec<f32> {
    let vocab = logits.len() / targets.len().max(1);
    let rows = logits.par_chunks(vocab.max(1)).zip(targets);
    match cap {
        None => rows.map(|(row, &target)| log_sum_exp(row) - row[target]).collect(),
        Some(cap) => rows
            .map_init(Vec::new, |capped, (row, &target)| {
                capped.clear();
                capped.extend_from_slice(row);
                cap_row(capped, cap);
                log_sum_exp(capped) - capped[target]
            })
            .collect(),
    }
}

fn cap_row(row: &mut [f32], cap: f32) {
    vectorized(|| {
        for value in row.iter_mut() {
            *value = soft_capped(*value, cap);
        }
    });
}

fn log_sum_exp(row: &[f32]) -> f32 {
    vectorized(|| {
        let greatest = max(row);
        ordered_sum(row.len(), |i| exp(row[i] - greatest)).ln() + greatest
    })
}

/// The derivative of the soft cap at its output `y`.
#[inline(always)]
fn slope(y: f32, cap: f32) -> f32 {
    1.0 - (y / cap) * (y / cap)
}

/// The sum as a tensor `[1]`; summed in f64, because there may be many rows.
pub(super) fn sum(losses: &[f32]) -> Tensor<Flex, 1> {
    let sum: f64 = losses.iter().copied().map(f64::from).sum();
    from_values(vec![sum as f32], [1])
}

/// Loss and `softmax − onehot`, times the soft cap's derivative, in one pass over each row while it is in cache.
pub(super) fn with_grad(
    logits: Tensor<Flex, 2>,
    targets: &[usize],
    cap: Option<f32>,
) -> (Tensor<Flex, 1>, Tensor<Flex, 2>) {
    let mut logits: FlexTensor = primitive(logits).to_contiguous();
    let vocab = logits.shape()[1];
    // Copies if the logits are shared, else works in place.
    let rows = logits.storage_mut::<f32>().par_chunks_mut(vocab.max(1)).zip(targets);
    let losses: Vec<f32> = rows
        .map(|(row, &target)| {
            if let Some(cap) = cap {
                cap_row(row, cap);
            }
            let log_sum = log_sum_exp(row);
            let of_target = row[target];
            match cap {
                None => vectorized(|| {
                    for value in row.iter_mut() {
                        *value = exp(*value - log_sum);
                    }
                }),
                Some(cap) => vectorized(|| {
                    for value in row.iter_mut() {
                        *value = exp(*value - log_sum) * slope(*value, cap);
                    }
                }),
            }
            row[target] -= cap.map_or(1.0, |cap| slope(of_target, cap));
            log_sum - of_target
        })
        .collect();
    (sum(&losses), from_primitive(logits))
}
