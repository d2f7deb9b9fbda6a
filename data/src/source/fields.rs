//! Which keys make a row: known ones, those a configuration names, or those in templates.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::row_template::RowTemplates;
use crate::error::{DataError, RowError};
use crate::nearest::nearest;
use crate::row::{Format, Message, Row};
use crate::shape::{detect, row_from_value};
use crate::supervision::MARKS;

/// How an object becomes a row.
#[derive(Debug, Clone)]
pub enum RowShape {
    /// By known keys.
    Keys(Format),
    /// By keys with names of one's own.
    Fields(FieldMap),
    /// By templates with placeholders.
    Templates(RowTemplates),
}

impl Default for RowShape {
    fn default() -> Self {
        Self::Keys(Format::Auto)
    }
}

impl RowShape {
    /// The row, and the format whose keys it has: of templates [`Format::Prompt`] or [`Format::Text`].
    ///
    /// # Errors
    /// Keys that make no row, a field that is missing or of the wrong kind.
    pub fn row(&self, value: &Value) -> Result<(Row, Format), RowError> {
        match self {
            Self::Keys(format) => by_keys(value, *format),
            Self::Fields(fields) => by_keys(&fields.rename(value)?, Format::Auto),
            Self::Templates(templates) => Ok(match templates {
                RowTemplates::Text(text) => (Row::Text(text.fill(value)?), Format::Text),
                RowTemplates::Prompt { system: None, prompt, completion } => {
                    let [prompt, completion] = [prompt.fill(value)?, completion.fill(value)?];
                    (Row::Completion { prompt, completion }, Format::Prompt)
                }
                RowTemplates::Prompt { system: Some(system), prompt, completion } => {
                    let messages =
                        [("system", system), ("user", prompt), ("assistant", completion)];
                    let messages = messages
                        .into_iter()
                        .map(|(role, text)| Ok(Message::new(role, text.fill(value)?)))
                        .collect::<Result<_, RowError>>()?;
                    (Row::Chat { messages, tools: None }, Format::Prompt)
                }
            }),
        }
    }

    /// What an object says of the row that it makes: `train` and `weight`, by those names or by those of one's own.
    pub(crate) fn marks(&self, value: &Value) -> Map<String, Value> {
        let found = |mark: &str| match self {
            Self::Keys(_) | Self::Templates(_) => value.get(mark),
            Self::Fields(fields) => at_path(value, fields.name_of(mark)?),
        };
        let marks =
            MARKS.iter().filter_map(|mark| Some(((*mark).to_owned(), found(mark)?.clone())));
        marks.filter(|(_, value)| !value.is_null()).collect()
    }

    /// Plain text has no keys of one's own.
    pub(super) fn of_plain_text(&self) -> Self {
        match self {
            Self::Keys(_) | Self::Fields(_) => Self::Keys(Format::Text),
            Self::Templates(templates) => Self::Templates(templates.clone()),
        }
    }
}

fn by_keys(value: &Value, format: Format) -> Result<(Row, Format), RowError> {
    let row = row_from_value(value, format)?;
    let known = match format {
        Format::Auto => value.as_object().and_then(detect).unwrap_or_default(),
        given => given,
    };
    Ok((row, known))
}

/// Keys of one's own for the known ones: `prompt = "question"`. Only what is named counts, all else in the row is
/// passed over. A name may be a path (`translation.en`); a number or a boolean counts as its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldMap {
    /// (known key, path in the row)
    fields: Vec<(String, String)>,
    /// Keys of role and content in a message.
    message: Option<[String; 2]>,
}

/// Known keys that a row's fields may be named for.
const FIELDS: [&str; 20] = [
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "context",
    "response",
    "prompt",
    "completion",
    "question",
    "answer",
    "query",
    "text",
    "history",
    "system",
    "tools",
    "train",
    "weight",
    "role",
    "content",
];

impl FieldMap {
    /// From pairs of a known key and the name it has in the rows.
    ///
    /// # Errors
    /// A key that is not known, or only one of `role` and `content`.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, DataError> {
        let mut map = Self::default();
        let mut message = [None, None];
        for (known, name) in pairs {
            let setting = |expected: &str, found: &str| DataError::Setting {
                key: "data.fields".into(),
                expected: expected.into(),
                found: found.into(),
                nearest: nearest(found, FIELDS),
            };
            if !FIELDS.contains(&known.as_str()) {
                return Err(setting(&format!("one of {}", FIELDS.join(", ")), &known));
            }
            if name.is_empty() {
                return Err(setting(&format!("the name of a field for `{known}`"), &name));
            }
            match known.as_str() {
                "role" => message[0] = Some(name),
                "content" => message[1] = Some(name),
                _ => map.fields.push((known, name)),
            }
        }
        map.message = match message {
            [None, None] => None,
            [role, content] => Some([
                role.unwrap_or_else(|| "role".into()),
                content.unwrap_or_else(|| "content".into()),
            ]),
        };
        Ok(map)
    }

    fn name_of(&self, known: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == known).map(|(_, name)| name.as_str())
    }

    fn rename(&self, value: &Value) -> Result<Value, RowError> {
        let mut renamed = Map::new();
        // Marks are no part of what is written.
        let fields = self.fields.iter().filter(|(known, _)| !MARKS.contains(&known.as_str()));
        for (known, path) in fields {
            let Some(found) = at_path(value, path).filter(|value| !value.is_null()) else {
                // What may be absent in a row of known keys may be here too; the others are named with their own key.
                if ["input", "context", "history", "system", "tools"].contains(&known.as_str()) {
                    continue;
                }
                return Err(RowError::Field {
                    key: path.clone(),
                    expected: "a value: data.fields names it",
                    found: "nothing: the key is missing or null".into(),
                });
            };
            let found = match found {
                Value::Array(list) => match &self.message {
                    Some(keys) if known == "messages" || known == "conversations" => Value::Array(
                        list.iter().map(|message| as_share_gpt(message, keys)).collect(),
                    ),
                    _ => found.clone(),
                },
                scalar @ (Value::Number(_) | Value::Bool(_)) => Value::String(scalar.to_string()),
                other => other.clone(),
            };
            renamed.insert(known.clone(), found);
        }
        Ok(Value::Object(renamed))
    }
}

/// The message with `from` and `value`: so the names of roles that ShareGPT data has are understood.
fn as_share_gpt(message: &Value, [role, content]: &[String; 2]) -> Value {
    let Some(object) = message.as_object() else { return message.clone() };
    let renamed = object.iter().map(|(key, value)| {
        let key = match key {
            _ if key == role => "from",
            _ if key == content => "value",
            other => other.as_str(),
        };
        (key.to_owned(), value.clone())
    });
    Value::Object(renamed.collect())
}

/// The value under a key, or under a path of keys parted by dots.
pub(crate) fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    value.get(path).or_else(|| {
        let mut at = value;
        for key in path.split('.') {
            at = match at {
                Value::Array(list) => list.get(usize::from_str(key).ok()?)?,
                other => other.get(key)?,
            };
        }
        Some(at)
    })
}
