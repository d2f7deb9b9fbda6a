//! Single values: there or not, of the right type, within their range, and the fault to report where they aren't.

use std::fmt::Display;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use toml::{Table, Value};

use super::Check;
use crate::config::choice::Choice;
use crate::config::error::{Fault, FaultKind};
use crate::config::keys::{SECTIONS, keys_of, nearest_key, nearest_section};
use crate::config::merge::absolute;
use crate::config::raw::{Expected, Field, OrOff, Paths};

impl Check {
    pub(super) fn unknown_sections(&mut self, unknown: &Table) {
        for (name, value) in unknown {
            let kind = if value.is_table() {
                FaultKind::UnknownSection {
                    section: name.clone(),
                    nearest: nearest_section(name).map(|section| format!("[{section}]")),
                    known: SECTIONS.iter().map(|section| format!("[{section}]")).collect(),
                }
            } else {
                let known = SECTIONS.iter().map(|section| format!("{section}.…")).collect();
                FaultKind::UnknownKey { key: name.clone(), nearest: nearest_key(name), known }
            };
            self.push(name, kind);
        }
    }

    pub(super) fn unknown_keys(&mut self, section: &str, unknown: &Table) {
        for name in unknown.keys() {
            let key = format!("{section}.{name}");
            let kind = FaultKind::UnknownKey {
                key: key.clone(),
                nearest: nearest_key(&key),
                known: keys_of(section),
            };
            self.push(&key, kind);
        }
    }

    /// The value, if it is there and of the right type.
    pub(super) fn given<T: Expected>(&mut self, key: &str, field: Field<T>) -> Option<T> {
        match field {
            Field::Absent => None,
            Field::Given(value) => Some(value),
            Field::Wrong(found) => {
                let kind = FaultKind::WrongType {
                    key: key.to_owned(),
                    expected: T::EXPECTED,
                    found: described(&found),
                    remedy: type_remedy(T::EXPECTED, &found),
                };
                self.push(key, kind);
                None
            }
        }
    }

    pub(super) fn choice<T: Choice>(&mut self, key: &str, field: Field<String>, default: T) -> T {
        let Some(name) = self.given(key, field) else {
            return default;
        };
        T::from_name(&name).unwrap_or_else(|error| {
            self.push(key, FaultKind::UnknownChoice { key: key.to_owned(), error });
            default
        })
    }

    pub(super) fn path(&mut self, key: &str, field: Field<PathBuf>) -> Option<PathBuf> {
        let path = self.given(key, field)?;
        if path.as_os_str().is_empty() {
            self.empty_path(key);
            return None;
        }
        Some(absolute(&path))
    }

    pub(super) fn paths(&mut self, key: &str, field: Field<Paths>) -> Vec<PathBuf> {
        let paths = match self.given(key, field) {
            None => Vec::new(),
            Some(Paths::One(path)) => vec![path],
            Some(Paths::Many(paths)) => paths,
        };
        if paths.iter().any(|path| path.as_os_str().is_empty()) {
            self.empty_path(key);
        }
        paths.iter().map(|path| absolute(path)).collect()
    }

    fn empty_path(&mut self, key: &str) {
        let remedy = "name a file or folder, or remove the key".to_owned();
        let kind = FaultKind::OutOfRange {
            key: key.to_owned(),
            expected: "a path",
            found: "\"\"".to_owned(),
            remedy,
        };
        self.push(key, kind);
    }

    /// A finite number that `is_allowed`, or the default.
    pub(super) fn number(
        &mut self,
        key: &str,
        field: Field<f64>,
        expected: &'static str,
        default: f64,
        is_allowed: fn(f64) -> bool,
    ) -> f64 {
        match self.given(key, field) {
            None => default,
            Some(number) if number.is_finite() && is_allowed(number) => number,
            Some(number) => {
                self.out_of_range(key, expected, number, default);
                default
            }
        }
    }

    /// A whole number that `convert` takes.
    pub(super) fn whole<T>(
        &mut self,
        key: &str,
        field: Field<i64>,
        expected: &'static str,
        default: impl Display,
        convert: impl Fn(i64) -> Option<T>,
    ) -> Option<T> {
        let number = self.given(key, field)?;
        let converted = convert(number);
        if converted.is_none() {
            self.out_of_range(key, expected, number, default);
        }
        converted
    }

    /// A whole number that `convert` takes; `None` for `false`, which is the default.
    pub(super) fn whole_or_off<T>(
        &mut self,
        key: &str,
        field: Field<OrOff<i64>>,
        convert: fn(i64) -> Option<T>,
    ) -> Option<T>
    where
        OrOff<i64>: Expected,
    {
        let OrOff::On(number) = self.given(key, field)? else {
            return None;
        };
        self.whole(
            key,
            Field::Given(number),
            "a whole number from 1 on, or false for off",
            "false",
            convert,
        )
    }

    /// As [`whole_or_off`](Self::whole_or_off), for what is on unless it is switched off.
    pub(super) fn whole_unless_off<T>(
        &mut self,
        key: &str,
        field: Field<OrOff<i64>>,
        default: Option<T>,
        convert: fn(i64) -> Option<T>,
    ) -> Option<T>
    where
        OrOff<i64>: Expected,
    {
        if field.is_absent() { default } else { self.whole_or_off(key, field, convert) }
    }

    pub(super) fn out_of_range(
        &mut self,
        key: &str,
        expected: &'static str,
        found: impl Display,
        default: impl Display,
    ) {
        let remedy = format!("change it, or remove it for the default, {default}");
        let kind = FaultKind::OutOfRange {
            key: key.to_owned(),
            expected,
            found: found.to_string(),
            remedy,
        };
        self.push(key, kind);
    }

    pub(super) fn contradiction(&mut self, keys: [&str; 2], reason: &str, remedy: &str) {
        let keys = keys.map(|key| (key.to_owned(), self.origins.get(key).cloned()));
        let kind =
            FaultKind::Contradiction { keys, reason: reason.to_owned(), remedy: remedy.to_owned() };
        self.faults.push(Fault { origin: None, kind });
    }

    pub(super) fn push(&mut self, key: &str, kind: FaultKind) {
        self.faults.push(Fault { origin: self.origins.get(key).cloned(), kind });
    }

    /// Where another key stands, in parentheses.
    pub(super) fn beside(&self, key: &str) -> String {
        self.origins.get(key).map(|origin| format!(" ({origin})")).unwrap_or_default()
    }
}

pub(super) fn is_positive(x: f64) -> bool {
    x > 0.0
}

pub(super) fn is_not_negative(x: f64) -> bool {
    x >= 0.0
}

pub(super) fn is_share(x: f64) -> bool {
    (0.0..1.0).contains(&x)
}

pub(super) fn not_negative(n: i64) -> Option<u64> {
    u64::try_from(n).ok()
}

pub(super) fn nonzero_u64(n: i64) -> Option<NonZeroU64> {
    not_negative(n).and_then(NonZeroU64::new)
}

pub(super) fn nonzero_usize(n: i64) -> Option<NonZeroUsize> {
    usize::try_from(n).ok().and_then(NonZeroUsize::new)
}

/// A value and its type, as messages show it.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => format!("the string {value}"),
        Value::Integer(_) => format!("the whole number {value}"),
        Value::Float(_) => format!("the decimal number {value}"),
        Value::Boolean(_) | Value::Datetime(_) => value.to_string(),
        Value::Array(_) => format!("the list {value}"),
        Value::Table(_) => "a section of keys".to_owned(),
    }
}

fn type_remedy(expected: &str, found: &Value) -> &'static str {
    match found {
        Value::String(_) if expected.contains("number") || expected.starts_with("true") => {
            "write it without quotes"
        }
        Value::Float(_) if expected.contains("whole number") => {
            "write it without decimal point and exponent"
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) if expected.contains("string") => {
            "write it in quotes, \"…\", on the command line '\"…\"'"
        }
        _ => "change it, or remove it for the default",
    }
}
