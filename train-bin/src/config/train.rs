//! `[train]`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Monitoring, nonzero, nonzero_u64, or_false};
use crate::settings::{Reader, absolute};
use crate::trainer::clip::ClipConfig;
use crate::trainer::optimizer::{Algorithm, OptimizerConfig, ParamGroups};
use crate::trainer::schedule::{Curve, LearningRate, Warmup};
use crate::trainer::step::Recompute;

/// `[train]`: the training. All floats are finite.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainSection {
    /// The run folder.
    pub output_dir: PathBuf,
    /// Whether a run that is in `output_dir` already may be replaced.
    pub overwrite: bool,
    /// How long the run is.
    #[serde(flatten)]
    pub duration: Duration,
    /// Rows in a micro-batch.
    pub micro_batch_size: NonZeroUsize,
    /// Micro-batches in a step.
    pub grad_accumulation: NonZeroUsize,
    /// The optimizer and its constants.
    #[serde(flatten)]
    pub optimizer: Algorithm,
    /// The highest learning rate, greater than 0.
    pub learning_rate: f64,
    /// The learning rate at the end of the schedule, from 0 to `learning_rate`.
    pub min_learning_rate: f64,
    /// The learning-rate schedule after warm-up.
    #[serde(flatten)]
    pub schedule: Curve,
    /// How long the learning rate rises at first.
    #[serde(flatten)]
    pub warmup: Warmup,
    /// How many times faster B of an adapter learns than A, greater than 0; `None`: equally fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_plus_ratio: Option<f64>,
    /// Steps after which the rates of A and B are balanced by their gradients; `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibrate_ab: Option<NonZeroU64>,
    /// Learning rate of embeddings and head, greater than 0; `None`: `learning_rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_learning_rate: Option<f64>,
    /// Whether weight decay also applies to norms and biases.
    pub decay_norms_and_biases: bool,
    /// How gradients are clipped.
    #[serde(flatten)]
    pub clip: ClipConfig,
    /// What the backward pass recomputes instead of keeping it.
    pub recompute: Recompute,
    /// Strength of the noise on the embeddings (NEFTune); `None`: no noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neftune_alpha: Option<f64>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Steps between evaluations; `None`: only at the end.
    #[serde(serialize_with = "or_false")]
    pub eval_every: Option<NonZeroU64>,
    /// Steps between checkpoints; `None`: none.
    #[serde(serialize_with = "or_false")]
    pub save_every: Option<NonZeroU64>,
    /// How many checkpoints are kept; `None`: all.
    #[serde(serialize_with = "or_false")]
    pub keep_last: Option<NonZeroUsize>,
    /// Steps between rows on the screen.
    pub log_every: NonZeroU64,
    /// Whether event files for TensorBoard are written.
    pub tensorboard: bool,
    /// CPU threads; `None`: all cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroUsize>,
    /// The weights that are trained: whole names, or dot-separated parts of them; empty: all. Only without `[lora]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trainable: Vec<String>,
    /// How the run is monitored.
    #[serde(flatten)]
    pub monitoring: Monitoring,
}

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Duration {
    /// Passes over the data, greater than 0.
    Epochs(f64),
    /// Optimizer steps.
    Steps(NonZeroU64),
}

impl TrainSection {
    pub(super) fn read(s: &mut Reader, has_lora: bool) -> Self {
        let output_dir = s
            .path("output_dir", "Run folder")
            .flag("out")
            .changes_nothing()
            .or(absolute(Path::new("runs/default")));
        let overwrite = s
            .boolean("overwrite", "Replace an existing run in `output_dir`")
            .also_called(&["overwrite_output_dir"])
            .changes_nothing()
            .or(false);
        let duration = duration(s);
        let micro_batch_size = s
            .whole("micro_batch_size", "Rows per micro-batch")
            .also_called(&["batch_size", "per_device_train_batch_size"])
            .or(nonzero(4));
        let grad_accumulation = s
            .whole("grad_accumulation", "Micro-batches per step")
            .also_called(&["gradient_accumulation_steps"])
            .or(NonZeroUsize::MIN);
        let optimizer = Algorithm::read(s);
        let (learning_rate, min_learning_rate) = learning_rates(s);
        let schedule = Curve::read(s);
        let warmup = Warmup::read(s);
        let (lora_plus_ratio, calibrate_ab) = adapter_rates(s, has_lora);
        let embedding_learning_rate = s
            .number("embedding_learning_rate", "Learning rate of embeddings and head")
            .above(0.0)
            .also_called(&["embedding_lr"])
            .example("1e-5")
            .optional("`learning_rate`");
        let decay_norms_and_biases = s
            .boolean("decay_norms_and_biases", "Apply weight decay to norms and biases too")
            .or(false);
        let seed = s.whole::<u64>("seed", "Random seed").or(0);
        let (eval_every, save_every, keep_last) = intervals(s);
        let log_every = s
            .whole("log_every", "Steps between printed rows")
            .also_called(&["logging_steps"])
            .changes_nothing()
            .or(NonZeroU64::MIN);
        let tensorboard = s
            .boolean("tensorboard", "Write TensorBoard event files to the run folder")
            .also_called(&["report_to"])
            .changes_nothing()
            .or(false);
        let threads = s
            .whole("threads", "Number of CPU threads")
            .example("8")
            .changes_nothing()
            .optional("all cores");
        Self {
            output_dir,
            overwrite,
            duration,
            micro_batch_size,
            grad_accumulation,
            optimizer,
            learning_rate,
            min_learning_rate,
            schedule,
            warmup,
            lora_plus_ratio,
            calibrate_ab,
            embedding_learning_rate,
            decay_norms_and_biases,
            clip: ClipConfig::read(s),
            recompute: recompute(s),
            neftune_alpha: neftune_alpha(s),
            seed,
            eval_every,
            save_every,
            keep_last,
            log_every,
            tensorboard,
            threads,
            trainable: trainable(s, has_lora),
            monitoring: Monitoring::read(s, eval_every.is_some()),
        }
    }

    /// The learning rate over a run of `steps` steps.
    pub fn learning_rate_over(&self, steps: u64) -> LearningRate {
        LearningRate {
            curve: self.schedule,
            peak: self.learning_rate,
            floor: self.min_learning_rate,
            warmup: self.warmup,
            steps,
        }
    }

    /// The optimizer, with the rates and the decay of each group of parameters.
    pub fn optimizer_config(&self) -> OptimizerConfig {
        let embedding_rate = self.embedding_learning_rate.unwrap_or(self.learning_rate);
        let groups = ParamGroups {
            lora_plus_ratio: self.lora_plus_ratio.unwrap_or(1.0),
            embedding_ratio: embedding_rate / self.learning_rate,
            decay_norms_and_biases: self.decay_norms_and_biases,
            calibrate_ab: self.calibrate_ab.map_or(0, NonZeroU64::get),
        };
        OptimizerConfig { algorithm: self.optimizer, groups }
    }
}

fn duration(s: &mut Reader) -> Duration {
    s.at_most_one(["epochs", "steps"], "both set the length of the run");
    let epochs = s
        .number("epochs", "Number of epochs: passes over the training data")
        .above(0.0)
        .also_called(&["num_train_epochs", "num_epochs"])
        .or(3.0);
    let steps = s
        .whole("steps", "Number of optimizer steps")
        .also_called(&["max_steps"])
        .example("1000")
        .optional("`epochs`");
    steps.map_or(Duration::Epochs(epochs), Duration::Steps)
}

/// Steps between evaluations and between checkpoints, and how many checkpoints are kept.
fn intervals(s: &mut Reader) -> (Option<NonZeroU64>, Option<NonZeroU64>, Option<NonZeroUsize>) {
    let eval_every = s
        .whole(
            "eval_every",
            "Steps between evaluations; off: only before the first and after the last step",
        )
        .also_called(&["eval_steps"])
        .example("100")
        .changes_nothing()
        .or_off(None);
    let save_every = s
        .whole("save_every", "Steps between checkpoints; off: none")
        .also_called(&["save_steps"])
        .changes_nothing()
        .or_off(Some(nonzero_u64(500)));
    let keep_last = s
        .whole("keep_last", "Number of newest checkpoints to keep; off: all")
        .also_called(&["save_total_limit"])
        .changes_nothing()
        .or_off(Some(nonzero(2)));
    (eval_every, save_every, keep_last)
}

fn recompute(s: &mut Reader) -> Recompute {
    s.choice::<Recompute>(
        "recompute",
        "Activations to recompute in the backward pass, to save memory",
    )
    .also_called(&["gradient_checkpointing"])
    .changes_nothing()
    .or_default()
}

fn neftune_alpha(s: &mut Reader) -> Option<f64> {
    s.number("neftune_alpha", "Scale of the noise on embeddings (NEFTune); 0: none")
        .at_least(0.0)
        .zero_is_off()
        .also_called(&["neftune_noise_alpha"])
        .example("5.0")
        .or_off(None)
}

fn learning_rates(s: &mut Reader) -> (f64, f64) {
    let before = s.fault_count();
    let rate =
        s.number("learning_rate", "Peak learning rate").above(0.0).also_called(&["lr"]).or(2e-4);
    let min = s
        .number("min_learning_rate", "Learning rate at the end of the schedule")
        .at_least(0.0)
        .also_called(&["min_lr"])
        .or(0.0);
    if s.fault_count() == before && min > rate {
        let reason = format!("expected a minimum of at most the learning rate {rate}, found {min}");
        let remedy = "lower train.min_learning_rate or raise train.learning_rate";
        s.contradiction(["min_learning_rate", "learning_rate"], &reason, remedy);
    }
    (rate, min)
}

fn adapter_rates(s: &mut Reader, has_lora: bool) -> (Option<f64>, Option<NonZeroU64>) {
    s.only_with("[lora]", has_lora, |s| {
        s.at_most_one(
            ["lora_plus_ratio", "calibrate_ab"],
            "both set the learning rates of A and B",
        );
        let ratio = s
            .number("lora_plus_ratio", "Learning rate of an adapter's B, relative to its A (LoRA+)")
            .above(0.0)
            .also_called(&["loraplus_lr_ratio"])
            .example("16.0")
            .optional("1");
        let calibrate = s
            .whole(
                "calibrate_ab",
                "Steps after which the learning rates of A and B are balanced by their gradients",
            )
            .example("20")
            .or_off(None);
        (ratio, calibrate)
    })
}

fn trainable(s: &mut Reader, has_lora: bool) -> Vec<String> {
    let names = s.only_with("full fine-tuning (no [lora])", !has_lora, |s| {
        s.setting::<Vec<String>>(
            "trainable",
            "Weights to train: names, or dot-separated parts of them",
        )
        .also_called(&["unfrozen_parameters"])
        .example("[\"mlp\", \"norm\"]")
        .changes_weights()
        .optional("all")
    });
    match names {
        Some(names) if names.is_empty() || names.iter().any(String::is_empty) => {
            let expected = "names of weights, or parts of them";
            let remedy = "change it, or remove it for the default, all";
            s.refuse("trainable", expected, &format!("{names:?}"), remedy);
            Vec::new()
        }
        names => names.unwrap_or_default(),
    }
}
