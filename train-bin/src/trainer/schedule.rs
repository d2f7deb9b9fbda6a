//! The learning rate as a function of the step.

use std::f64::consts::PI;
use std::num::NonZeroU64;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;

use crate::settings::Reader;

/// The learning rate after warm-up: `train.schedule`. `p` is the share of the steps after warm-up that are done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "schedule", rename_all = "snake_case")]
pub enum Curve {
    /// `floor + (peak − floor) · (1 + cos πp) / 2`.
    Cosine,
    /// `floor + (peak − floor) · (1 − p)`.
    Linear,
    /// The peak.
    Constant,
    /// `floor + (peak − floor) · (1 − p)^power`.
    Polynomial {
        /// The power, greater than 0.
        power: f64,
    },
    /// `peak / √(1 + done / timescale)`, at least `floor`: `done` steps after warm-up, whose length is the timescale, or 10 000
    /// without one. It doesn't depend on the number of steps in all.
    InverseSqrt,
    /// From the peak to the floor by equal factors: for learning-rate range tests only.
    #[serde(skip)]
    Exponential,
    /// The peak, and from it to the floor over the last steps (warm-up, stable, decay).
    Wsd {
        /// The last steps; no more than are left after warm-up.
        #[serde(flatten)]
        decay: DecaySpan,
        /// How the rate falls over them.
        #[serde(rename = "decay_shape")]
        shape: DecayShape,
    },
}

impl Curve {
    const ALL: [Self; 6] = [
        Self::Cosine,
        Self::Linear,
        Self::Constant,
        Self::Wsd { decay: DecaySpan::Ratio(0.1), shape: DecayShape::OneMinusSqrt },
        Self::Polynomial { power: 1.0 },
        Self::InverseSqrt,
    ];

    /// Reads `train.schedule` and the settings of the schedule that is chosen.
    pub(crate) fn read(s: &mut Reader) -> Self {
        let chosen = s
            .choice::<Self>("schedule", "Learning-rate schedule after warm-up")
            .also_called(&["lr_scheduler", "lr_scheduler_type"])
            .or(Self::Cosine);
        s.choice_with_settings("schedule", chosen, |curve, s| match curve {
            Self::Wsd { shape, .. } => Self::Wsd {
                decay: DecaySpan::read(s),
                shape: s.choice("decay_shape", "Shape of the final decay").or(shape),
            },
            Self::Polynomial { power } => Self::Polynomial {
                power: s.number("power", "Exponent of the polynomial").above(0.0).or(power),
            },
            plain => plain,
        })
    }
}

impl ValueEnum for Curve {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Cosine => ("cosine", "Half a cosine down to `min_learning_rate`"),
            Self::Linear => ("linear", "A straight line down to `min_learning_rate`"),
            Self::Constant => ("constant", "Always `learning_rate`"),
            Self::Wsd { .. } => {
                ("wsd", "Warm-up, stable, decay: constant, then down to `min_learning_rate`")
            }
            Self::Polynomial { .. } => (
                "polynomial",
                "A power of the remaining share of steps, down to `min_learning_rate`",
            ),
            Self::InverseSqrt => {
                ("inverse_sqrt", "Inversely proportional to the square root of the step")
            }
            Self::Exponential => return None,
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// The last steps of [`Curve::Wsd`], over which the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum DecaySpan {
    /// A number of steps.
    #[serde(rename = "decay_steps")]
    Steps(NonZeroU64),
    /// A share of all steps, 0 < share ≤ 1.
    #[serde(rename = "decay_ratio")]
    Ratio(f64),
}

impl DecaySpan {
    fn read(s: &mut Reader) -> Self {
        s.at_most_one(["decay_steps", "decay_ratio"], "both set the length of the decay");
        let ratio = s
            .number("decay_ratio", "Share of all steps in the final decay")
            .above(0.0)
            .at_most(1.0)
            .or(0.1);
        let steps = s
            .whole("decay_steps", "Steps of the final decay")
            .also_called(&["num_decay_steps"])
            .example("100")
            .optional("`decay_ratio`");
        steps.map_or(Self::Ratio(ratio), Self::Steps)
    }

    fn steps(self, all: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps.get(),
            Self::Ratio(share) => share_of(share, all),
        }
    }
}

/// How long the learning rate rises at first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Warmup {
    /// A number of steps; 0: none.
    #[serde(rename = "warmup_steps")]
    Steps(u64),
    /// A share of all steps, 0 ≤ share < 1.
    #[serde(rename = "warmup_ratio")]
    Ratio(f64),
}

impl Warmup {
    /// Reads its settings.
    pub(crate) fn read(s: &mut Reader) -> Self {
        s.at_most_one(["warmup_steps", "warmup_ratio"], "both set the length of the warm-up");
        let steps = s
            .whole("warmup_steps", "Warm-up steps, in which the learning rate rises linearly")
            .or(0);
        let ratio = s
            .number("warmup_ratio", "Share of all steps in the warm-up")
            .at_least(0.0)
            .below(1.0)
            .example("0.03")
            .optional("`warmup_steps`");
        ratio.map_or(Self::Steps(steps), Self::Ratio)
    }

    fn steps(self, all: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Ratio(share) => share_of(share, all),
        }
    }
}

/// A share of all steps, rounded up.
fn share_of(share: f64, steps: u64) -> u64 {
    (share * steps as f64).ceil() as u64
}

/// How a rate falls from 1 to 0 over a share `p` of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum DecayShape {
    /// 1 − √p, where p is the finished share of the decay (Hägele et al., 2024, arXiv:2405.18392).
    #[value(name = "1-sqrt")]
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
    /// A straight line: 1 − p.
    #[serde(rename = "linear")]
    Linear,
    /// Half a cosine: (1 + cos πp) / 2.
    #[serde(rename = "cosine")]
    Cosine,
}

impl DecayShape {
    fn at(self, p: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - p,
            Self::OneMinusSqrt => 1.0 - p.sqrt(),
            Self::Cosine => (1.0 + (PI * p).cos()) / 2.0,
        }
    }
}

/// Warm-up, then a curve from `peak` to `floor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// The shape after warm-up.
    pub curve: Curve,
    /// Rate at the end of warm-up.
    pub peak: f64,
    /// Rate at the end of the curve.
    pub floor: f64,
    /// Linear warm-up.
    pub warmup: Warmup,
    /// Total steps.
    pub steps: u64,
}

/// The timescale of [`Curve::InverseSqrt`] without warm-up, as in transformers.
const DEFAULT_TIMESCALE: u64 = 10_000;

impl LearningRate {
    /// The rate of step `step`, counted from 0. After the last step it is constant.
    pub fn at(&self, step: u64) -> f64 {
        let Self { curve, peak, floor, warmup, steps } = *self;
        let warmup = warmup.steps(steps);
        if step < warmup {
            return peak * (step + 1) as f64 / warmup as f64;
        }
        let (done, rest) = (step - warmup, steps.saturating_sub(warmup).max(1));
        let progress = (done as f64 / rest as f64).min(1.0);
        let share = match curve {
            Curve::Constant => return peak,
            Curve::Exponential => return peak * (floor / peak).powf(progress),
            Curve::InverseSqrt => {
                let timescale = if warmup == 0 { DEFAULT_TIMESCALE } else { warmup };
                return (peak / (1.0 + done as f64 / timescale as f64).sqrt()).max(floor);
            }
            Curve::Linear => DecayShape::Linear.at(progress),
            Curve::Cosine => DecayShape::Cosine.at(progress),
            Curve::Polynomial { power } => (1.0 - progress).powf(power),
            Curve::Wsd { decay, shape } => {
                let decay = decay.steps(steps).min(rest);
                let falling = done.saturating_sub(rest - decay).min(decay);
                shape.at(falling as f64 / decay.max(1) as f64)
            }
        };
        floor + (peak - floor) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> [Curve; 8] {
        [
            Curve::Cosine,
            Curve::Linear,
            Curve::Constant,
            Curve::Polynomial { power: 2.0 },
            Curve::InverseSqrt,
            Curve::Wsd {
                decay: DecaySpan::Steps(NonZeroU64::new(3).unwrap()),
                shape: DecayShape::Linear,
            },
            Curve::Wsd {
                decay: DecaySpan::Steps(NonZeroU64::new(3).unwrap()),
                shape: DecayShape::OneMinusSqrt,
            },
            Curve::Wsd {
                decay: DecaySpan::Steps(NonZeroU64::new(3).unwrap()),
                shape: DecayShape::Cosine,
            },
        ]
    }

    fn rate(curve: Curve) -> LearningRate {
        LearningRate { curve, peak: 1.0, floor: 0.1, warmup: Warmup::Steps(4), steps: 10 }
    }

    #[test]
    fn warm_up_ends_at_the_peak_and_the_curve_at_the_floor() {
        for curve in curves() {
            let rate = rate(curve);
            assert_eq!(rate.at(0), 0.25);
            assert_eq!(rate.at(3), 1.0);
            assert_eq!(rate.at(4), 1.0);
            for step in 4..20 {
                assert!(rate.at(step + 1) <= rate.at(step), "{curve:?} rises at {step}");
            }
        }
        for curve in [Curve::Cosine, Curve::Linear] {
            assert!((rate(curve).at(7) - 0.55).abs() < 1e-12);
        }
        let ending = curves()
            .into_iter()
            .filter(|curve| !matches!(curve, Curve::Constant | Curve::InverseSqrt));
        for curve in ending {
            let rate = rate(curve);
            assert!((rate.at(10) - 0.1).abs() < 1e-12, "{curve:?}");
            assert_eq!(rate.at(10), rate.at(1000), "no rise past the end");
        }
        assert_eq!(rate(Curve::Constant).at(1000), 1.0);
    }

    #[test]
    fn the_decay_of_wsd_is_at_most_all_steps() {
        let wsd = |decay: u64| {
            let decay = DecaySpan::Steps(NonZeroU64::new(decay).unwrap());
            rate(Curve::Wsd { decay, shape: DecayShape::Linear })
        };
        assert_eq!(wsd(3).at(7), 1.0);
        assert!((wsd(3).at(8) - 0.7).abs() < 1e-12);
        for step in 0..12 {
            assert!((wsd(1000).at(step) - rate(Curve::Linear).at(step)).abs() < 1e-12);
        }
    }

    #[test]
    fn inverse_sqrt_stops_at_the_floor() {
        let rate = LearningRate { floor: 0.5, ..rate(Curve::InverseSqrt) };
        assert!((rate.at(4 + 4) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(rate.at(1_000_000), 0.5);
    }

    #[test]
    fn spans_are_steps_or_shares_of_all_steps_rounded_up() {
        let decay = |span: DecaySpan| span.steps(95);
        assert_eq!((decay(DecaySpan::Ratio(0.1)), decay(DecaySpan::Ratio(0.5))), (10, 48));
        assert_eq!(decay(DecaySpan::Steps(NonZeroU64::new(7).unwrap())), 7);
        assert_eq!(Warmup::Ratio(0.03).steps(95), 3);
    }
}
