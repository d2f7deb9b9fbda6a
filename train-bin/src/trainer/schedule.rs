//! The learning rate as a function of the step.

use std::f64::consts::PI;

/// How the rate goes on after warm-up. `p` is the share of the steps after warm-up that are done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Curve {
    /// The peak.
    Constant,
    /// `floor + (peak − floor) · (1 − p)`.
    Linear,
    /// `floor + (peak − floor) · (1 + cos πp) / 2`.
    Cosine,
    /// `floor + (peak − floor) · (1 − p)^power`.
    Polynomial {
        /// The power, greater than 0.
        power: f64,
    },
    /// `peak / √(1 + done / timescale)`, at least `floor`: `done` steps after warm-up, whose length is the timescale, or 10 000
    /// without one. It doesn't depend on the number of steps in all.
    InverseSqrt,
    /// From the peak to the floor by equal factors: for sweeps.
    Exponential,
    /// The peak, and from it to the floor over the last steps (warm-up, stable, decay).
    Wsd {
        /// The last steps; no more than are left after warm-up.
        decay: u64,
        /// How the rate falls over them.
        shape: DecayShape,
    },
}

/// How a rate falls from 1 to 0 over a share `p` of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecayShape {
    /// `1 − p`.
    Linear,
    /// `1 − √p` (Hägele et al., 2024, arXiv:2405.18392).
    OneMinusSqrt,
    /// `(1 + cos πp) / 2`.
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
    /// Rate that the curve ends at.
    pub floor: f64,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
}

/// The timescale of [`Curve::InverseSqrt`] without warm-up: transformers'.
const DEFAULT_TIMESCALE: u64 = 10_000;

impl LearningRate {
    /// The rate of step `step`, counted from 0. Past the end it stays where it ended.
    pub fn at(&self, step: u64) -> f64 {
        let Self { curve, peak, floor, warmup, steps } = *self;
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
                let decay = decay.min(rest);
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

    const CURVES: [Curve; 8] = [
        Curve::Cosine,
        Curve::Linear,
        Curve::Constant,
        Curve::Polynomial { power: 2.0 },
        Curve::InverseSqrt,
        Curve::Wsd { decay: 3, shape: DecayShape::Linear },
        Curve::Wsd { decay: 3, shape: DecayShape::OneMinusSqrt },
        Curve::Wsd { decay: 3, shape: DecayShape::Cosine },
    ];

    fn rate(curve: Curve) -> LearningRate {
        LearningRate { curve, peak: 1.0, floor: 0.1, warmup: 4, steps: 10 }
    }

    #[test]
    fn warm_up_ends_at_the_peak_and_the_curve_at_the_floor() {
        for curve in CURVES {
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
        let ending = CURVES
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
    fn the_decay_of_wsd_is_the_last_steps_and_no_more_than_there_are() {
        let wsd = |decay| rate(Curve::Wsd { decay, shape: DecayShape::Linear });
        assert_eq!(wsd(3).at(7), 1.0);
        assert!((wsd(3).at(8) - 0.7).abs() < 1e-12);
        for step in 0..12 {
            assert!((wsd(1000).at(step) - rate(Curve::Linear).at(step)).abs() < 1e-12);
        }
        assert_eq!(wsd(0).at(9), 1.0);
    }

    #[test]
    fn inverse_sqrt_stops_at_the_floor() {
        let rate = LearningRate { floor: 0.5, ..rate(Curve::InverseSqrt) };
        assert!((rate.at(4 + 4) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(rate.at(1_000_000), 0.5);
    }
}
