//! Rows built from templates with placeholders: `Question: {question}\nAnswer:`.

use serde_json::Value;

use super::json_path::at_path;
use crate::error::{DataError, RowError};

/// A text with placeholders for fields of a row: `{name}`, `{path.in.row}`, `{name?}` (optional). `{{` and `}}` are
/// literal braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowTemplate {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field { path: String, optional: bool },
}

/// The templates of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowTemplates {
    /// A prompt and its completion.
    Prompt {
        /// The system message before the prompt.
        system: Option<RowTemplate>,
        /// The input.
        prompt: RowTemplate,
        /// The text to learn.
        completion: RowTemplate,
    },
    /// Plain text.
    Text(RowTemplate),
}

impl RowTemplates {
    /// The templates of a configuration, if it has any.
    ///
    /// # Errors
    /// A combination that isn't allowed, or an invalid template.
    pub fn new(
        system: Option<&str>,
        prompt: Option<&str>,
        completion: Option<&str>,
        text: Option<&str>,
    ) -> Result<Option<Self>, DataError> {
        let parse = |key: &str, text: &str| RowTemplate::parse(text, key);
        Ok(Some(match (system, prompt, completion, text) {
            (None, None, None, None) => return Ok(None),
            (None, None, None, Some(text)) => Self::Text(parse("data.text_template", text)?),
            (system, Some(prompt), Some(completion), None) => Self::Prompt {
                system: system.map(|text| parse("data.system_template", text)).transpose()?,
                prompt: parse("data.prompt_template", prompt)?,
                completion: parse("data.completion_template", completion)?,
            },
            (system, prompt, completion, text) => {
                let given = [
                    ("data.system_template", system),
                    ("data.prompt_template", prompt),
                    ("data.completion_template", completion),
                    ("data.text_template", text),
                ];
                let given: Vec<&str> =
                    given.iter().filter(|(_, text)| text.is_some()).map(|(key, _)| *key).collect();
                return Err(DataError::Setting {
                    key: "data".into(),
                    expected: "data.prompt_template with data.completion_template (and optionally data.system_template), or data.text_template alone".into(),
                    found: given.join(", "),
                    nearest: None,
                });
            }
        }))
    }
}

impl RowTemplate {
    /// Parses a template; `key` is the setting that error messages name.
    ///
    /// # Errors
    /// Unbalanced braces, an empty name, a text without placeholders.
    pub fn parse(text: &str, key: &str) -> Result<Self, DataError> {
        let wrong = |expected: &str| DataError::Setting {
            key: key.to_owned(),
            expected: expected.to_owned(),
            found: text.to_owned(),
            nearest: None,
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let tail = &rest[at..];
            if let Some(after) = tail.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = tail.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else if let Some((name, after)) =
                tail.strip_prefix('{').and_then(|t| t.split_once('}'))
            {
                let (path, optional) = match name.trim().strip_suffix('?') {
                    Some(path) => (path.trim(), true),
                    None => (name.trim(), false),
                };
                if path.is_empty() || path.contains('{') {
                    return Err(wrong("{name} with the name of a field ({{ for a literal brace)"));
                }
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Field { path: path.to_owned(), optional });
                rest = after;
            } else {
                return Err(wrong("balanced braces as in {name} ({{ and }} for literal braces)"));
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        if !parts.iter().any(|part| matches!(part, Part::Field { .. })) {
            return Err(wrong("at least one placeholder {name}, otherwise all rows are the same"));
        }
        Ok(Self { parts })
    }

    /// The template filled in for a row.
    ///
    /// # Errors
    /// A field that is missing or isn't a string, number or boolean.
    pub fn fill(&self, row: &Value) -> Result<String, RowError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Field { path, optional } => match at_path(row, path) {
                    Some(Value::String(value)) => text.push_str(value),
                    Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                        text.push_str(&value.to_string());
                    }
                    None | Some(Value::Null) if *optional => {}
                    other => {
                        return Err(RowError::Placeholder {
                            name: path.clone(),
                            found: match other {
                                None => "nothing".into(),
                                Some(Value::Null) => "null".into(),
                                Some(Value::Array(_)) => "a list".into(),
                                Some(_) => "an object".into(),
                            },
                        });
                    }
                },
            }
        }
        Ok(text)
    }
}
