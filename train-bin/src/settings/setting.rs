//! What is known of a setting, apart from its value.

use std::fmt;

use serde_json::{Value, json};

/// What a changed setting means for a run that is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Every step computes what it would have computed (with other hardware or another order of operations: to rounding).
    None,
    /// The remaining steps compute something else.
    OnSteps,
    /// The weights in the checkpoint no longer fit.
    OnWeights,
}

/// A setting as it was declared.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its key in full: `train.learning_rate`. In a list of tables: `data.source[].path`.
    pub key: String,
    /// What it means, in one or two sentences.
    pub doc: &'static str,
    /// The type of its value.
    pub kind: SettingKind,
    /// Whether `false` turns it off.
    pub or_off: bool,
    /// The default as TOML text or in words; with a condition where it depends on another setting.
    pub defaults: Vec<(Option<String>, String)>,
    /// Names that other trainers have for it.
    pub other_names: &'static [&'static str],
    /// What a change means for a run that is resumed.
    pub effect: Effect,
    /// A flag of the command line, without dashes.
    pub flag: Option<&'static str>,
    /// It has an effect only with one of these: `train.optimizer = "muon"`, `[lora]`.
    pub only_with: Vec<String>,
    /// Keys that can't be given together with it.
    pub not_with: Vec<String>,
    /// A value for examples, as TOML text.
    pub example: Option<&'static str>,
}

impl Setting {
    /// The name within its section.
    pub fn name(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }

    /// Its section.
    pub fn section(&self) -> &str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// What messages say is expected.
    pub fn expected(&self) -> String {
        let kind = self.kind.to_string();
        if self.or_off { format!("{kind}, or false (off)") } else { kind }
    }

    /// The default in words: the commonest one, then those of single conditions.
    pub fn default_text(&self) -> String {
        let count = |value: &str| self.defaults.iter().filter(|(_, other)| other == value).count();
        // Of equally common ones the first.
        let commonest = self.defaults.iter().rev().max_by_key(|(_, value)| count(value));
        let Some((_, commonest)) = commonest else { return String::new() };
        let mut text = commonest.clone();
        for (condition, value) in self.defaults.iter().filter(|(_, value)| value != commonest) {
            let condition = condition.as_deref().unwrap_or_default();
            text += &format!("; {value} with {condition}");
        }
        text
    }

    /// Its JSON Schema.
    pub fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if self.or_off {
            schema = json!({ "anyOf": [schema, { "const": false }] });
        }
        let mut doc = format!("{}.", self.doc.trim_end_matches('.'));
        if !self.only_with.is_empty() {
            doc += &format!(" Only with {}.", self.only_with.join(" or "));
        }
        let default = self.default_text();
        if !default.is_empty() {
            doc += &format!(" Default: {default}.");
        }
        schema["description"] = doc.into();
        schema
    }
}

/// The type of a setting's value.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingKind {
    /// A finite number within a range.
    Number(Range),
    /// A whole number within a range.
    Whole(Range),
    /// Two finite numbers, each within a range.
    Pair(Range),
    /// true or false.
    Bool,
    /// Text.
    Text,
    /// One of a few names, each with its meaning.
    Choice(Vec<(String, String)>),
    /// A path.
    Path,
    /// A path or a list of paths.
    Paths,
    /// A list of names.
    Names,
    /// A section of names.
    Map,
    /// A list of sections.
    Sections,
    /// `"all-linear"`, a regular expression or a list of names.
    Targets,
}

/// Bounds of a number.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Range {
    /// The lower bound, and whether it is allowed itself.
    pub min: Option<(f64, bool)>,
    /// The upper bound, and whether it is allowed itself.
    pub max: Option<(f64, bool)>,
}

impl Range {
    /// From `min` on.
    pub const fn at_least(min: f64) -> Self {
        Self { min: Some((min, true)), max: None }
    }

    /// Whether a number is within.
    pub fn contains(&self, x: f64) -> bool {
        let above = self.min.is_none_or(|(min, included)| x > min || (included && x == min));
        let below = self.max.is_none_or(|(max, included)| x < max || (included && x == max));
        x.is_finite() && above && below
    }

    fn add_to(&self, schema: &mut Value) {
        if let Some((min, included)) = self.min {
            schema[if included { "minimum" } else { "exclusiveMinimum" }] = json!(min);
        }
        if let Some((max, included)) = self.max {
            schema[if included { "maximum" } else { "exclusiveMaximum" }] = json!(max);
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let min = self.min.map(|(min, included)| match included {
            true => format!(" of at least {min}"),
            false => format!(" greater than {min}"),
        });
        let max = self.max.map(|(max, included)| match included {
            true => format!(" at most {max}"),
            false => format!(" less than {max}"),
        });
        match (min, max) {
            (Some(min), Some(max)) => write!(f, "{min} and{max}"),
            (min, max) => f.write_str(&min.or(max).unwrap_or_default()),
        }
    }
}

impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(range) => write!(f, "a number{range}"),
            Self::Whole(range) => write!(f, "a whole number{range}"),
            Self::Pair(range) => write!(f, "a list of two numbers, each{range}"),
            Self::Bool => f.write_str("true or false"),
            Self::Text => f.write_str("a string"),
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| name.as_str()).collect();
                write!(f, "one of {}", names.join(", "))
            }
            Self::Path => f.write_str("a path (a string)"),
            Self::Paths => f.write_str("a path or a list of paths (strings)"),
            Self::Names => f.write_str("a list of names (strings)"),
            Self::Map => f.write_str("a section of names (strings), as in prompt = \"question\""),
            Self::Sections => f.write_str("a list of sections"),
            Self::Targets => f.write_str(
                "\"all-linear\", a regular expression (a string) or a list of names (strings)",
            ),
        }
    }
}

impl SettingKind {
    fn schema(&self) -> Value {
        let string = json!({ "type": "string" });
        let mut schema = match self {
            Self::Number(_) => json!({ "type": "number" }),
            Self::Whole(_) => json!({ "type": "integer" }),
            Self::Pair(range) => {
                let mut items = json!({ "type": "number" });
                range.add_to(&mut items);
                json!({ "type": "array", "minItems": 2, "maxItems": 2, "items": items })
            }
            Self::Bool => json!({ "type": "boolean" }),
            Self::Text | Self::Path => string,
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| name.as_str()).collect();
                let docs: Vec<&str> = choices.iter().map(|(_, doc)| doc.as_str()).collect();
                // `enumDescriptions` is what editors show next to each value.
                json!({ "enum": names, "enumDescriptions": docs })
            }
            Self::Paths | Self::Targets => {
                json!({ "anyOf": [string, { "type": "array", "items": { "type": "string" } }] })
            }
            Self::Names => json!({ "type": "array", "items": string }),
            Self::Map => json!({ "type": "object", "additionalProperties": string }),
            Self::Sections => json!({ "type": "array", "minItems": 1 }),
        };
        if let Self::Number(range) | Self::Whole(range) = self {
            range.add_to(&mut schema);
        }
        schema
    }

    /// The bounds, where it has some.
    pub(super) fn range_mut(&mut self) -> Option<&mut Range> {
        match self {
            Self::Number(range) | Self::Whole(range) | Self::Pair(range) => Some(range),
            _ => None,
        }
    }
}
