//! Keys of `[train]` about monitoring: guards, evaluations, the result.

use std::num::NonZeroU64;

use clap::ValueEnum;
use serde::Serialize;

use super::or_false;
use crate::settings::Reader;
use crate::trainer::guard::GuardConfig;

/// How a run is monitored: some keys of `[train]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Monitoring {
    /// What happens at steps that look wrong.
    #[serde(flatten)]
    pub guards: GuardConfig,
    /// Whether a checkpoint is saved at the best evaluation so far, and kept. Only with `eval_every`.
    pub save_best: bool,
    /// Which weights are the result.
    pub result: ResultWeights,
    /// Evaluations in a row without improvement after which the run stops; `None`: never.
    #[serde(serialize_with = "or_false")]
    pub patience: Option<NonZeroU64>,
    /// By how much a loss has to be lower to count as an improvement, at least 0.
    pub min_improvement: f64,
    /// Whether the first micro-batch is shown token by token, with activations and gradients.
    pub debug: bool,
}

/// Which weights are the result of a run: `train.result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ResultWeights {
    /// The weights after the last step.
    #[default]
    Last,
    /// The weights with the lowest evaluation loss.
    Best,
}

impl Monitoring {
    /// `evaluates`: whether the run is evaluated before its end.
    pub(super) fn read(s: &mut Reader, evaluates: bool) -> Self {
        let guards = GuardConfig::read(s);
        let is_save_best_given = s.is_given("save_best");
        let save_best = s
            .boolean("save_best", "Save a checkpoint at the best evaluation so far, and keep it")
            .changes_nothing()
            .or(true);
        let result = s
            .choice::<ResultWeights>(
                "result",
                "Weights to use as the result; best needs `eval_every`",
            )
            .also_called(&["load_best_model_at_end"])
            .changes_nothing()
            .or_default();
        let patience = s
            .whole(
                "patience",
                "Stop after this many evaluations in a row without improvement; needs `eval_every`",
            )
            .also_called(&["early_stopping_patience"])
            .example("5")
            .changes_nothing()
            .or_off(None);
        let min_improvement = s
            .number(
                "min_improvement",
                "Minimum decrease of the evaluation loss that counts as an improvement",
            )
            .at_least(0.0)
            .also_called(&["early_stopping_threshold"])
            .changes_nothing()
            .or(0.0);
        let debug = s
            .boolean(
                "debug",
                "Print the first micro-batch token by token, with activations and gradients",
            )
            .changes_nothing()
            .or(false);
        let needs = [("patience", patience.is_some()), ("result", result == ResultWeights::Best)];
        for (key, _) in needs.iter().filter(|(_, wanted)| *wanted && !evaluates) {
            let remedy = format!("set train.eval_every, or remove train.{key}");
            let reason =
                format!("train.{key} needs evaluations during the run, and there are none");
            s.contradiction([key, "eval_every"], &reason, &remedy);
        }
        if result == ResultWeights::Best && is_save_best_given && !save_best {
            let reason = "the best weights can only be the result if they are saved";
            s.contradiction(["result", "save_best"], reason, "remove one of them");
        }
        Self { guards, save_best, result, patience, min_improvement, debug }
    }
}
