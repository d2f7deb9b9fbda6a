//! The types that a setting's value may have.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use emberlm_lora::Targets;
use toml::Value;

use super::paths::absolute;
use super::setting::{Range, SettingKind};

/// Why a value isn't taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It has another type.
    Type,
    /// It has the type, and isn't allowed. What is expected instead, if the kind doesn't say it all.
    Value(Option<String>),
}

const OUT_OF_RANGE: Refusal = Refusal::Value(None);

/// A type that a setting's value may have.
pub trait SettingType: Sized + Clone {
    /// What it is called and how it is checked.
    fn kind() -> SettingKind;

    /// The value. Relative paths begin at `folder`.
    ///
    /// # Errors
    /// [`Refusal`].
    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal>;

    /// The value as TOML text, for defaults in messages and documents.
    fn text(&self) -> String;
}

/// One of a few names.
pub trait Choice: ValueEnum + 'static {
    /// The name in files, on the command line and in messages.
    fn choice_name(&self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Every name with its meaning.
    fn choices() -> Vec<(String, String)> {
        let possible = Self::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        possible
            .map(|value| {
                let help = value.get_help().map(ToString::to_string).unwrap_or_default();
                (value.get_name().to_owned(), help)
            })
            .collect()
    }

    /// The value of a name.
    fn from_choice_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }
}

impl<T: ValueEnum + 'static> Choice for T {}

impl SettingType for f64 {
    fn kind() -> SettingKind {
        SettingKind::Number(Range::default())
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        match value {
            Value::Float(number) => Ok(*number),
            Value::Integer(number) => Ok(*number as f64),
            _ => Err(Refusal::Type),
        }
    }

    fn text(&self) -> String {
        let is_small = *self != 0.0 && self.abs() < 1e-3;
        if is_small { format!("{self:e}") } else { Value::Float(*self).to_string() }
    }
}

/// Whole numbers of several widths.
fn whole<T: TryFrom<i64>>(value: &Value) -> Result<T, Refusal> {
    let Value::Integer(number) = value else { return Err(Refusal::Type) };
    T::try_from(*number).map_err(|_| OUT_OF_RANGE)
}

impl SettingType for u64 {
    fn kind() -> SettingKind {
        SettingKind::Whole(Range::at_least(0.0))
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        whole(value)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl SettingType for usize {
    fn kind() -> SettingKind {
        SettingKind::Whole(Range::at_least(0.0))
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        whole(value)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl SettingType for NonZeroU64 {
    fn kind() -> SettingKind {
        SettingKind::Whole(Range::at_least(1.0))
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        Self::new(whole(value)?).ok_or(OUT_OF_RANGE)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl SettingType for NonZeroUsize {
    fn kind() -> SettingKind {
        SettingKind::Whole(Range::at_least(1.0))
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        Self::new(whole(value)?).ok_or(OUT_OF_RANGE)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Two numbers.
pub type Pair = [f64; 2];

impl SettingType for Pair {
    fn kind() -> SettingKind {
        SettingKind::Pair(Range::default())
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        let Value::Array(values) = value else { return Err(Refusal::Type) };
        let numbers: Result<Vec<f64>, Refusal> =
            values.iter().map(|value| f64::from_toml(value, folder)).collect();
        numbers?.try_into().map_err(|_| Refusal::Type)
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for bool {
    fn kind() -> SettingKind {
        SettingKind::Bool
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        value.as_bool().ok_or(Refusal::Type)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl SettingType for String {
    fn kind() -> SettingKind {
        SettingKind::Text
    }

    fn from_toml(value: &Value, _: &Path) -> Result<Self, Refusal> {
        value.as_str().map(str::to_owned).ok_or(Refusal::Type)
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for PathBuf {
    fn kind() -> SettingKind {
        SettingKind::Path
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        match value.as_str().ok_or(Refusal::Type)? {
            "" => Err(Refusal::Value(Some("a path".to_owned()))),
            path => Ok(absolute(&folder.join(path))),
        }
    }

    fn text(&self) -> String {
        format!("{:?}", super::paths::shown(self).display().to_string())
    }
}

impl SettingType for Vec<PathBuf> {
    fn kind() -> SettingKind {
        SettingKind::Paths
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        match value {
            Value::Array(paths) => {
                paths.iter().map(|path| PathBuf::from_toml(path, folder)).collect()
            }
            one => Ok(vec![PathBuf::from_toml(one, folder)?]),
        }
    }

    fn text(&self) -> String {
        let paths: Vec<String> = self.iter().map(SettingType::text).collect();
        format!("[{}]", paths.join(", "))
    }
}

impl SettingType for Vec<String> {
    fn kind() -> SettingKind {
        SettingKind::Names
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        let Value::Array(names) = value else { return Err(Refusal::Type) };
        names.iter().map(|name| String::from_toml(name, folder)).collect()
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for BTreeMap<String, String> {
    fn kind() -> SettingKind {
        SettingKind::Map
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        let Value::Table(names) = value else { return Err(Refusal::Type) };
        let named = |(key, name): (&String, &Value)| {
            String::from_toml(name, folder).map(|name| (key.clone(), name))
        };
        names.iter().map(named).collect()
    }

    fn text(&self) -> String {
        "{}".to_owned()
    }
}

impl SettingType for Targets {
    fn kind() -> SettingKind {
        SettingKind::Targets
    }

    fn from_toml(value: &Value, folder: &Path) -> Result<Self, Refusal> {
        const NAMES: &str = "\"all-linear\", a regular expression or a list of names, at least one";
        let refused = |more: &str| Refusal::Value(Some(format!("{NAMES}{more}")));
        match value {
            Value::String(text) if text == "all-linear" => Ok(Self::AllLinear),
            Value::String(text) if text.is_empty() => Err(refused("")),
            Value::String(text) => match fancy_regex::Regex::new(text) {
                Ok(_) => Ok(Self::Regex(text.clone())),
                Err(error) => {
                    let reason = error.to_string();
                    let reason = reason.lines().last().unwrap_or_default();
                    let reason = reason.trim_start_matches("error: ");
                    Err(refused(&format!(
                        " (not a regular expression: {reason}; to name modules, write a list: [\"q_proj\", \"v_proj\"])"
                    )))
                }
            },
            names => {
                let names = Vec::<String>::from_toml(names, folder)?;
                if names.is_empty() || names.iter().any(String::is_empty) {
                    return Err(refused(""));
                }
                Ok(Self::Names(names))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::AllLinear => "\"all-linear\"".to_owned(),
            Self::Regex(pattern) => format!("{pattern:?}"),
            Self::Names(names) => format!("{names:?}"),
        }
    }
}
