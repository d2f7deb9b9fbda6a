//! Rows as they are read: a conversation, a prompt with its completion, or plain text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::DataError;
use crate::nearest::nearest;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or whatever the chat template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// Further keys (`tool_calls`, `name`, `reasoning_content`, …), kept for the template. A `content` in here is
    /// what the template sees in place of the text: a `null` beside `tool_calls` stays a `null`.
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of nothing but role and text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// The message as the template sees it.
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
    /// A conversation; the assistant's turns are trained.
    Chat {
        /// The messages, in order.
        messages: Vec<Message>,
        /// Definitions of tools, as the template wants them.
        tools: Option<Value>,
    },
    /// A prompt and its completion; the completion is trained.
    Completion {
        /// What is given.
        prompt: String,
        /// What is to be learned.
        completion: String,
    },
    /// Plain text; all of it is trained.
    Text(String),
}

/// Where a row stands; shown as `file:line`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file, or the name of what is no file.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
}

impl Source {
    /// A place in a file.
    pub fn new(file: impl Into<PathBuf>, line: usize) -> Self {
        Self { file: file.into().into(), line }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A row and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedRow {
    /// The row.
    pub row: Row,
    /// Where it stands.
    pub source: Source,
    /// What it says of itself: `train` and `weight`, as they are read; followed under [`crate::TrainOn::Marked`].
    pub marks: Map<String, Value>,
}

impl SourcedRow {
    /// A row without marks.
    pub fn new(row: Row, source: Source) -> Self {
        Self { row, source, marks: Map::new() }
    }
}

/// The shape of rows, told by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// By the keys, row by row.
    #[default]
    Auto,
    /// `messages`: [{role, content}]
    Messages,
    /// `conversations`: [{from, value}] or [{role, content}]
    ShareGpt,
    /// `instruction`, `input`, `output`, and `history`
    Alpaca,
    /// `instruction`, `context`, `response`
    Dolly,
    /// `prompt`, `completion` or `response`
    Prompt,
    /// `question`, `answer`
    Question,
    /// `query`, `response`
    Query,
    /// `text`
    Text,
}

/// The names of the formats, as a configuration has them.
pub(crate) const FORMATS: [&str; 9] =
    ["auto", "messages", "sharegpt", "alpaca", "dolly", "prompt", "question", "query", "text"];

impl Format {
    /// Its name, as a configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Dolly => "dolly",
            Self::Prompt => "prompt",
            Self::Question => "question",
            Self::Query => "query",
            Self::Text => "text",
        }
    }
}

impl FromStr for Format {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        Ok(match name {
            "auto" => Self::Auto,
            "messages" => Self::Messages,
            "sharegpt" => Self::ShareGpt,
            "alpaca" => Self::Alpaca,
            "dolly" => Self::Dolly,
            "prompt" => Self::Prompt,
            "question" => Self::Question,
            "query" => Self::Query,
            "text" => Self::Text,
            _ => {
                return Err(DataError::UnknownFormat {
                    found: name.to_owned(),
                    nearest: nearest(name, FORMATS),
                });
            }
        })
    }
}
