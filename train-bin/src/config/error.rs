//! What can be wrong with a configuration. All faults are reported together, each with its place
//! and its remedy.

use std::fmt;
use std::path::PathBuf;

use super::choice::UnknownChoice;

/// Where a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A TOML file, or a text that the program carries.
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
    Flag(&'static str),
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

/// One thing that is wrong, and where it stands.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}{kind}", place(.origin.as_ref()))]
pub struct Fault {
    /// Where the faulty setting comes from; `None` when it stands nowhere, as a missing one.
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
        /// What the system said.
        reason: String,
    },
    /// The text is not TOML.
    #[error("not TOML: {message}\n      | {line}")]
    Syntax {
        /// What the TOML parser said.
        message: String,
        /// The line, as it stands there.
        line: String,
    },
    /// A `--set` that is no `section.key=value`.
    #[error("expected section.key=value, as in --set train.steps=100, found `{text}`: {reason}")]
    SetSyntax {
        /// The argument.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A section that does not exist.
    #[error("unknown section `[{section}]`{}", suggestion(.nearest.as_ref(), "the sections are", .known))]
    UnknownSection {
        /// The section's name.
        section: String,
        /// The section that was probably meant, in brackets.
        nearest: Option<String>,
        /// The sections there are, in brackets.
        known: Vec<String>,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}`{}", suggestion(.nearest.as_ref(), "the keys here are", .known))]
    UnknownKey {
        /// The key.
        key: String,
        /// The key that was probably meant.
        nearest: Option<String>,
        /// The keys of that section.
        known: Vec<String>,
    },
    /// A value of the wrong type.
    #[error("`{key}`: expected {expected}, found {found}; {remedy}")]
    WrongType {
        /// The key.
        key: String,
        /// The type it has.
        expected: &'static str,
        /// The value and its type.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A value that the data crate refuses.
    #[error("{message}")]
    Refused {
        /// What it said, with the key.
        message: String,
    },
    /// A name that is none of the choices.
    #[error("`{key}`: {error}")]
    UnknownChoice {
        /// The key.
        key: String,
        /// The name and the choices.
        #[source]
        error: UnknownChoice,
    },
    /// A value of the right type that is not allowed.
    #[error("`{key}`: expected {expected}, found {found}; {remedy}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The values that are allowed.
        expected: &'static str,
        /// The value.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// A text that is not a regular expression.
    #[error(
        "`{key}`: expected \"all-linear\", a regular expression or a list of names, \
         found {found:?}, which is no regular expression ({reason}); \
         to name modules, write a list: [\"q_proj\", \"v_proj\"]"
    )]
    Pattern {
        /// The key.
        key: String,
        /// The text.
        found: String,
        /// What the regex parser said, on one line.
        reason: String,
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
    /// A setting that is needed and not given.
    #[error("`{key}` is missing: expected {expected}, because {because}; {remedy}")]
    Missing {
        /// The key.
        key: String,
        /// What it is to hold.
        expected: &'static str,
        /// Why it is needed.
        because: String,
        /// What to do.
        remedy: String,
    },
}

fn suggestion(nearest: Option<&String>, list: &str, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None => format!("; {list} {}", known.join(", ")),
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
    /// The faults: at least one, in the order of the sections.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.faults.as_slice() {
            [fault] => write!(f, "the configuration is wrong: {fault}"),
            faults => {
                write!(f, "the configuration is wrong in {} places:", faults.len())?;
                faults.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// A configuration that cannot be written as TOML.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// TOML's integers are signed, 64 bits wide.
    #[error("cannot write `{key}` as TOML: expected at most {}, found {found}", i64::MAX)]
    TooLarge {
        /// The key.
        key: &'static str,
        /// Its value.
        found: u64,
    },
    /// Something TOML does not hold, such as a path that is not UTF-8.
    #[error("cannot write the configuration as TOML")]
    Toml(#[from] toml::ser::Error),
}
