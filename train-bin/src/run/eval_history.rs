//! The evaluations of a run: the first, the last, the best, and whether the loss still improves.

use serde::{Deserialize, Serialize};

use crate::eval::evaluate::Evaluation;

/// The evaluations so far. Part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalHistory {
    /// The one before the first step.
    pub first: Option<Evaluation>,
    /// The last one, and the number of steps before it.
    pub last: Option<(u64, Evaluation)>,
    /// The one with the lowest loss, except the one before the first step.
    pub best: Option<Best>,
    /// Evaluations since the last improvement.
    pub without_improvement: u64,
    /// The answers to the sample prompts before the first step.
    pub first_answers: Vec<String>,
    /// The last answers to them.
    pub last_answers: Vec<String>,
}

/// The evaluation with the lowest loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Steps made before it.
    pub step: u64,
    /// Its loss, in nats.
    pub loss: f64,
}

impl EvalHistory {
    /// Records an evaluation after `step` steps. Returns whether its loss is the lowest so far.
    ///
    /// For early stopping, it is an improvement if it lowers that loss by more than `min_improvement`.
    pub fn record(&mut self, step: u64, evaluation: Evaluation, min_improvement: f64) -> bool {
        self.last = Some((step, evaluation));
        if step == 0 {
            self.first = Some(evaluation);
            return false;
        }
        let loss = evaluation.loss;
        let lowest = self.best.map_or(f64::INFINITY, |best| best.loss);
        // False for NaN.
        let is_best = loss < lowest;
        if is_best && loss < lowest - min_improvement {
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
        if is_best {
            self.best = Some(Best { step, loss });
        }
        is_best
    }

    /// Whether the last `patience` evaluations brought no improvement.
    pub fn is_exhausted(&self, patience: Option<std::num::NonZeroU64>) -> bool {
        patience.is_some_and(|patience| self.without_improvement >= patience.get())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn evaluation(loss: f64) -> Evaluation {
        Evaluation { loss, perplexity: loss.exp(), supervised_tokens: 1, examples: 1 }
    }

    #[test]
    fn the_lowest_loss_is_best_but_small_gains_are_no_improvement() {
        let mut history = EvalHistory::default();
        assert!(!history.record(0, evaluation(1.0), 0.05), "the untrained model is never the best");
        let losses = [(1, 1.2, true), (2, 1.1, true), (3, 1.08, true), (4, 1.09, false)];
        for (step, loss, is_best) in losses {
            assert_eq!(history.record(step, evaluation(loss), 0.05), is_best, "{step}");
        }
        assert_eq!(history.best, Some(Best { step: 3, loss: 1.08 }));
        assert_eq!(history.first, Some(evaluation(1.0)));
        assert_eq!(history.last, Some((4, evaluation(1.09))));
        assert!(
            history.is_exhausted(NonZeroU64::new(2)) && !history.is_exhausted(NonZeroU64::new(3))
        );
        assert!(!history.is_exhausted(None));
        assert!(!history.record(5, evaluation(f64::NAN), 0.05));
        assert!(history.record(6, evaluation(0.5), 0.05));
        assert_eq!(history.without_improvement, 0);
    }
}
