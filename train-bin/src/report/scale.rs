//! Axes: positions of values, ticks at round numbers, and formatting of numbers.

use indicatif::HumanFloatCount;

/// Approximate number of ticks of an axis.
const TICKS: f64 = 5.0;

/// Margin of an axis beyond its values, relative to their range.
const MARGIN: f64 = 0.04;

/// Ratio of maximum to minimum above which an axis of positive values is logarithmic.
const LOG_FROM: f64 = 100.0;

/// The spacing of values along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Linear.
    Linear,
    /// Logarithmic; values must be positive.
    Log,
}

/// An axis from `low` to `high`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    spacing: Spacing,
    /// Values with a tick, in ascending order.
    pub(crate) ticks: Vec<f64>,
}

impl Scale {
    /// An axis without margins, as for steps.
    pub(crate) fn exact(low: f64, high: f64, spacing: Spacing) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let ticks = match spacing {
            Spacing::Linear => linear_ticks(low, high),
            Spacing::Log => log_ticks(low, high),
        };
        let ticks = ticks.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
        Self { low, high, spacing, ticks }
    }

    /// An axis with margins around its values. It starts at 0 if that is near, and is logarithmic if values are far apart.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        Self::fitted(values, true)
    }

    /// As [`of`](Self::of), but never logarithmic.
    pub(crate) fn linear(values: impl Iterator<Item = f64>) -> Self {
        Self::fitted(values, false)
    }

    fn fitted(values: impl Iterator<Item = f64>, may_be_log: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if may_be_log && low > 0.0 && high / low > LOG_FROM {
            let decade = |value: f64| 10f64.powi(value as i32);
            let (low, high) = (decade(low.log10().floor()), decade(high.log10().ceil()));
            return Self { low, high, spacing: Spacing::Log, ticks: log_ticks(low, high) };
        }
        if low == high {
            let margin = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - margin, high + margin);
        } else {
            let margin = MARGIN * (high - low);
            let is_near_0 = (0.0..0.25 * high).contains(&low);
            (low, high) = (if is_near_0 { 0.0 } else { low - margin }, high + margin);
        }
        Self::exact(low, high, Spacing::Linear)
    }

    /// The position of a value: 0 at the low end, 1 at the high end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let of = |value: f64| match self.spacing {
            Spacing::Linear => value,
            Spacing::Log => value.max(f64::MIN_POSITIVE).ln(),
        };
        ((of(value) - of(self.low)) / (of(self.high) - of(self.low))).clamp(0.0, 1.0)
    }

    /// Whether it is logarithmic.
    pub(crate) fn is_log(&self) -> bool {
        self.spacing == Spacing::Log
    }

    /// Labels of the ticks.
    pub(crate) fn labels(&self) -> Vec<String> {
        if self.is_log() {
            return self.ticks.iter().map(|tick| number(*tick)).collect();
        }
        let step = self.ticks.windows(2).map(|pair| pair[1] - pair[0]).next().unwrap_or(1.0);
        let highest = self.ticks.iter().fold(0f64, |max, tick| max.max(tick.abs()));
        self.ticks.iter().map(|tick| tick_label(*tick, step, highest)).collect()
    }
}

/// About [`TICKS`] round numbers around `low` and `high`.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let step = round_step((high - low) / TICKS);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    (0..=(last - first) as usize).map(|n| (first + n as f64) * step).collect()
}

/// The nearest of 1, 2, 5 times a power of ten, by ratio.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let ratio = |of: &f64| (of * power / step).ln().abs();
    let nearest = [1.0, 2.0, 5.0, 10.0].into_iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    nearest.unwrap_or(1.0) * power
}

/// Powers of ten: every n-th if there are many; with 2 and 5 between them if there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let between: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = ((last - first) / 7 + 1) as usize;
    let ticks = (first..=last)
        .step_by(every)
        .flat_map(|power| between.iter().map(move |of| of * 10f64.powi(power)));
    ticks.filter(|tick| *tick >= low * (1.0 - 1e-9) && *tick <= high * (1.0 + 1e-9)).collect()
}

fn tick_label(value: f64, step: f64, highest: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (unit, suffix) = if highest >= 1e6 {
        (1e6, "M".to_owned())
    } else if highest >= 1e4 {
        (1e3, "k".to_owned())
    } else if highest < 1e-2 {
        let power = highest.log10().floor() as i32;
        (10f64.powi(power), format!("e{power}"))
    } else {
        (1.0, String::new())
    };
    let decimals = (-(step / unit * (1.0 + 1e-9)).log10().floor()).max(0.0) as usize;
    format!("{:.decimals$}{suffix}", value / unit)
}

/// A value in four digits: `0.01234`, `12.34`, `12,345`, `1.2e-4`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    if !(1e-3..1e9).contains(&size) {
        return scientific(value, 3);
    }
    if size >= 1e4 {
        return format!("{:.0}", HumanFloatCount(value.round()));
    }
    let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

/// A learning rate as in configurations: `2e-4`.
pub(crate) fn rate(value: f64) -> String {
    if value < 0.1 { scientific(value, 2) } else { number(value) }
}

fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{power}", without_zeros(digits))
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        Scale::of(values.iter().copied()).labels()
    }

    #[test]
    fn ticks_are_round_and_values_are_inside_the_axis() {
        for (low, high) in [(0.013, 6.77), (2.31, 2.35), (-3.0, 8.0), (99.0, 101.0), (1e-5, 9e-4)] {
            let scale = Scale::of([low, high].into_iter());
            assert!((3..=8).contains(&scale.ticks.len()), "{low} to {high}: {:?}", scale.ticks);
            assert!(scale.ticks.iter().all(|tick| (scale.low..=scale.high).contains(tick)));
            assert!(scale.low <= low && scale.high >= high);
            assert!((0.0..=1.0).contains(&scale.at(low)) && scale.at(low) < scale.at(high));
        }
        assert_eq!(labels(&[0.1, 6.8]), ["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(labels(&[2.31, 2.348]), ["2.31", "2.32", "2.33", "2.34"]);
        assert_eq!(labels(&[0.0, 2e-4]), ["0", "0.5e-4", "1.0e-4", "1.5e-4", "2.0e-4"]);
        assert_eq!(labels(&[-20.0, 40_000.0]), ["0", "10k", "20k", "30k", "40k"]);
    }

    #[test]
    fn values_far_apart_have_a_logarithmic_axis() {
        let scale = Scale::of([0.02, 30.0].into_iter());
        assert!(scale.is_log());
        assert_eq!(scale.labels(), ["0.01", "0.1", "1", "10", "100"]);
        assert!((scale.at(1.0) - 0.5).abs() < 1e-12);
        assert!(!Scale::linear([0.02, 30.0].into_iter()).is_log());
        assert!(!Scale::of([0.0, 30.0].into_iter()).is_log(), "0 has no logarithm");
    }

    #[test]
    fn no_value_and_one_value_have_an_axis() {
        for values in [&[][..], &[f64::NAN], &[3.0], &[0.0], &[-2.0, -2.0]] {
            let scale = Scale::of(values.iter().copied());
            assert!(scale.high > scale.low && scale.ticks.len() > 1, "{values:?}: {scale:?}");
        }
        let one = Scale::exact(7.0, 7.0, Spacing::Linear);
        assert_eq!(one.at(7.0), 0.0);
        assert!(!one.ticks.is_empty());
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (2.0, "2"),
            (0.016_12, "0.01612"),
            (874.98, "875"),
            (12.345, "12.35"),
            (2e-4, "2e-4"),
            (1.25e-5, "1.25e-5"),
            (1_350_784.0, "1,350,784"),
            (-0.5, "-0.5"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!([2e-4, 0.0123, 0.5].map(rate), ["2e-4", "1.23e-2", "0.5"]);
    }
}
