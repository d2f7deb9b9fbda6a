//! What can go wrong, said with place, expectation, finding and remedy.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::row::Source;

/// How many faults of one data set are told in full; the rest is counted.
const TOLD: usize = 20;

/// A failure in reading data, loading a tokenizer or building examples.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file could not be read.
    #[error("{}: cannot be read: {cause}. Check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A file could not be written.
    #[error("{}: cannot be written: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A data file holds no row.
    #[error("{}: no rows: expected at least one, found an empty file. Check that this is the file you meant", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A data file is of a kind that is not read.
    #[error(
        "{}: unknown kind of data file: expected .jsonl, .json, .csv, .tsv, .txt (each also with .gz or .zst) or .parquet, found {found}. Convert it, or rename it if its name misleads",
        path.display()
    )]
    UnknownExtension {
        /// The file.
        path: PathBuf,
        /// Its extension, as shown.
        found: String,
    },
    /// Rows at fault, as many as were found.
    #[error("{0}")]
    Faults(Faults),
    /// A pattern or folder that yields no data file.
    #[error("{}: no data file: {found}. Check the path; a pattern such as 'data/*.jsonl' must reach the program in quotes", path.display())]
    NoFiles {
        /// The path or pattern as given.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// More rows at fault than may be skipped.
    #[error("more than {limit} rows at fault, the limit of data.max_errors. {faults}")]
    TooManyFaults {
        /// The limit.
        limit: usize,
        /// Those before it.
        faults: Faults,
    },
    /// A setting of a data tool that can't be.
    #[error("`{key}`: expected {expected}, found `{found}`{}", did_you_mean(nearest.as_deref()))]
    Setting {
        /// Its name.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
        /// The nearest thing that it may be.
        nearest: Option<String>,
    },
    /// A name that is no [`crate::Format`].
    #[error("unknown data format `{found}`: expected one of {}{}", crate::row::FORMATS.join(", "), did_you_mean(nearest.as_deref()))]
    UnknownFormat {
        /// What was given.
        found: String,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// A folder without a `tokenizer.json`.
    #[error("{}: no tokenizer.json: the folder holds {found}. {remedy}", dir.display())]
    NoTokenizer {
        /// The folder.
        dir: PathBuf,
        /// Names of the files in it.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A tokenizer's file that is not what it should be.
    #[error("{file}: {detail}")]
    TokenizerFile {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The tokenizer could not encode a text or decode tokens.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// A failure of the chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A mixture of no files.
    #[error("nothing to mix: expected at least one file of rows, found none. Name the files")]
    NothingToMix,
    /// A file to be mixed that is read line by line, and can't be.
    #[error(
        "{}: expected JSON Lines (.jsonl) to mix, found {found}. Convert the file first",
        path.display()
    )]
    NotJsonLines {
        /// The file.
        path: PathBuf,
        /// Its extension, as shown.
        found: String,
    },
    /// A weight that says nothing.
    #[error("{}: expected a weight greater than 0, found {found}. Change it, or leave the source out", path.display())]
    Weight {
        /// The source.
        path: PathBuf,
        /// Its weight.
        found: f64,
    },
    /// All examples lost their targets.
    #[error("nothing to train on: {0}")]
    NothingToTrain(String),
}

/// Rows at fault: the first twenty in full, the rest counted.
#[derive(Debug, Default)]
pub struct Faults {
    /// The first faults, in the order of the rows.
    pub told: Vec<Fault>,
    /// Faults beyond those.
    pub untold: usize,
}

/// A row at fault and where it stands.
#[derive(Debug, Error)]
#[error("{source_row}: {cause}")]
pub struct Fault {
    /// Where the row stands.
    pub source_row: Source,
    /// What is wrong with it.
    #[source]
    pub cause: RowError,
    /// The row as it stands in the file, as far as there is a text of it.
    pub text: Option<Box<str>>,
}

/// What can be wrong with one row.
#[derive(Debug, Error)]
pub enum RowError {
    /// Text that is not JSON.
    #[error("column {column}: not JSON: {detail}. Each row must be one JSON object")]
    Json {
        /// Column of the fault, from 1.
        column: usize,
        /// What the parser said.
        detail: String,
    },
    /// Text that is not UTF-8.
    #[error("not UTF-8: byte {byte:#04x}. Save the file as UTF-8")]
    Utf8 {
        /// The first byte that does not fit.
        byte: u8,
    },
    /// A row that is too long to be one.
    #[error(
        "longer than {limit} bytes, the limit of a row. A missing line break or an unclosed quote is a common cause; documents of plain text can be split with data.text_by = \"paragraph\""
    )]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A file that breaks off or is damaged: what follows cannot be read.
    #[error("the rest of the file cannot be read: {0}. Fetch or write the file again")]
    Broken(String),
    /// A placeholder of a template that the row has nothing for.
    #[error(
        "the template's `{{{name}}}`: expected a string or a number in the row, found {found}. Write `{{{name}?}}` where it may be missing"
    )]
    Placeholder {
        /// The placeholder.
        name: String,
        /// What stands there.
        found: String,
    },
    /// A CSV record that does not fit its header.
    #[error("not a CSV record: {0}")]
    Csv(String),
    /// A row that is no object.
    #[error("expected a JSON object, found {found}")]
    NotAnObject {
        /// The kind of value found.
        found: &'static str,
    },
    /// A row whose keys make no known shape.
    #[error("no known shape of row: found the keys {found}{}. Accepted: {accepted}", did_you_mean(suggestion.as_deref()))]
    UnknownKeys {
        /// The row's keys.
        found: String,
        /// The nearest known key.
        suggestion: Option<String>,
        /// The shapes that are read.
        accepted: &'static str,
    },
    /// A field that is missing or of the wrong kind.
    #[error("`{key}`: expected {expected}, found {found}")]
    Field {
        /// The field, as a path in the row.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A conversation without an assistant's turn.
    #[error(
        "nothing to train on: the conversation has no message of role `assistant`, only {roles}. Add the answer, or remove the row"
    )]
    NoAssistant {
        /// The roles found.
        roles: String,
    },
    /// A mark that asks for another's turn to be trained.
    #[error(
        "message {turn} (`{role}`) is marked to be trained: expected marks `train: true` or `weight: 1` on the assistant's turns only. Remove it"
    )]
    MarkOnOther {
        /// Index of the message, from 0.
        turn: usize,
        /// Whose it is.
        role: String,
    },
    /// A conversation, and no template to write it with.
    #[error(
        "a conversation needs a chat template, and {why}. Use a model folder with chat_template.jinja (an instruct model has one), or rows of `prompt` and `completion`, or of `text`"
    )]
    NoChatTemplate {
        /// Why there is none.
        why: &'static str,
    },
    /// A completion, and no token to end it with.
    #[error(
        "`prompt` and `completion` need an end-of-text token, and the tokenizer names none. Set `eos_token` in tokenizer_config.json"
    )]
    NoEos,
    /// A failure of the chat template on this row.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed on this row.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// What was wrong with the row when its file was tokenized, as it was told then.
    #[error("{0}")]
    Told(String),
}

/// A failure of the chat template.
#[derive(Debug, Clone, Error)]
pub enum TemplateError {
    /// The model has no chat template.
    #[error(
        "the tokenizer has no chat template: expected chat_template.jinja or `chat_template` in tokenizer_config.json"
    )]
    Missing,
    /// The template does not parse.
    #[error("{file}: the chat template does not parse: {detail}")]
    Syntax {
        /// The file it stands in.
        file: String,
        /// What the parser said, with the line.
        detail: String,
    },
    /// The template failed on a conversation, or refused it by `raise_exception`.
    #[error("the chat template refused the conversation: {detail}")]
    Render {
        /// What it said.
        detail: String,
    },
    /// The template writes nothing of an assistant's turn.
    #[error(
        "the chat template writes nothing of the assistant's turn (message {turn}): a template without assistant cannot be trained on. Use the template of an instruct model"
    )]
    WithoutAssistant {
        /// Index of the message, from 0.
        turn: usize,
    },
    /// Where an assistant's turn begins or ends could not be told.
    #[error(
        "cannot tell which part of message {turn} to train on: {detail}. Mark it in the template with {{% generation %}} … {{% endgeneration %}}"
    )]
    Underivable {
        /// Index of the message, from 0.
        turn: usize,
        /// What does not fit.
        detail: String,
    },
    /// A date that is none.
    #[error("`{found}` is not a date: expected YYYY-MM-DD")]
    Date {
        /// What was given.
        found: String,
    },
}

impl Fault {
    /// A fault of a row whose text is not at hand.
    pub fn new(source_row: Source, cause: RowError) -> Self {
        Self { source_row, cause, text: None }
    }

    /// Whether what follows in the file is lost too: then skipping the row is no remedy.
    pub fn ends_file(&self) -> bool {
        self.cause.ends_file()
    }
}

impl RowError {
    /// Whether nothing that follows in the file can be read.
    pub fn ends_file(&self) -> bool {
        matches!(self, Self::Broken(_))
    }
}

impl Faults {
    /// All of them, told and untold.
    pub fn count(&self) -> usize {
        self.told.len() + self.untold
    }

    /// A single fault.
    pub(crate) fn one(source_row: Source, cause: RowError) -> Self {
        Self { told: vec![Fault::new(source_row, cause)], untold: 0 }
    }

    /// Adds a fault, telling only the first ones in full.
    pub(crate) fn push(&mut self, source_row: Source, cause: RowError) {
        self.push_fault(Fault::new(source_row, cause));
    }

    /// Adds a fault; its text is not kept.
    pub(crate) fn push_fault(&mut self, fault: Fault) {
        if self.told.len() < TOLD {
            self.told.push(Fault { text: None, ..fault });
        } else {
            self.untold += 1;
        }
    }

    /// No fault so far.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.count();
        if let [only] = self.told.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{total} rows at fault:")?;
        for fault in &self.told {
            write!(f, "\n  {fault}")?;
        }
        if self.untold > 0 {
            write!(f, "\n  and {} more", self.untold)?;
        }
        Ok(())
    }
}

/// The end of a message that offers a name.
pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(". Did you mean `{name}`?"))
}
