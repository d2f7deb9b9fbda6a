//! The learning rate as a function of the step.

use std::f64::consts::PI;

use crate::config::Schedule;

/// Warm-up, then a curve from `peak` to `floor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// The shape after warm-up.
    pub schedule: Schedule,
    /// Rate at the end of warm-up.
    pub peak: f64,
    /// Rate that cosine and linear end at.
    pub floor: f64,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
}

impl LearningRate {
    /// The rate of step `step`, counted from 0. Past the end it stays where it ended.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let rest = self.steps.saturating_sub(self.warmup).max(1);
        let progress = ((step - self.warmup) as f64 / rest as f64).min(1.0);
        match self.schedule {
            Schedule::Constant => self.peak,
            Schedule::Exponential => self.peak * (self.floor / self.peak).powf(progress),
            Schedule::Linear => self.floor + (self.peak - self.floor) * (1.0 - progress),
            Schedule::Cosine => {
                self.floor + (self.peak - self.floor) / 2.0 * (1.0 + (PI * progress).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_ends_at_the_peak_and_the_curve_at_the_floor() {
        let rate =
            |schedule| LearningRate { schedule, peak: 1.0, floor: 0.1, warmup: 4, steps: 10 };
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::Constant] {
            let rate = rate(schedule);
            assert_eq!(rate.at(0), 0.25);
            assert_eq!(rate.at(3), 1.0);
            assert_eq!(rate.at(4), 1.0);
        }
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let rate = rate(schedule);
            assert!((rate.at(7) - 0.55).abs() < 1e-12);
            assert!((rate.at(10) - 0.1).abs() < 1e-12);
            assert_eq!(rate.at(10), rate.at(1000), "no rise past the end");
        }
        assert_eq!(rate(Schedule::Constant).at(1000), 1.0);
    }
}
