//! What the evaluations of a run found: the first, the last, the best, and whether there is still progress.

use serde::{Deserialize, Serialize};

use crate::eval::evaluate::Evaluation;

/// What the evaluations found. It is part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalHistory {
    /// Before the first step.
    pub first: Option<Evaluation>,
    /// The last one, and the step after which it was.
    pub last: Option<(u64, Evaluation)>,
    /// The one with the lowest loss, of those after a step.
    pub best: Option<Best>,
    /// Evaluations since the last one that was an improvement.
    pub without_improvement: u64,
    /// The answers to the sample prompts before the first step.
    pub first_answers: Vec<String>,
    /// The last ones.
    pub last_answers: Vec<String>,
}

/// The evaluation with the lowest loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The step after which it was.
    pub step: u64,
    /// Its loss, in nats.
    pub loss: f64,
}

impl EvalHistory {
    /// Takes note of an evaluation after `step` steps; says whether it is the best one so far.
    ///
    /// The lowest loss is the best. It is an improvement, as far as patience is concerned, if it is lower by more than
    /// `min_improvement`.
    pub fn take(&mut self, step: u64, evaluation: Evaluation, min_improvement: f64) -> bool {
        self.last = Some((step, evaluation));
        if step == 0 {
            self.first = Some(evaluation);
            return false;
        }
        let loss = evaluation.loss;
        let lowest = self.best.map_or(f64::INFINITY, |best| best.loss);
        // A loss that isn't a number is below none.
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

    /// Whether so many evaluations in a row were no improvement.
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
    fn the_lowest_loss_is_the_best_and_small_gains_try_the_patience() {
        let mut book = EvalHistory::default();
        assert!(!book.take(0, evaluation(1.0), 0.05), "the untrained model is nobody's result");
        let losses = [(1, 1.2, true), (2, 1.1, true), (3, 1.08, true), (4, 1.09, false)];
        for (step, loss, is_best) in losses {
            assert_eq!(book.take(step, evaluation(loss), 0.05), is_best, "{step}");
        }
        assert_eq!(book.best, Some(Best { step: 3, loss: 1.08 }));
        assert_eq!(book.first, Some(evaluation(1.0)));
        assert_eq!(book.last, Some((4, evaluation(1.09))));
        assert!(book.is_exhausted(NonZeroU64::new(2)) && !book.is_exhausted(NonZeroU64::new(3)));
        assert!(!book.is_exhausted(None));
        assert!(!book.take(5, evaluation(f64::NAN), 0.05));
        assert!(book.take(6, evaluation(0.5), 0.05));
        assert_eq!(book.without_improvement, 0);
    }
}
