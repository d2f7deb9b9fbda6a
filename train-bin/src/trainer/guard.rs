//! Steps that look wrong: what isn't a number, and losses far above the ones before.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::settings::Reader;

use crate::trainer::check::TrainError;

/// What is done about a step that looks wrong.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GuardConfig {
    /// About a loss or a gradient that isn't finite.
    pub on_nonfinite: OnNonFinite,
    /// Steps in a row that may be passed over; one more stops the run.
    pub max_skipped: u64,
    /// About a loss far above the ones before.
    pub on_spike: OnSpike,
    /// How many standard deviations above their mean is far.
    pub spike_threshold: f64,
}

/// What is done about a loss or a gradient that isn't finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonFinite {
    /// Stop the run and name the first such tensor.
    #[default]
    Stop,
    /// Leave the weights unchanged and continue with the next rows.
    Skip,
}

/// What is done about a loss far above the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSpike {
    /// Don't look for it.
    Off,
    /// Name the step's examples.
    #[default]
    Warn,
    /// Name them, and leave the weights unchanged.
    Skip,
    /// Name them, and stop the run.
    Stop,
}

impl GuardConfig {
    /// Reads its settings.
    pub(crate) fn read(s: &mut Reader) -> Self {
        let Self { on_nonfinite, max_skipped, on_spike, spike_threshold } = Self::default();
        Self {
            on_nonfinite: s
                .choice("on_nonfinite", "What happens at a loss or gradient that is not finite")
                .changes_nothing()
                .or(on_nonfinite),
            max_skipped: s
                .whole("max_skipped", "Steps in a row that may be skipped; one more stops the run")
                .changes_nothing()
                .or(max_skipped),
            on_spike: s
                .choice("on_spike", "What happens at a loss far above the earlier ones")
                .changes_nothing()
                .or(on_spike),
            spike_threshold: s
                .number(
                    "spike_threshold",
                    "How many standard deviations above the mean count as far",
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

/// What the guards have seen. It is part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Guard {
    /// Steps whose losses are known.
    seen: u64,
    /// Running mean of the losses.
    mean: f64,
    /// Running mean of their squared distances from it.
    variance: f64,
    /// Steps in a row that were passed over.
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

/// Share of a running mean that a new loss has: it looks back over some fifty steps.
const SHARE: f64 = 0.02;
/// Losses to be seen before one of them can be unusual.
const NEEDED: u64 = 20;

impl Guard {
    /// Whether a loss is far above the ones before; then it counts among them as one that is just within bounds, so
    /// that neither one outlier hides the next nor a new level is reported for ever.
    pub(crate) fn look(&mut self, loss: f64, config: &GuardConfig) -> Option<LossSpike> {
        if config.on_spike == OnSpike::Off || !loss.is_finite() {
            return None;
        }
        let deviation = self.variance.sqrt();
        let bound = self.mean + config.spike_threshold * deviation;
        let is_unusual = self.seen >= NEEDED && loss > bound;
        let unusual = is_unusual.then_some(LossSpike { loss, mean: self.mean, deviation });
        let loss = if is_unusual { bound } else { loss };
        // The first losses weigh the same, so that the first of all isn't half the mean for long.
        let share = SHARE.max(1.0 / (self.seen + 1) as f64);
        let distance = loss - self.mean;
        self.mean += share * distance;
        self.variance = (1.0 - share) * (self.variance + share * distance * distance);
        self.seen += 1;
        unusual
    }

    /// Takes note of a step that was made.
    pub(crate) fn made(&mut self) {
        self.skipped = 0;
    }

    /// Takes note of a step that was passed over because of `why`.
    ///
    /// # Errors
    /// `why`, if there were too many of them in a row.
    pub(crate) fn skip(&mut self, why: TrainError, config: &GuardConfig) -> Result<(), TrainError> {
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
    fn a_spike_is_told_from_noise_and_from_a_slow_rise() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        for step in 0..100 {
            assert_eq!(guard.look(wave(step), &config), None, "{step}");
        }
        let spike = guard.look(4.0, &config).unwrap();
        assert!((spike.mean - 2.0).abs() < 0.05 && (spike.deviation - 0.07).abs() < 0.02);
        assert_eq!(guard.look(wave(3), &config), None);
        // Hardly widened by the one before.
        assert!(guard.look(4.0, &config).is_some());
        let mut guard = Guard::default();
        for step in 0..400 {
            assert_eq!(guard.look(wave(step) + 0.002 * step as f64, &config), None, "{step}");
        }
    }

    #[test]
    fn a_new_level_is_reported_for_a_while_and_then_taken_as_it_is() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        (0..100).for_each(|step| assert!(guard.look(wave(step), &config).is_none()));
        let reports = (0..300).filter(|step| guard.look(wave(*step) + 3.0, &config).is_some());
        let reports = reports.count();
        assert!((1..100).contains(&reports), "{reports}");
    }

    #[test]
    fn early_losses_and_those_that_are_no_numbers_are_no_spikes() {
        let config = GuardConfig::default();
        let mut guard = Guard::default();
        for step in 0..19 {
            assert_eq!(guard.look(wave(step) * 10f64.powi((step % 3) as i32), &config), None);
        }
        let before = guard;
        assert_eq!(guard.look(f64::NAN, &config), None);
        assert_eq!(guard, before);
    }

    #[test]
    fn skipped_steps_are_counted_in_a_row() {
        let config = GuardConfig { max_skipped: 2, ..GuardConfig::default() };
        let why = || TrainError::Gradient { step: 1, tensor: "x".into(), examples: "y".into() };
        let mut guard = Guard::default();
        guard.skip(why(), &config).unwrap();
        guard.skip(why(), &config).unwrap();
        guard.made();
        guard.skip(why(), &config).unwrap();
        guard.skip(why(), &config).unwrap();
        let error = guard.skip(why(), &config).unwrap_err().to_string();
        assert!(error.contains("more than 2") && error.contains("gradient of x"), "{error}");
    }
}
