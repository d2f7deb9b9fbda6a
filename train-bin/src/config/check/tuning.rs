//! The keys of `[train]` that are constants of optimizers, schedules and clipping.

use super::Check;
use super::fields::{is_not_negative, is_positive, is_share, nonzero_u64};
use crate::config::choice::Choice;
use crate::config::raw::{Field, Off, OrOff, RawTuning};
use crate::config::tuning::{Clip, DecaySpan, Optimizer, Schedule, Tuning};

/// What the rest of `[train]`, and `[lora]`, say.
pub(super) struct Beside {
    pub(super) optimizer: Optimizer,
    pub(super) schedule: Schedule,
    pub(super) has_lora: bool,
}

impl Check {
    /// The constants, and the norm that gradients are clipped to.
    pub(super) fn tuning(
        &mut self,
        raw: RawTuning,
        max_grad_norm: Field<OrOff<f64>>,
        beside: &Beside,
    ) -> (Tuning, Option<f64>) {
        let &Beside { optimizer, schedule, has_lora } = beside;
        let default = Tuning::beside(optimizer);
        let positive = "a number greater than 0";
        let share = "a number from 0 on, less than 1";

        let has_momentum = optimizer.has_momentum();
        let of_momentum = "sgd or muon";
        self.only_beside(
            "momentum",
            &raw.momentum,
            "optimizer",
            optimizer,
            has_momentum,
            of_momentum,
        );
        self.only_beside(
            "nesterov",
            &raw.nesterov,
            "optimizer",
            optimizer,
            has_momentum,
            of_momentum,
        );
        let is_muon = optimizer == Optimizer::Muon;
        self.only_beside("muon_scale", &raw.muon_scale, "optimizer", optimizer, is_muon, "muon");
        let is_adafactor = optimizer == Optimizer::Adafactor;
        let threshold = &raw.clip_threshold;
        self.only_beside(
            "clip_threshold",
            threshold,
            "optimizer",
            optimizer,
            is_adafactor,
            "adafactor",
        );
        let is_wsd = schedule == Schedule::Wsd;
        self.only_beside("decay_steps", &raw.decay_steps, "schedule", schedule, is_wsd, "wsd");
        self.only_beside("decay_ratio", &raw.decay_ratio, "schedule", schedule, is_wsd, "wsd");
        self.only_beside("decay_shape", &raw.decay_shape, "schedule", schedule, is_wsd, "wsd");
        let is_power = schedule == Schedule::Polynomial;
        self.only_beside("power", &raw.power, "schedule", schedule, is_power, "polynomial");

        let lora_plus_ratio =
            self.positive_if_given("train.lora_plus_ratio", raw.lora_plus_ratio, "1");
        let calibrate_ab = self.whole_or_off("train.calibrate_ab", raw.calibrate_ab, nonzero_u64);
        if !has_lora {
            let given = [
                ("train.lora_plus_ratio", lora_plus_ratio.is_some()),
                ("train.calibrate_ab", calibrate_ab.is_some()),
            ];
            for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                let remedy = "remove it, or add a section [lora]";
                self.contradiction(
                    [key, "lora"],
                    "without adapters there is no A and no B",
                    remedy,
                );
            }
        }
        if lora_plus_ratio.is_some() && calibrate_ab.is_some() {
            let keys = ["train.lora_plus_ratio", "train.calibrate_ab"];
            self.contradiction(keys, "each sets the rates of A and B", "remove one of them");
        }

        if !raw.decay_steps.is_absent() && !raw.decay_ratio.is_absent() {
            let keys = ["train.decay_steps", "train.decay_ratio"];
            let reason = "each says how long the learning rate falls";
            self.contradiction(keys, reason, "remove one of them");
        }
        let has_ratio = !raw.decay_ratio.is_absent();
        let of_all = "a number greater than 0, at most 1: the share of all steps";
        let is_span = |share: f64| share > 0.0 && share <= 1.0;
        let ratio = self.number("train.decay_ratio", raw.decay_ratio, of_all, 0.1, is_span);
        let from_1 = "a whole number from 1 on";
        let a_tenth = "a tenth of all steps";
        let steps = self.whole("train.decay_steps", raw.decay_steps, from_1, a_tenth, nonzero_u64);
        let decay = match steps {
            Some(steps) => DecaySpan::Steps(steps),
            None if has_ratio => DecaySpan::Ratio(ratio),
            None => default.decay,
        };

        let mut clip = self.choice("train.clip", raw.clip, default.clip);
        let max_grad_norm = self.max_grad_norm(max_grad_norm, clip);
        if clip == Clip::Norm && max_grad_norm.is_none() {
            clip = Clip::Off;
        }
        let is_own = clip == Clip::PerTensor;
        self.only_beside("clip_factor", &raw.clip_factor, "clip", clip, is_own, "per_tensor");
        self.only_beside("clip_decay", &raw.clip_decay, "clip", clip, is_own, "per_tensor");

        let tuning = Tuning {
            momentum: self.number(
                "train.momentum",
                raw.momentum,
                share,
                default.momentum,
                is_share,
            ),
            nesterov: self.given("train.nesterov", raw.nesterov).unwrap_or(default.nesterov),
            clip_threshold: self.number(
                "train.clip_threshold",
                raw.clip_threshold,
                positive,
                default.clip_threshold,
                is_positive,
            ),
            muon_scale: self.choice("train.muon_scale", raw.muon_scale, default.muon_scale),
            lora_plus_ratio,
            calibrate_ab,
            embedding_learning_rate: self.positive_if_given(
                "train.embedding_learning_rate",
                raw.embedding_learning_rate,
                "the learning rate",
            ),
            decay_norms_and_biases: self
                .given("train.decay_norms_and_biases", raw.decay_norms_and_biases)
                .unwrap_or(default.decay_norms_and_biases),
            decay,
            decay_shape: self.choice("train.decay_shape", raw.decay_shape, default.decay_shape),
            power: self.number("train.power", raw.power, positive, default.power, is_positive),
            clip,
            clip_factor: self.number(
                "train.clip_factor",
                raw.clip_factor,
                positive,
                default.clip_factor,
                is_positive,
            ),
            clip_decay: self.number(
                "train.clip_decay",
                raw.clip_decay,
                share,
                default.clip_decay,
                is_share,
            ),
        };
        if optimizer == Optimizer::Sgd && tuning.nesterov && tuning.momentum == 0.0 {
            let keys = ["train.nesterov", "train.momentum"];
            let reason = "there is nothing to look ahead along without momentum";
            self.contradiction(keys, reason, "remove train.nesterov, or set a momentum");
        }
        (tuning, max_grad_norm)
    }

    /// Refuses a key that means nothing beside what `of` holds.
    fn only_beside<T>(
        &mut self,
        key: &str,
        field: &Field<T>,
        of: &str,
        found: impl Choice,
        has_meaning: bool,
        needed: &str,
    ) {
        if field.is_absent() || has_meaning {
            return;
        }
        let [key, of] = [key, of].map(|key| format!("train.{key}"));
        let reason = format!("`{key}` means nothing beside {of} = \"{}\"", found.name());
        let remedy = format!("remove `{key}`, or set {of} to {needed}");
        self.contradiction([&key, &of], &reason, &remedy);
    }

    fn positive_if_given(&mut self, key: &str, field: Field<f64>, default: &str) -> Option<f64> {
        let found = self.given(key, field)?;
        let is_allowed = found.is_finite() && is_positive(found);
        if !is_allowed {
            self.out_of_range(key, "a number greater than 0", found, default);
        }
        is_allowed.then_some(found)
    }

    /// The norm to clip to; only beside [`Clip::Norm`].
    fn max_grad_norm(&mut self, field: Field<OrOff<f64>>, clip: Clip) -> Option<f64> {
        let key = "train.max_grad_norm";
        let found = match self.given(key, field) {
            None => return (clip == Clip::Norm).then_some(1.0),
            Some(OrOff::Off(Off)) => return None,
            Some(OrOff::On(norm)) if is_not_negative(norm) && norm.is_finite() => {
                Some(norm).filter(|norm| *norm > 0.0)
            }
            Some(OrOff::On(norm)) => {
                let expected = "a number greater than 0, or 0 or false for no clipping";
                self.out_of_range(key, expected, norm, "1.0");
                return None;
            }
        };
        if found.is_some() && clip != Clip::Norm {
            let reason = format!("clip = \"{}\" takes no norm of all gradients", clip.name());
            let remedy = "remove train.max_grad_norm, or set train.clip to norm";
            self.contradiction([key, "train.clip"], &reason, remedy);
            return None;
        }
        found
    }
}
