//! The training loss.

use burn::tensor::Tensor;
use emberlm_quant::host::index_tensor;

use crate::ModelBackend;

/// The sum over rows of the negative log-likelihood of each row's target token, in nats: `[1]`.
///
/// A sum, not a mean: the denominator is the number of supervised tokens of the whole step, which a micro-batch doesn't
/// know. `logits`: `[rows, vocab]`, before their soft cap, if any; `targets`: one token a row.
///
/// # Panics
/// If the number of targets isn't the number of rows.
pub fn cross_entropy_sum<B: ModelBackend>(
    logits: Tensor<B, 2>,
    targets: &[u32],
    soft_cap: Option<f64>,
) -> Tensor<B, 1> {
    let [rows, _] = logits.dims();
    assert_eq!(rows, targets.len(), "one target for each row of logits");
    let targets = index_tensor(targets.iter().map(|&id| id as usize), [rows], &logits.device());
    B::cross_entropy_sum(logits, targets, soft_cap)
}
