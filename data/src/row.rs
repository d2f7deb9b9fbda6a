//! A row of training data: a conversation, a prompt with its completion, or plain text.

use serde_json::{Map, Value};

use crate::location::Source;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role of the chat template.
    pub role: String,
    /// The text.
    pub content: String,
    /// Further keys (`tool_calls`, `name`, `reasoning_content`, …) for the template. A `content` in here replaces the
    /// text in the template: a `null` next to `tool_calls` stays a `null`.
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with role and text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// The message as a template's variable.
    pub(crate) fn to_value(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("role".into(), self.role.as_str().into());
        map.insert("content".into(), self.content.as_str().into());
        for (key, value) in &self.extra {
            map.insert(key.clone(), value.clone());
        }
        map
    }
}

/// A row of training data.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// A conversation; the assistant's turns are trained on.
    Chat {
        /// The messages, in order.
        messages: Vec<Message>,
        /// Tool definitions, passed to the template as they are.
        tools: Option<Value>,
    },
    /// A prompt and its completion; the completion is trained on.
    Completion {
        /// The input.
        prompt: String,
        /// The text to learn.
        completion: String,
    },
    /// Plain text; all of it is trained on.
    Text(String),
}

/// A row and where it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedRow {
    /// The row.
    pub row: Row,
    /// Where it was read.
    pub source: Source,
    /// Its `train` and `weight` fields as read; used under [`crate::TrainOn::Marked`].
    pub marks: Map<String, Value>,
}

impl SourcedRow {
    /// A row without marks.
    pub fn new(row: Row, source: Source) -> Self {
        Self { row, source, marks: Map::new() }
    }
}
