//! What can be wrong with a configuration. All faults are reported together, each with its place and its remedy.

use std::fmt;
use std::path::PathBuf;

/// Where a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A TOML file, or a text in the program.
    File {
        /// The file's path as it was given, or the text's name.
        name: String,
        /// Line of the key, from 1.
        line: usize,
        /// Column of the key in characters, from 1.
        column: usize,
    },
    /// `--set section.key=value`.
    Set,
    /// A flag with a name of its own, such as `--model`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Set => f.write_str("--set"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}{kind}", place(.origin.as_ref()))]
pub struct Fault {
    /// Where the invalid setting comes from; `None` if it is missing.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub kind: FaultKind,
}

fn place(origin: Option<&Origin>) -> String {
    origin.map(|origin| format!("{origin}: ")).unwrap_or_default()
}

/// The kinds of fault. Keys are written in full: `train.learning_rate`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultKind {
    /// The file cannot be read.
    #[error("cannot read `{}`: {reason}; give the path of a TOML file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The text is not TOML.
    #[error("not TOML: {message}\n      | {line}")]
    Syntax {
        /// The TOML parser's message.
        message: String,
        /// The line.
        line: String,
    },
    /// A `--set` that is not `section.key=value`.
    #[error("expected section.key=value, as in --set train.steps=100, found `{text}`: {reason}")]
    SetSyntax {
        /// The argument.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A section or key that does not exist.
    #[error("unknown {what} `{name}`{}", suggestion(.nearest.as_ref(), .what, .known))]
    Unknown {
        /// `section` or `key`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The one that was probably meant.
        nearest: Option<String>,
        /// Those that exist there.
        known: Vec<String>,
    },
    /// A value of the wrong type, or one that is not allowed.
    #[error("`{key}`: expected {expected}, found {found}; {remedy}")]
    Value {
        /// The key.
        key: String,
        /// What is allowed.
        expected: String,
        /// The value, and its type where that is what is wrong.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// A value that another part of the program refuses.
    #[error("{message}")]
    Refused {
        /// Its message, with the key.
        message: String,
    },
    /// Settings that exclude each other.
    #[error("{} contradict each other: {reason}; {remedy}", both(.keys))]
    Contradiction {
        /// The keys, and where each comes from.
        keys: [(String, Option<Origin>); 2],
        /// Why not both.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// A setting that has no effect with the others.
    #[error("`{key}` has no effect: it needs {}{because}; {remedy}", .needs.join(" or "))]
    NoEffect {
        /// The key.
        key: String,
        /// What it needs, one of these.
        needs: Vec<String>,
        /// What there is instead.
        because: String,
        /// What to do.
        remedy: String,
    },
    /// A setting that is needed and not given.
    #[error("`{key}` is missing: expected {expected}, because {because}; {remedy}")]
    Missing {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
        /// Why it is needed.
        because: String,
        /// What to do.
        remedy: String,
    },
}

fn suggestion(nearest: Option<&String>, what: &str, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None => format!("; the {what}s are {}", known.join(", ")),
    }
}

fn both(keys: &[(String, Option<Origin>); 2]) -> String {
    let shown = keys.each_ref().map(|(key, origin)| match origin {
        Some(origin) => format!("`{key}` ({origin})"),
        None => format!("`{key}`"),
    });
    shown.join(" and ")
}

/// A configuration that cannot be used: everything that is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    /// The faults: at least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.faults.as_slice() {
            [fault] => write!(f, "invalid configuration: {fault}"),
            faults => {
                write!(f, "invalid configuration, {} errors:", faults.len())?;
                faults.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
