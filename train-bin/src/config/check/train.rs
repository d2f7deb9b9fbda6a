//! `[train]`.

use super::Check;
use super::fields::{
    is_not_negative, is_positive, is_share, nonzero_u64, nonzero_usize, not_negative,
};
use super::tuning::Beside;
use super::watch::is_on;
use crate::config::choice::Recompute;
use crate::config::raw::{Field, RawTrain};
use crate::config::{Duration, TrainSection, Warmup};

impl Check {
    pub(super) fn train(&mut self, raw: RawTrain, has_lora: bool) -> TrainSection {
        self.unknown_keys("train", &raw.unknown);
        let default = TrainSection::default();
        let from_0 = "a whole number from 0 on";
        let from_1 = "a whole number from 1 on";
        let non_negative = "a number from 0 on";
        let positive = "a number greater than 0";

        if !raw.epochs.is_absent() && !raw.steps.is_absent() {
            self.contradiction(
                ["train.epochs", "train.steps"],
                "each says when the run is over",
                "remove one of them",
            );
        }
        let has_epochs = !raw.epochs.is_absent();
        let epochs = self.number("train.epochs", raw.epochs, positive, 3.0, is_positive);
        let duration = match self.whole("train.steps", raw.steps, from_1, "3 epochs", nonzero_u64) {
            Some(steps) => Duration::Steps(steps),
            None if has_epochs => Duration::Epochs(epochs),
            None => default.duration,
        };

        if !raw.warmup_steps.is_absent() && !raw.warmup_ratio.is_absent() {
            let reason = "each says how long the learning rate rises";
            self.contradiction(
                ["train.warmup_steps", "train.warmup_ratio"],
                reason,
                "remove one of them",
            );
        }
        let has_ratio = !raw.warmup_ratio.is_absent();
        let share = "a number from 0 on, less than 1: the share of all steps";
        let ratio = self.number("train.warmup_ratio", raw.warmup_ratio, share, 0.0, is_share);
        let warmup =
            match self.whole("train.warmup_steps", raw.warmup_steps, from_0, 0, not_negative) {
                Some(steps) => Warmup::Steps(steps),
                None if has_ratio => Warmup::Ratio(ratio),
                None => default.warmup,
            };

        let faults_before = self.faults.len();
        let learning_rate = self.number(
            "train.learning_rate",
            raw.learning_rate,
            positive,
            default.learning_rate,
            is_positive,
        );
        let min_learning_rate = self.number(
            "train.min_learning_rate",
            raw.min_learning_rate,
            non_negative,
            default.min_learning_rate,
            is_not_negative,
        );
        if self.faults.len() == faults_before && min_learning_rate > learning_rate {
            let reason = format!(
                "expected a minimum of at most the learning rate {learning_rate}, found {min_learning_rate}"
            );
            let keys = ["train.min_learning_rate", "train.learning_rate"];
            self.contradiction(
                keys,
                &reason,
                "lower train.min_learning_rate or raise train.learning_rate",
            );
        }

        let recompute =
            self.choice::<Recompute>("train.recompute", raw.recompute, default.recompute);

        let optimizer = self.choice("train.optimizer", raw.optimizer, default.optimizer);
        let schedule = self.choice("train.schedule", raw.schedule, default.schedule);
        let beside = Beside { optimizer, schedule, has_lora };
        let (tuning, max_grad_norm) = self.tuning(raw.tuning, raw.max_grad_norm, &beside);

        let default_betas = optimizer.default_betas();
        let betas = self.given("train.betas", raw.betas).unwrap_or(default_betas);
        if !betas.into_iter().all(is_share) {
            let expected = "two numbers from 0 on, less than 1";
            self.out_of_range(
                "train.betas",
                expected,
                format!("{betas:?}"),
                format!("{default_betas:?}"),
            );
        }

        TrainSection {
            output_dir: self.path("train.output_dir", raw.output_dir).unwrap_or(default.output_dir),
            overwrite: self.given("train.overwrite", raw.overwrite).unwrap_or(default.overwrite),
            duration,
            micro_batch_size: self
                .whole(
                    "train.micro_batch_size",
                    raw.micro_batch_size,
                    from_1,
                    default.micro_batch_size,
                    nonzero_usize,
                )
                .unwrap_or(default.micro_batch_size),
            grad_accumulation: self
                .whole(
                    "train.grad_accumulation",
                    raw.grad_accumulation,
                    from_1,
                    default.grad_accumulation,
                    nonzero_usize,
                )
                .unwrap_or(default.grad_accumulation),
            optimizer,
            learning_rate,
            min_learning_rate,
            schedule,
            warmup,
            weight_decay: self.number(
                "train.weight_decay",
                raw.weight_decay,
                non_negative,
                default.weight_decay,
                is_not_negative,
            ),
            betas,
            eps: self.number("train.eps", raw.eps, positive, optimizer.default_eps(), is_positive),
            max_grad_norm,
            tuning,
            recompute,
            neftune_alpha: Some(self.number(
                "train.neftune_alpha",
                raw.neftune_alpha,
                non_negative,
                0.0,
                is_not_negative,
            ))
            .filter(|alpha| *alpha > 0.0),
            seed: self
                .whole("train.seed", raw.seed, from_0, default.seed, not_negative)
                .unwrap_or(default.seed),
            trainable: self.trainable(raw.trainable, has_lora),
            watch: self.watch(raw.watch, is_on(&raw.eval_every)),
            eval_every: self.whole_or_off("train.eval_every", raw.eval_every, nonzero_u64),
            save_every: self.whole_unless_off(
                "train.save_every",
                raw.save_every,
                default.save_every,
                nonzero_u64,
            ),
            keep_last: self.whole_unless_off(
                "train.keep_last",
                raw.keep_last,
                default.keep_last,
                nonzero_usize,
            ),
            log_every: self
                .whole("train.log_every", raw.log_every, from_1, default.log_every, nonzero_u64)
                .unwrap_or(default.log_every),
            tensorboard: self
                .given("train.tensorboard", raw.tensorboard)
                .unwrap_or(default.tensorboard),
            threads: self.whole("train.threads", raw.threads, from_1, "all cores", nonzero_usize),
        }
    }

    fn trainable(&mut self, field: Field<Vec<String>>, has_lora: bool) -> Vec<String> {
        let key = "train.trainable";
        let Some(names) = self.given(key, field) else { return Vec::new() };
        if has_lora {
            let reason =
                "with adapters they are what is trained, and the weights of the model are frozen";
            self.contradiction([key, "lora"], reason, "remove one of them");
        }
        if names.is_empty() || names.iter().any(String::is_empty) {
            self.out_of_range(
                key,
                "names of weights, or parts of them",
                format!("{names:?}"),
                "all",
            );
        }
        names
    }
}
