//! How objects become rows: by known keys, by configured field names, or by templates.

use serde_json::{Map, Value};

use super::json_path::at_path;
use super::row_template::RowTemplates;
use crate::error::{DataError, RowError};
use crate::format::{
    COMMON, Format, detect, is_message_list, is_optional, known_keys, row_from_value,
};
use crate::nearest::nearest;
use crate::row::{Message, Row};
use crate::supervision::MARKS;

/// How an object becomes a row.
#[derive(Debug, Clone)]
pub enum RowShape {
    /// By known keys.
    Keys(Format),
    /// By configured field names.
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
    /// The row and its format: for templates [`Format::Prompt`] or [`Format::Text`].
    ///
    /// # Errors
    /// Keys that match no format, a field that is missing or of the wrong type.
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

    /// The `train` and `weight` fields of an object, by those names or by the configured ones.
    pub(crate) fn marks(&self, value: &Value) -> Map<String, Value> {
        let found = |mark: &str| match self {
            Self::Keys(_) | Self::Templates(_) => value.get(mark),
            Self::Fields(fields) => at_path(value, fields.name_of(mark)?),
        };
        let marks =
            MARKS.iter().filter_map(|mark| Some(((*mark).to_owned(), found(mark)?.clone())));
        marks.filter(|(_, value)| !value.is_null()).collect()
    }

    /// The shape for plain text, where configured field names don't apply.
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

/// Configured names for known fields: `prompt = "question"`. Fields that aren't named are ignored. A name may be a path
/// (`translation.en`); numbers and booleans are read as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldMap {
    /// (known field, path in the row)
    fields: Vec<(String, String)>,
    /// Keys of role and content in a message.
    message: Option<[String; 2]>,
}

impl FieldMap {
    /// From pairs of a known field and its name in the rows.
    ///
    /// # Errors
    /// An unknown field, or an empty name.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, DataError> {
        let fields = [&known_keys()[..], &COMMON, &MARKS, &["role", "content"]].concat();
        let mut map = Self::default();
        let mut message = [None, None];
        for (known, name) in pairs {
            let setting = |expected: &str, found: &str| DataError::Setting {
                key: "data.fields".into(),
                expected: expected.into(),
                found: found.into(),
                nearest: nearest(found, fields.iter().copied()),
            };
            if !fields.contains(&known.as_str()) {
                return Err(setting(&format!("one of {}", fields.join(", ")), &known));
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
        // Marks aren't part of the text.
        let fields = self.fields.iter().filter(|(known, _)| !MARKS.contains(&known.as_str()));
        for (known, path) in fields {
            let Some(found) = at_path(value, path).filter(|value| !value.is_null()) else {
                // Fields that are optional under their known names are optional here too.
                if is_optional(known) {
                    continue;
                }
                return Err(RowError::Field {
                    key: path.clone(),
                    expected: "a value, as data.fields names this field",
                    found: "nothing: the key is missing or null".into(),
                });
            };
            let found = match found {
                Value::Array(list) => match &self.message {
                    Some(keys) if is_message_list(known) => Value::Array(
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

/// The message with the keys `from` and `value`, so that ShareGPT's role names are recognized.
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
