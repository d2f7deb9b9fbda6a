//! Guards against losses and gradients that are not finite, and against loss spikes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::settings::Reader;
use crate::trainer::error::TrainError;

/// Handling of losses and gradients that are not finite, and of loss spikes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GuardConfig {
    /// Handling of a loss or gradient that is not finite.
    pub on_nonfinite: OnNonFinite,
    /// Maximum skipped steps in a row; one more stops the run.
    pub max_skipped: u64,
    /// Handling of a loss far above the ones before.
    pub on_spike: OnSpike,
    /// Standard deviations above the mean from which a loss is a spike.
    pub spike_threshold: f64,
}

/// Handling of a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonFinite {
    /// Stop the run and name the first such tensor.
    #[default]
    Stop,
    /// Leave the weights unchanged and continue with the next rows.
    Skip,
}

/// Handling of a loss far above the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSpike {
    /// Do not detect spikes.
    Off,
    /// Print the examples of the step.
    #[default]
    Warn,
    /// Print them and skip the step: the weights stay unchanged.
    Skip,
    /// Print them and stop the run.
    Stop,
}

impl GuardConfig {
    /// Reads its settings.
    pub(crate) fn read(s: &mut Reader) -> Self {
        let Self { on_nonfinite, max_skipped, on_spike, spike_threshold } = Self::default();
        Self {
            on_nonfinite: s
                .choice("on_nonfinite", "Handling of a loss or gradient that is not finite")
                .changes_nothing()
                .or(on_nonfinite),
            max_skipped: s
                .whole(
                    "max_skipped",
                    "Maximum number of skipped steps in a row; one more stops the run",
                )
                .changes_nothing()
                .or(max_skipped),
            on_spike: s
                .choice("on_spike", "Handling of a loss spike, a loss far above the previous ones")
                .changes_nothing()
                .or(on_spike),
            spike_threshold: s
                .number(
                    "spike_threshold",
                    "Standard deviations above the mean from which a loss is a spike",
                )
                .above(0.0)
                .changes_nothing()
                .or(spike_threshold),
        }
    }
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            on_nonfinite: OnNonFinite::default(),
            max_skipped: 3,
            on_spike: OnSpike::default(),
            spike_threshold: 6.0,
        }
    }
}

/// Statistics of the losses so far. Part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Guard {
    /// Losses so far.
    seen: u64,
    /// Running mean of the losses.
    mean: f64,
    /// Running variance of the losses.
    variance: f64,
    /// Skipped steps in a row.
    skipped: u64,
}

/// A loss far above the ones before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossSpike {
    /// The loss.
    pub loss: f64,
    /// Running mean of the losses before.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

/// Weight of a new loss in the running mean, which spans about fifty steps.
const SHARE: f64 = 0.02;
/// Number of losses before one can be a spike.
const NEEDED: u64 = 20;

impl Guard {
    /// Records a loss. Returns it if it is far above the ones before; then it is recorded as a loss at the threshold, so that
    /// neither an outlier hides the next one nor a permanent rise is reported forever.
    pub(crate) fn check_loss(&mut self, loss: f64, config: &GuardConfig) -> Option<LossSpike> {
        if config.on_spike == OnSpike::Off || !loss.is_finite() {
            return None;
        }
        let deviation = self.variance.sqrt();
        let bound = self.mean + config.spike_threshold * deviation;
        let is_unusual = self.seen >= NEEDED && loss > bound;
        let unusual = is_unusual.then_some(LossSpike { loss, mean: self.mean, deviation });
        let loss = if is_unusual { bound } else { loss };
        // The first losses have equal weights, so that the very first does not dominate the mean.
        let share = SHARE.max(1.0 / (self.seen + 1) as f64);
        let distance = loss - self.mean;
        self.mean += share * distance;
        self.variance = (1.0 - share) * (self.variance + share * distance * distance);
        self.seen += 1;
        unusual
    }

    /// Records a step that was not skipped.
    pub(crate) fn step_made(&mut self) {
        self.skipped = 0;
    }

    /// Records a step that was skipped because of `why`.
    ///
    /// # Errors
    /// [`TrainError::TooManySkipped`], after too many in a row.
    pub(crate) fn step_skipped(
        &mut self,
        why: TrainError,
        config: &GuardConfig,
    ) -> Result<(), TrainError> {
        self.skipped += 1;
        if self.skipped <= config.max_skipped {
            return Ok(());
        }
        Err(TrainError::TooManySkipped { limit: config.max_skipped, why: Box::new(why) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(step: u64) -> f64 {
        2.0 + 0.1 * (step as f64).sin()
    }

    #[test]
    fn a_spike_differs_from_noise_and_from_a_slow_rise() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        for step in 0..100 {
            assert_eq!(guard.check_loss(wave(step), &config), None, "{step}");
        }
        let spike = guard.check_loss(4.0, &config).unwrap();
        assert!((spike.mean - 2.0).abs() < 0.05 && (spike.deviation - 0.07).abs() < 0.02);
        assert_eq!(guard.check_loss(wave(3), &config), None);
        // The first spike hardly raised the threshold.
        assert!(guard.check_loss(4.0, &config).is_some());
        let mut guard = Guard::default();
        for step in 0..400 {
            assert_eq!(guard.check_loss(wave(step) + 0.002 * step as f64, &config), None, "{step}");
        }
    }

    #[test]
    fn a_permanent_rise_is_reported_for_a_while_only() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        (0..100).for_each(|step| assert!(guard.check_loss(wave(step), &config).is_none()));
        let reports =
            (0..300).filter(|step| guard.check_loss(wave(*step) + 3.0, &config).is_some());
        let reports = reports.count();
        assert!((1..100).contains(&reports), "{reports}");
    }

    #[test]
    fn early_losses_and_nan_are_no_spikes() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        for step in 0..19 {
            assert_eq!(guard.check_loss(wave(step) * 10f64.powi((step % 3) as i32), &config), None);
        }
        let before = guard;
        assert_eq!(guard.check_loss(f64::NAN, &config), None);
        assert_eq!(guard, before);
    }

    #[test]
    fn skipped_steps_are_counted_in_a_row() {
        let config = GuardConfig { max_skipped: 2, ..GuardConfig::default() };
        let why = || TrainError::Gradient { step: 1, tensor: "x".into(), examples: "y".into() };
        let mut guard = Guard::default();
        guard.step_skipped(why(), &config).unwrap();
        guard.step_skipped(why(), &config).unwrap();
        guard.step_made();
        guard.step_skipped(why(), &config).unwrap();
        guard.step_skipped(why(), &config).unwrap();
        let error = guard.step_skipped(why(), &config).unwrap_err().to_string();
        assert!(error.contains("more than 2") && error.contains("gradient of x"), "{error}");
    }
}
