//! Gradient clipping: by the norm of all gradients, or each tensor by its own earlier norms.

use std::collections::BTreeMap;

use burn::tensor::backend::Backend;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;

use crate::settings::Reader;

use crate::trainer::grads::Gradients;
use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// How gradients are clipped: `train.clip`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "clip", rename_all = "snake_case")]
pub enum ClipConfig {
    /// All by one factor, so that their common norm is at most this: what Hugging Face's Trainer does.
    Norm {
        /// The greatest norm, greater than 0.
        max_grad_norm: f64,
    },
    /// Each tensor by a threshold of its own.
    ///
    /// The threshold is `factor` times a running mean of the tensor's norms, each taken after clipping. After n norms the mean
    /// weighs them by `min(decay, n / (n + 1))`: a plain mean at first. A norm of 0 is not counted (A of a fresh adapter has no
    /// gradient at the first step), and as long as none was counted nothing is clipped.
    PerTensor {
        /// The threshold by the mean, greater than 0.
        #[serde(rename = "clip_factor")]
        factor: f64,
        /// Decay of the mean, 0 ≤ decay < 1.
        #[serde(rename = "clip_decay")]
        decay: f64,
    },
    /// Not at all.
    Off,
}

impl ClipConfig {
    const ALL: [Self; 3] =
        [Self::norm(1.0), Self::PerTensor { factor: 2.0, decay: 0.95 }, Self::Off];

    /// By the norm of all gradients.
    pub const fn norm(max_grad_norm: f64) -> Self {
        Self::Norm { max_grad_norm }
    }

    /// Its name, as `train.clip` has it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Norm { .. } => "norm",
            Self::PerTensor { .. } => "per_tensor",
            Self::Off => "off",
        }
    }

    /// Reads `train.clip` and the settings of the chosen kind.
    pub(crate) fn read(s: &mut Reader) -> Self {
        let chosen = s
            .choice::<Self>("clip", "Gradient clipping")
            .also_called(&["gradient_clipping"])
            .or(Self::ALL[0]);
        s.choice_with_settings("clip", chosen, |clip, s| match clip {
            Self::Norm { max_grad_norm } => s
                .number("max_grad_norm", "Maximum norm of all gradients together; 0: no clipping")
                .at_least(0.0)
                .zero_is_off()
                .or_off(Some(max_grad_norm))
                .map_or(Self::Off, Self::norm),
            Self::PerTensor { factor, decay } => Self::PerTensor {
                factor: s
                    .number(
                        "clip_factor",
                        "Threshold of a tensor, as a multiple of the running mean of its norms",
                    )
                    .above(0.0)
                    .or(factor),
                decay: s
                    .number("clip_decay", "Decay rate of this running mean")
                    .at_least(0.0)
                    .below(1.0)
                    .or(decay),
            },
            Self::Off => Self::Off,
        })
    }
}

impl ValueEnum for ClipConfig {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(match self {
            Self::Norm { .. } => {
                "Scale all gradients together to a norm of at most `max_grad_norm`"
            }
            Self::PerTensor { .. } => {
                "Scale each tensor by a threshold of its own, from a running mean of its norms"
            }
            Self::Off => "No clipping",
        }))
    }
}

/// Gradient clipping with its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Clipper {
    config: ClipConfig,
    steps: u64,
    /// By tensor; empty except with [`ClipConfig::PerTensor`].
    means: BTreeMap<String, NormMean>,
}

/// The running mean of a tensor's norms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct NormMean {
    mean: f64,
    /// Norms counted.
    count: f64,
}

/// The role of a tensor's mean in a state: `[mean, count]`.
const ROLE: &str = "grad_norm";

impl NormMean {
    /// The factor of the tensor's gradient, and the mean with its norm counted.
    fn next(self, norm: f64, factor: f64, decay: f64) -> (f64, Self) {
        if norm == 0.0 {
            return (1.0, self);
        }
        let threshold = if self.count == 0.0 { f64::INFINITY } else { factor * self.mean };
        let scale = (threshold / norm).min(1.0);
        let decay = decay.min(self.count / (self.count + 1.0));
        let mean = decay * self.mean + (1.0 - decay) * norm * scale;
        (scale, Self { mean, count: self.count + 1.0 })
    }
}

impl Clipper {
    /// Without any gradient so far.
    pub fn new(config: ClipConfig) -> Self {
        Self { config, steps: 0, means: BTreeMap::new() }
    }

    /// Clips the gradients of a step, whose common norm is `norm` and finite.
    pub fn clip<B: Backend>(&mut self, gradients: &mut Gradients<B>, norm: f64) {
        self.steps += 1;
        match self.config {
            ClipConfig::Off => {}
            ClipConfig::Norm { max_grad_norm: greatest } => gradients.clip(norm, greatest),
            ClipConfig::PerTensor { factor, decay } => {
                let norms = gradients.norms();
                let paths: Vec<String> =
                    gradients.iter().map(|(path, _)| path.to_owned()).collect();
                let scales = paths.into_iter().zip(norms).map(|(path, norm)| {
                    let mean = self.means.entry(path).or_default();
                    let scale;
                    (scale, *mean) = mean.next(norm, factor, decay);
                    scale
                });
                let scales: Vec<f64> = scales.collect();
                gradients.scale(&scales);
            }
        }
    }

    /// Its state, for a checkpoint, in the form of an optimizer's state.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState::new(self.config.name(), self.steps);
        for (path, NormMean { mean, count }) in &self.means {
            state.put_f64(ROLE, path, &[*mean, *count]);
        }
        state
    }

    /// Restores a saved state exactly.
    ///
    /// # Errors
    /// [`StateError`] if `state` belongs to another way of clipping, or is damaged.
    pub fn restore(config: ClipConfig, state: &OptimizerState) -> Result<Self, StateError> {
        let mut reader = StateReader::new(config.name(), state)?;
        let mut means = BTreeMap::new();
        if let ClipConfig::PerTensor { .. } = config {
            for path in reader.paths(&[ROLE]) {
                let numbers = reader.f64s(ROLE, path, 2)?;
                means.insert(path.to_owned(), NormMean { mean: numbers[0], count: numbers[1] });
            }
        }
        reader.finish()?;
        Ok(Self { config, steps: state.steps, means })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: means 2, then (2 + 4)/2, then 0.5·3 + 0.5·6.
    #[test]
    fn a_threshold_is_a_multiple_of_the_mean_so_far() {
        let (factor, decay) = (2.0, 0.5);
        let mean = NormMean::default();
        let (scale, mean) = mean.next(0.0, factor, decay);
        assert_eq!((scale, mean), (1.0, NormMean::default()), "a zero gradient is not counted");
        let (scale, mean) = mean.next(2.0, factor, decay);
        assert_eq!((scale, mean.mean), (1.0, 2.0), "the first is never clipped");
        let (scale, mean) = mean.next(40.0, factor, decay);
        assert_eq!((scale, mean.mean), (0.1, 3.0), "and an outlier is counted after clipping");
        let (scale, mean) = mean.next(6.0, factor, decay);
        assert_eq!((scale, mean.mean), (1.0, 4.5));
    }
}
