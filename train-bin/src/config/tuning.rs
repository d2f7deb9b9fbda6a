//! The choices of optimizer, schedule and clipping, and their constants.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::Serialize;

use super::choice::{Choice, UnknownChoice};

/// What moves the weights: `train.optimizer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// AdamW with moments in 32 bits.
    #[default]
    AdamW,
    /// AdamW with moments in 8 bits, as bitsandbytes has it: a quarter of the memory.
    AdamW8bit,
    /// The sign of a running mean: half of AdamW's memory.
    Lion,
    /// Mean squares of rows and columns alone: hardly any memory.
    Adafactor,
    /// Gradient descent, with momentum.
    Sgd,
    /// Orthogonal momentum for matrices, AdamW for the rest.
    Muon,
}

impl Optimizer {
    /// The betas when none are given.
    pub(super) fn default_betas(self) -> [f64; 2] {
        match self {
            Self::Lion => [0.9, 0.99],
            _ => [0.9, 0.999],
        }
    }

    /// The epsilon when none is given.
    pub(super) fn default_eps(self) -> f64 {
        match self {
            Self::Adafactor => 1e-30,
            _ => 1e-8,
        }
    }

    /// Whether it has a momentum of its own.
    pub(super) fn has_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Muon)
    }
}

impl Choice for Optimizer {
    const WHAT: &'static str = "optimizer";
    const ALL: &'static [Self] =
        &[Self::AdamW, Self::AdamW8bit, Self::Lion, Self::Adafactor, Self::Sgd, Self::Muon];

    fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::AdamW8bit => "adamw8bit",
            Self::Lion => "lion",
            Self::Adafactor => "adafactor",
            Self::Sgd => "sgd",
            Self::Muon => "muon",
        }
    }
}

/// How the learning rate goes on after the warm-up: `train.schedule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Half a cosine down to `min_learning_rate`.
    #[default]
    Cosine,
    /// A straight line down to `min_learning_rate`.
    Linear,
    /// Stays at `learning_rate`.
    Constant,
    /// Stays, and falls to `min_learning_rate` over the last steps.
    Wsd,
    /// A power of what is left, down to `min_learning_rate`.
    Polynomial,
    /// One by the root of the step.
    InverseSqrt,
}

impl Choice for Schedule {
    const WHAT: &'static str = "schedule";
    const ALL: &'static [Self] = &[
        Self::Cosine,
        Self::Linear,
        Self::Constant,
        Self::Wsd,
        Self::Polynomial,
        Self::InverseSqrt,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Linear => "linear",
            Self::Constant => "constant",
            Self::Wsd => "wsd",
            Self::Polynomial => "polynomial",
            Self::InverseSqrt => "inverse_sqrt",
        }
    }
}

/// How the rate of `wsd` falls: `train.decay_shape`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub enum DecayShape {
    /// By one minus the root of what is done.
    #[default]
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
    /// In a straight line.
    #[serde(rename = "linear")]
    Linear,
    /// In half a cosine.
    #[serde(rename = "cosine")]
    Cosine,
}

impl Choice for DecayShape {
    const WHAT: &'static str = "shape of decay";
    const ALL: &'static [Self] = &[Self::OneMinusSqrt, Self::Linear, Self::Cosine];

    fn name(self) -> &'static str {
        match self {
            Self::OneMinusSqrt => "1-sqrt",
            Self::Linear => "linear",
            Self::Cosine => "cosine",
        }
    }
}

/// How Muon's rate depends on a matrix's shape: `train.muon_scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// So that updates are as large as AdamW's.
    #[default]
    MatchRmsAdamw,
    /// Jordan's.
    Original,
}

impl Choice for MuonScale {
    const WHAT: &'static str = "scale of Muon's rate";
    const ALL: &'static [Self] = &[Self::MatchRmsAdamw, Self::Original];

    fn name(self) -> &'static str {
        match self {
            Self::MatchRmsAdamw => "match_rms_adamw",
            Self::Original => "original",
        }
    }
}

/// How gradients are clipped: `train.clip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clip {
    /// By the norm of all of them, to `max_grad_norm`.
    #[default]
    Norm,
    /// Each tensor by what its own norm used to be.
    PerTensor,
    /// Not at all.
    Off,
}

impl Choice for Clip {
    const WHAT: &'static str = "way of clipping";
    const ALL: &'static [Self] = &[Self::Norm, Self::PerTensor, Self::Off];

    fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::PerTensor => "per_tensor",
            Self::Off => "off",
        }
    }
}

/// Constants of optimizers, schedules and clipping. Those that don't belong to what is chosen keep their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// What remains of SGD's running sum from step to step, or the decay of Muon's mean: 0 ≤ momentum < 1.
    pub momentum: f64,
    /// Whether SGD or Muon looks ahead.
    pub nesterov: bool,
    /// Root mean square that Adafactor's updates are scaled down to, greater than 0.
    pub clip_threshold: f64,
    /// How Muon's rate depends on a matrix's shape.
    pub muon_scale: MuonScale,
    /// How many times faster B of an adapter learns than A, greater than 0; `None`: as fast.
    pub lora_plus_ratio: Option<f64>,
    /// Steps after which the rates of A and B are balanced by their gradients; `None`: never.
    pub calibrate_ab: Option<NonZeroU64>,
    /// Rate of embeddings and head, greater than 0; `None`: the rate of all.
    pub embedding_learning_rate: Option<f64>,
    /// Whether weight decay is for norms and biases too.
    pub decay_norms_and_biases: bool,
    /// The last steps of `wsd`.
    pub decay: DecaySpan,
    /// How the rate of `wsd` falls over them.
    pub decay_shape: DecayShape,
    /// The power of `polynomial`, greater than 0.
    pub power: f64,
    /// How gradients are clipped.
    pub clip: Clip,
    /// The threshold of `per_tensor` by the mean norm, greater than 0.
    pub clip_factor: f64,
    /// The decay of that mean, 0 ≤ decay < 1.
    pub clip_decay: f64,
}

/// Over how many of its last steps a run's learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DecaySpan {
    /// So many.
    Steps(NonZeroU64),
    /// This share of all, 0 < share ≤ 1.
    Ratio(f64),
}

impl Tuning {
    /// The defaults beside an optimizer.
    pub(super) fn beside(optimizer: Optimizer) -> Self {
        let is_muon = optimizer == Optimizer::Muon;
        Self {
            momentum: if is_muon { 0.95 } else { 0.9 },
            nesterov: is_muon,
            clip_threshold: 1.0,
            muon_scale: MuonScale::default(),
            lora_plus_ratio: None,
            calibrate_ab: None,
            embedding_learning_rate: None,
            decay_norms_and_biases: false,
            decay: DecaySpan::Ratio(0.1),
            decay_shape: DecayShape::default(),
            power: 1.0,
            clip: Clip::default(),
            clip_factor: 2.0,
            clip_decay: 0.95,
        }
    }
}

impl Default for Tuning {
    /// Beside AdamW.
    fn default() -> Self {
        Self::beside(Optimizer::default())
    }
}

impl FromStr for Optimizer {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for Schedule {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name reads back as its value, and serde writes that same name.
    fn names_agree<T: Choice + Serialize + PartialEq + fmt::Debug>() {
        for &choice in T::ALL {
            assert_eq!(T::from_name(choice.name()).unwrap(), choice);
            assert_eq!(serde_json::to_value(choice).unwrap(), choice.name());
        }
    }

    #[test]
    fn every_choice_reads_back_from_its_name() {
        names_agree::<Optimizer>();
        names_agree::<Schedule>();
        names_agree::<DecayShape>();
        names_agree::<MuonScale>();
        names_agree::<Clip>();
    }

    #[test]
    fn an_unknown_name_lists_the_choices() {
        let error = "staircase".parse::<Schedule>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected a schedule, one of cosine, linear, constant, wsd, polynomial, inverse_sqrt, found `staircase`"
        );
    }
}
