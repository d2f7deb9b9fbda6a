//! Assigning rows to training or evaluation data.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{DataError, RowError};
use crate::source::at_path;

/// How rows are split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitBy {
    /// At random.
    Random {
        /// The random seed.
        seed: u64,
    },
    /// The latest rows are held out; rows with the same time stay together.
    Time {
        /// Field with a date, a date and time, or seconds (or milliseconds) since 1970.
        field: String,
    },
    /// Rows with the same value of a field stay together.
    Group {
        /// The field, such as an author or a document.
        field: String,
        /// The random seed.
        seed: u64,
    },
}

/// The number of rows that are held out.
#[derive(Debug, Clone, PartialEq)]
pub enum EvalSize {
    /// A share of the rows, 0 < share < 1.
    Share(f64),
    /// A number of rows.
    Rows(u64),
    /// The rows from this time on; only with [`SplitBy::Time`].
    From(String),
}

/// Data collected from the rows in the first pass.
pub(super) enum Keys {
    Random { seed: u64 },
    Times { field: String, times: Vec<i64> },
    Groups { field: String, seed: u64, rows: HashMap<u64, u64> },
}

/// Decides for each row whether it is held out.
pub(super) enum Assign {
    /// `left` of the next `rows` rows are held out (Knuth, "The Art of Computer Programming" vol. 2, 3.4.2, algorithm S).
    Random {
        rng: Box<ChaCha8Rng>,
        left: u64,
        rows: u64,
    },
    Times {
        field: String,
        from: i64,
    },
    Groups {
        field: String,
        seed: u64,
        held: std::collections::HashSet<u64>,
    },
}

impl Keys {
    pub(super) fn new(by: &SplitBy) -> Self {
        match by.clone() {
            SplitBy::Random { seed } => Self::Random { seed },
            SplitBy::Time { field } => Self::Times { field, times: Vec::new() },
            SplitBy::Group { field, seed } => Self::Groups { field, seed, rows: HashMap::new() },
        }
    }

    pub(super) fn take(&mut self, row: &Value) -> Result<(), RowError> {
        match self {
            Self::Random { .. } => {}
            Self::Times { field, times } => times.push(time_of(row, field)?),
            Self::Groups { field, seed, rows } => {
                *rows.entry(group_of(row, field, *seed)?).or_default() += 1;
            }
        }
        Ok(())
    }

    /// `rows`: number of rows.
    pub(super) fn assign(self, size: &EvalSize, rows: u64) -> Result<Assign, DataError> {
        let wrong = |expected: String, found: String| DataError::Setting {
            key: "eval".into(),
            expected,
            found,
            nearest: None,
        };
        let wanted = match size {
            EvalSize::Share(share) => (share * rows as f64).round() as u64,
            EvalSize::Rows(count) => *count,
            EvalSize::From(text) => {
                let Self::Times { field, .. } = self else {
                    return Err(wrong("a number or share of rows".into(), text.clone()));
                };
                let from = time(text)
                    .ok_or_else(|| wrong("a date such as 2024-01-31".into(), text.clone()))?;
                return Ok(Assign::Times { field, from });
            }
        };
        if wanted == 0 || wanted >= rows {
            return Err(wrong(
                format!("at least one row and fewer than all {rows}"),
                wanted.to_string(),
            ));
        }
        Ok(match self {
            Self::Random { seed } => Assign::Random {
                rng: Box::new(ChaCha8Rng::seed_from_u64(seed)),
                left: wanted,
                rows,
            },
            Self::Times { field, mut times } => {
                let at = (rows - wanted) as usize;
                let (_, from, _) = times.select_nth_unstable(at);
                Assign::Times { field, from: *from }
            }
            Self::Groups { field, seed, rows } => {
                if rows.len() < 2 {
                    return Err(wrong(
                        format!("`{field}` to have more than one value"),
                        format!("{} in all rows", rows.len()),
                    ));
                }
                // The hashes of groups depend on the seed, so their order is random. A group that doesn't fit is skipped.
                let mut groups: Vec<(u64, u64)> = rows.into_iter().collect();
                groups.sort_unstable();
                let mut held = std::collections::HashSet::new();
                let mut total = 0;
                for (group, count) in &groups {
                    if total + count <= wanted {
                        held.insert(*group);
                        total += count;
                    }
                }
                if held.is_empty() {
                    let smallest = groups.iter().min_by_key(|(group, count)| (*count, *group));
                    held.extend(smallest.map(|(group, _)| *group));
                }
                Assign::Groups { field, seed, held }
            }
        })
    }
}

impl Assign {
    /// Whether the next row is in the evaluation set.
    pub(super) fn is_held(&mut self, row: &Value) -> Result<bool, RowError> {
        Ok(match self {
            Self::Random { rng, left, rows } => {
                let held = below(rng, *rows) < *left;
                *rows = rows.saturating_sub(1);
                *left -= u64::from(held);
                held
            }
            Self::Times { field, from } => time_of(row, field)? >= *from,
            Self::Groups { field, seed, held } => held.contains(&group_of(row, field, *seed)?),
        })
    }
}

/// A uniform random number below `bound` (Lemire, "Fast random integer generation in an interval",
/// 2019).
fn below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    let bound = bound.max(1);
    loop {
        let wide = u128::from(rng.next_u64()) * u128::from(bound);
        if wide as u64 >= bound.wrapping_neg() % bound {
            return (wide >> 64) as u64;
        }
    }
}

fn group_of(row: &Value, field: &str, seed: u64) -> Result<u64, RowError> {
    let hash = |text: &str| xxh3_64_with_seed(text.as_bytes(), seed);
    match at_path(row, field) {
        Some(Value::String(text)) => Ok(hash(text)),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(hash(&value.to_string())),
        other => Err(wrong_field(field, "a string or a number to group by", other)),
    }
}

/// Microseconds since 1970.
fn time_of(row: &Value, field: &str) -> Result<i64, RowError> {
    let found = at_path(row, field);
    let time = match found {
        Some(Value::String(text)) => time(text),
        Some(Value::Number(number)) => number.as_f64().and_then(of_number),
        _ => None,
    };
    time.ok_or_else(|| {
        wrong_field(
            field,
            "a date such as 2024-01-31, a date and time, or seconds since 1970",
            found,
        )
    })
}

/// A date, a date and time (UTC if without time zone), or a number. Microseconds since 1970.
fn time(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_microsecond());
    }
    let local = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from));
    match local {
        Ok(local) => Some(local.to_zoned(TimeZone::UTC).ok()?.timestamp().as_microsecond()),
        Err(_) => of_number(text.parse().ok()?),
    }
}

/// Microseconds from seconds, or from milliseconds if the number of seconds would be after the year 5000.
fn of_number(number: f64) -> Option<i64> {
    let seconds = if number.abs() > 1e11 { number / 1e3 } else { number };
    let micros = (seconds * 1e6).round();
    (micros.is_finite() && micros.abs() < 9e18).then_some(micros as i64)
}

fn wrong_field(field: &str, expected: &'static str, found: Option<&Value>) -> RowError {
    RowError::Field {
        key: field.to_owned(),
        expected,
        found: match found {
            None => "nothing: the key is missing".into(),
            Some(value) => value.to_string().chars().take(40).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_all_formats() {
        let day = 1_706_659_200_000_000;
        for text in [
            "2024-01-31",
            "2024-01-31T00:00:00Z",
            "2024-01-31 00:00",
            "1706659200",
            "1706659200000",
        ] {
            assert_eq!(time(text), Some(day), "{text}");
        }
        assert_eq!(time("2024-01-31T01:00:00+01:00"), Some(day));
        for text in ["soon", "", "NaN", "1e300"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0; 5];
        for _ in 0..5000 {
            counts[below(&mut rng, 5) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }
}
