//! Parsers of values.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::settings::Choice;

/// A choice, or `None` for a word such as `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrWord<T>(pub(crate) Option<T>);

/// One of a few names, or `word`.
pub(super) fn or_word<T: Choice + Send + Sync>(
    word: &'static str,
) -> impl TypedValueParser<Value = OrWord<T>> {
    let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<PossibleValue> = [PossibleValue::new(word)].into_iter().chain(names).collect();
    PossibleValuesParser::new(names).map(|name| OrWord(T::from_choice_name(&name)))
}

/// A number from 0.
pub(super) fn non_negative(text: &str) -> Result<f64, String> {
    number(text, "a number of at least 0", |x| x >= 0.0)
}

/// A number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    number(text, "a number greater than 0", |x| x > 0.0)
}

/// A number above 0, at most 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    number(text, "a number greater than 0 and at most 1", |x| x > 0.0 && x <= 1.0)
}

/// A finite number for which `is_allowed` holds; `expected` says which those are.
pub(super) fn number(
    text: &str,
    expected: &str,
    is_allowed: fn(f64) -> bool,
) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && is_allowed(number) => Ok(number),
        _ => Err(format!("expected {expected}")),
    }
}

/// Bytes, from a number with a unit.
pub(super) fn memory_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 6] = [
        ("gib", (1u64 << 30) as f64),
        ("mib", (1u64 << 20) as f64),
        ("gb", 1e9),
        ("mb", 1e6),
        ("g", (1u64 << 30) as f64),
        ("m", (1u64 << 20) as f64),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let parsed = UNITS.iter().find_map(|(unit, bytes)| {
        let number: f64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some((number * bytes) as u64)
    });
    parsed.ok_or_else(|| "expected a size with its unit, such as 8GiB or 500MiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit() {
        assert_eq!(memory_size("8GiB"), Ok(8 << 30));
        assert_eq!(memory_size("1.5 g"), Ok(3 << 29));
        assert_eq!(memory_size("500MB"), Ok(500_000_000));
        for wrong in ["8", "GiB", "-1GiB", "nanGiB", "8 apples"] {
            assert!(memory_size(wrong).is_err(), "{wrong}");
        }
    }
}
