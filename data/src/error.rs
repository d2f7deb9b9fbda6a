//! Errors: each names the place, what was expected, what was found and the remedy.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::location::Source;

/// Faults of a data set that are listed; further ones are only counted.
const LISTED: usize = 20;

/// A failure in reading data, loading a tokenizer or building examples.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file could not be read.
    #[error("{}: cannot be read: {cause}. Check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A file could not be written.
    #[error("{}: cannot be written: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A data file without rows.
    #[error("{}: no rows: expected at least one, found an empty file. Check the path", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A data file of an unsupported type.
    #[error(
        "{}: unsupported type of data file: expected .jsonl, .json, .csv, .tsv, .txt (each also with .gz or .zst) or .parquet, found {found}. Convert it, or rename it if its extension is wrong",
        path.display()
    )]
    UnknownExtension {
        /// The file.
        path: PathBuf,
        /// Its extension.
        found: String,
    },
    /// Invalid rows.
    #[error("{0}")]
    Faults(Faults),
    /// A pattern or folder without data files.
    #[error("{}: no data files: {found}. Check the path; quote a pattern such as 'data/*.jsonl' in the shell", path.display())]
    NoFiles {
        /// The path or pattern.
        path: PathBuf,
        /// What was found instead.
        found: String,
    },
    /// More invalid rows than data.max_errors.
    #[error("more than {limit} invalid rows, the limit set by data.max_errors. {faults}")]
    TooManyFaults {
        /// The limit.
        limit: usize,
        /// The invalid rows found until then.
        faults: Faults,
    },
    /// A setting with an invalid value.
    #[error("`{key}`: expected {expected}, found `{found}`{}", did_you_mean(nearest.as_deref()))]
    Setting {
        /// Its name.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
        /// The nearest valid value.
        nearest: Option<String>,
    },
    /// A folder without a `tokenizer.json`.
    #[error("{}: no tokenizer.json: the folder contains {found}. {remedy}", dir.display())]
    NoTokenizer {
        /// The folder.
        dir: PathBuf,
        /// Names of the files in it.
        found: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// An invalid file of a tokenizer.
    #[error("{file}: {detail}")]
    TokenizerFile {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The tokenizer failed to encode a text or to decode tokens.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A mixture without files.
    #[error("nothing to mix: expected at least one data file, found none. Name the files")]
    NothingToMix,
    /// A file to mix that isn't JSON Lines.
    #[error(
        "{}: expected JSON Lines (.jsonl) to mix, found {found}. Convert the file first",
        path.display()
    )]
    NotJsonLines {
        /// The file.
        path: PathBuf,
        /// Its extension.
        found: String,
    },
    /// An invalid weight of a source.
    #[error("{}: expected a weight greater than 0, found {found}. Change it, or remove the source", path.display())]
    Weight {
        /// The source.
        path: PathBuf,
        /// Its weight.
        found: f64,
    },
    /// No example has a token to train on.
    #[error("nothing to train on: {0}")]
    NothingToTrain(String),
}

/// Invalid rows: the first twenty, and the number of the others.
#[derive(Debug, Default)]
pub struct Faults {
    /// The first ones, in the order of the rows.
    pub listed: Vec<Fault>,
    /// Number of further ones.
    pub more: usize,
}

/// An invalid row.
#[derive(Debug, Error)]
#[error("{source_row}: {cause}")]
pub struct Fault {
    /// Where the row was read.
    pub source_row: Source,
    /// What is wrong with it.
    pub cause: RowError,
    /// The row's text in the file, if it could be read.
    pub text: Option<Box<str>>,
}

/// Why a row is invalid.
#[derive(Debug, Error)]
pub enum RowError {
    /// Invalid JSON.
    #[error("column {column}: invalid JSON: {detail}. Each row must be one JSON object")]
    Json {
        /// Column of the error, from 1.
        column: usize,
        /// The parser's message.
        detail: String,
    },
    /// Invalid UTF-8.
    #[error("invalid UTF-8: byte {byte:#04x}. Save the file as UTF-8")]
    Utf8 {
        /// The first invalid byte.
        byte: u8,
    },
    /// A row longer than the limit.
    #[error(
        "longer than {limit} bytes, the limit for a row. A missing line break or an unclosed quote is a common cause; documents of plain text can be split with data.text_by = \"paragraph\""
    )]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A truncated or damaged file: the rest of it cannot be read.
    #[error("the rest of the file cannot be read: {0}. Download or write the file again")]
    Broken(String),
    /// A row without a value for a placeholder.
    #[error(
        "placeholder `{{{name}}}`: expected a string or a number in the row, found {found}. Write `{{{name}?}}` if the field is optional"
    )]
    Placeholder {
        /// The placeholder.
        name: String,
        /// What the row has instead.
        found: String,
    },
    /// A CSV record that doesn't match the header.
    #[error("invalid CSV record: {0}")]
    Csv(String),
    /// A row that isn't a JSON object.
    #[error("expected a JSON object, found {found}")]
    NotAnObject {
        /// The type of the value.
        found: &'static str,
    },
    /// A row whose keys match no format.
    #[error("the row matches no known format: found the keys {found}{}. Known formats: {accepted}", did_you_mean(suggestion.as_deref()))]
    UnknownKeys {
        /// The row's keys.
        found: String,
        /// The nearest known key.
        suggestion: Option<String>,
        /// The keys of the known formats.
        accepted: String,
    },
    /// A field that is missing or of the wrong type.
    #[error("`{key}`: expected {expected}, found {found}")]
    Field {
        /// The field, as a path in the row.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A conversation without an assistant message.
    #[error(
        "nothing to train on: expected a message with the role `assistant`, found only {roles}. Add the answer, or remove the row"
    )]
    NoAssistant {
        /// The roles found.
        roles: String,
    },
    /// A mark that requests training on a message of another role.
    #[error(
        "message {turn} (`{role}`) is marked for training: expected `train: true` or a `weight` above 0 on assistant messages only. Remove the mark"
    )]
    MarkOnOther {
        /// Index of the message, from 0.
        turn: usize,
        /// Its role.
        role: String,
    },
    /// A conversation without a chat template to render it.
    #[error(
        "a conversation needs a chat template, and {why}. Use a model folder with chat_template.jinja (instruct models have one), or rows with `prompt` and `completion`, or with `text`"
    )]
    NoChatTemplate {
        /// Why no template is used.
        why: &'static str,
    },
    /// A completion without an end-of-text token.
    #[error(
        "`prompt` and `completion` need an end-of-text token, and the tokenizer has none. Set `eos_token` in tokenizer_config.json"
    )]
    NoEos,
    /// The chat template failed on this row.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed on this row.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// The message that was recorded when the row's file was tokenized.
    #[error("{0}")]
    Recorded(String),
}

/// Errors of chat templates.
#[derive(Debug, Clone, Error)]
pub enum TemplateError {
    /// The model has no chat template.
    #[error(
        "the tokenizer has no chat template: expected chat_template.jinja or `chat_template` in tokenizer_config.json"
    )]
    Missing,
    /// The template has a syntax error.
    #[error("{file}: syntax error in the chat template: {detail}")]
    Syntax {
        /// The file with the template.
        file: String,
        /// The parser's message, with the line.
        detail: String,
    },
    /// The template failed on a conversation, or rejected it with `raise_exception`.
    #[error("the chat template rejected the conversation: {detail}")]
    Render {
        /// The template's message.
        detail: String,
    },
    /// The template leaves out an assistant turn.
    #[error(
        "the chat template leaves out the assistant's turn (message {turn}), so nothing can be trained on. Use the template of an instruct model"
    )]
    WithoutAssistant {
        /// Index of the message, from 0.
        turn: usize,
    },
    /// The start or end of an assistant turn could not be determined.
    #[error(
        "cannot determine which part of message {turn} to train on: {detail}. Mark it in the template with {{% generation %}} … {{% endgeneration %}}"
    )]
    Underivable {
        /// Index of the message, from 0.
        turn: usize,
        /// The reason.
        detail: String,
    },
    /// An invalid date.
    #[error("invalid date `{found}`: expected YYYY-MM-DD")]
    Date {
        /// The text.
        found: String,
    },
}

impl Fault {
    /// A fault without the row's text.
    pub fn new(source_row: Source, cause: RowError) -> Self {
        Self { source_row, cause, text: None }
    }

    /// Whether the rest of the file is lost too. Such a fault can't be skipped.
    pub fn ends_file(&self) -> bool {
        self.cause.ends_file()
    }
}

impl RowError {
    /// Whether the rest of the file can't be read.
    pub fn ends_file(&self) -> bool {
        matches!(self, Self::Broken(_))
    }
}

impl Faults {
    /// Number of invalid rows.
    pub fn count(&self) -> usize {
        self.listed.len() + self.more
    }

    /// A single invalid row.
    pub(crate) fn one(source_row: Source, cause: RowError) -> Self {
        Fault::new(source_row, cause).into()
    }

    /// Adds an invalid row: to the list, or to the count if the list is full.
    pub(crate) fn push(&mut self, source_row: Source, cause: RowError) {
        self.push_fault(Fault::new(source_row, cause));
    }

    /// As [`Faults::push`]; the row's text is not kept.
    pub(crate) fn push_fault(&mut self, fault: Fault) {
        if self.listed.len() < LISTED {
            self.listed.push(Fault { text: None, ..fault });
        } else {
            self.more += 1;
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self { listed: vec![fault], more: 0 }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.count();
        if let [only] = self.listed.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{total} invalid rows:")?;
        for fault in &self.listed {
            write!(f, "\n  {fault}")?;
        }
        if self.more > 0 {
            write!(f, "\n  and {} more", self.more)?;
        }
        Ok(())
    }
}

/// The end of a message that suggests a name.
pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(". Did you mean `{name}`?"))
}
