//! Divergence of the predictions of two models on a text.

use emberlm_model::{CausalLm, Inputs, ModelBackend, ModelConfig, SequenceBatch};
use rayon::prelude::*;
use serde::Serialize;

/// Tokens of a piece, which is evaluated without the text before it.
const PIECE: usize = 512;

/// Rows of logits per model that are in memory at a time.
const ROWS: usize = 64;

/// The predictions of two models on the same text, compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Divergence {
    /// Mean over positions of the Kullback-Leibler divergence KL(first ‖ second), in nats.
    pub kl: f64,
    /// Mean loss of the first model over the same positions, in nats.
    pub loss_before: f64,
    /// Mean loss of the second model.
    pub loss_after: f64,
    /// Positions: all tokens except the first of each piece.
    pub positions: usize,
}

/// Compares the next-token predictions of `before` and `after` on a text, in pieces of 512 tokens. `None` for a text of
/// fewer than two tokens.
pub fn divergence<B: ModelBackend>(
    config: &ModelConfig,
    before: &CausalLm<B>,
    after: &CausalLm<B>,
    ids: &[u32],
) -> Option<Divergence> {
    let mut sums = [0.0; 3];
    let mut positions = 0;
    for piece in ids.chunks(PIECE).filter(|piece| piece.len() > 1) {
        let hidden = [before, after].map(|model| {
            let inputs = inputs(config, piece, &model.device());
            let hidden = model.hidden(&inputs, None);
            let [_, seq, width] = hidden.dims();
            hidden.reshape([seq, width])
        });
        for (start, next) in (0..).step_by(ROWS).zip(piece[1..].chunks(ROWS)) {
            let logits = |n: usize, model: &CausalLm<B>| -> Vec<f32> {
                let rows = hidden[n].clone().narrow(0, start, next.len());
                model.head(rows).into_data().iter::<f32>().collect()
            };
            let (before, after) = (logits(0, before), logits(1, after));
            let vocab = config.vocab_size;
            let rows: Vec<[f64; 3]> = before
                .par_chunks(vocab)
                .zip(after.par_chunks(vocab))
                .zip(next)
                .map(|((before, after), &next)| of_row(before, after, next as usize))
                .collect();
            for row in rows {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += value;
                }
                positions += 1;
            }
        }
    }
    if positions == 0 {
        return None;
    }
    let [kl, loss_before, loss_after] = sums.map(|sum| sum / positions as f64);
    Some(Divergence { kl, loss_before, loss_after, positions })
}

/// Divergence and both losses at one position.
fn of_row(before: &[f32], after: &[f32], next: usize) -> [f64; 3] {
    let log_sum = |logits: &[f32]| {
        let greatest = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        let sum: f64 = logits.iter().map(|&x| f64::from(x - greatest).exp()).sum();
        f64::from(greatest) + sum.ln()
    };
    let (sum_before, sum_after) = (log_sum(before), log_sum(after));
    let kl = before.iter().zip(after).map(|(&before, &after)| {
        let (log_p, log_q) = (f64::from(before) - sum_before, f64::from(after) - sum_after);
        log_p.exp() * (log_p - log_q)
    });
    [kl.sum(), sum_before - f64::from(before[next]), sum_after - f64::from(after[next])]
}

fn inputs<B: ModelBackend>(config: &ModelConfig, ids: &[u32], device: &B::Device) -> Inputs<B> {
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let segments = vec![1; ids.len()];
    let batch =
        SequenceBatch { rows: 1, seq: ids.len(), ids, positions: &positions, segments: &segments };
    Inputs::new(config, batch, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_equals_the_textbook_formula() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): Σ p ln(p/q) = ln 2 / 2 − ln 2 / 4.
        let log = |values: [f32; 3], shift: f32| values.map(|value| value.ln() + shift);
        let (p, q) = (log([0.5, 0.25, 0.25], 3.0), log([0.25, 0.25, 0.5], -4.0));
        let [kl, before, after] = of_row(&p, &q, 0);
        let ln2 = std::f64::consts::LN_2;
        for (found, expected) in [(kl, ln2 / 4.0), (before, ln2), (after, 2.0 * ln2)] {
            assert!((found - expected).abs() < 2e-6, "{found} not {expected}");
        }
        assert!(of_row(&p, &p, 1)[0].abs() < 1e-12);
    }
}
