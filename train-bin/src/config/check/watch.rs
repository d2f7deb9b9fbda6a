//! The keys of `[train]` that say how a run is watched over.

use super::Check;
use super::fields::{is_not_negative, is_positive, nonzero_u64, not_negative};
use crate::config::raw::{Field, RawWatch};
use crate::config::watch::{Kept, Watch};
use crate::trainer::guard::GuardConfig;

impl Check {
    /// `evaluates`: whether the run is evaluated before its end.
    pub(super) fn watch(&mut self, raw: RawWatch, evaluates: bool) -> Watch {
        let Watch { guards, save_best, result, min_improvement, debug, .. } = Watch::default();
        let asks_for_best = !raw.save_best.is_absent();
        let from_0 = "a whole number from 0 on";
        let watch = Watch {
            guards: GuardConfig {
                on_nonfinite: self.choice(
                    "train.on_nonfinite",
                    raw.on_nonfinite,
                    guards.on_nonfinite,
                ),
                max_skipped: self
                    .whole(
                        "train.max_skipped",
                        raw.max_skipped,
                        from_0,
                        guards.max_skipped,
                        not_negative,
                    )
                    .unwrap_or(guards.max_skipped),
                on_spike: self.choice("train.on_spike", raw.on_spike, guards.on_spike),
                spike_threshold: self.number(
                    "train.spike_threshold",
                    raw.spike_threshold,
                    "a number greater than 0",
                    guards.spike_threshold,
                    is_positive,
                ),
            },
            save_best: self.given("train.save_best", raw.save_best).unwrap_or(save_best),
            result: self.choice("train.result", raw.result, result),
            patience: self.whole_or_off("train.patience", raw.patience, nonzero_u64),
            min_improvement: self.number(
                "train.min_improvement",
                raw.min_improvement,
                "a number from 0 on",
                min_improvement,
                is_not_negative,
            ),
            debug: self.given("train.debug", raw.debug).unwrap_or(debug),
        };
        let needs = [
            ("train.patience", watch.patience.is_some()),
            ("train.result", watch.result == Kept::Best),
        ];
        for (key, _) in needs.iter().filter(|(_, wanted)| *wanted && !evaluates) {
            let remedy = format!("set train.eval_every, or remove {key}");
            self.contradiction(
                [key, "train.eval_every"],
                &format!("{key} goes by evaluations in the run, and there are none"),
                &remedy,
            );
        }
        if watch.result == Kept::Best && asks_for_best && !watch.save_best {
            let reason = "the best weights can only be the result where they are saved";
            self.contradiction(["train.result", "train.save_best"], reason, "remove one of them");
        }
        watch
    }
}

/// Whether a key that can be switched off is given as a number.
pub(super) fn is_on<T>(field: &Field<crate::config::raw::OrOff<T>>) -> bool {
    matches!(field, Field::Given(crate::config::raw::OrOff::On(_)))
}
