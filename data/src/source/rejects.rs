//! What becomes of rows at fault: they end the reading, or are skipped, counted and written down.

use std::path::Path;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::error::{DataError, Fault, Faults, RowError};
use crate::output::LineWriter;
use crate::row::Source;

/// What a row at fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(tag = "on_error", rename_all = "lowercase")]
pub enum OnError {
    /// It is an error; all are found first.
    #[default]
    Fail,
    /// It is skipped, up to a limit.
    Skip {
        /// Rows that may be skipped; `None`: any number.
        #[serde(rename = "max_errors", serialize_with = "or_false")]
        limit: Option<usize>,
    },
}

fn or_false<S: Serializer>(limit: &Option<usize>, serializer: S) -> Result<S::Ok, S::Error> {
    match limit {
        Some(limit) => limit.serialize(serializer),
        None => false.serialize(serializer),
    }
}

impl ValueEnum for OnError {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Fail, Self::Skip { limit: None }]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Fail => {
                PossibleValue::new("fail").help("Stop with an error that names all of them")
            }
            Self::Skip { .. } => PossibleValue::new("skip").help("Skip the row"),
        })
    }
}

/// Takes the rows at fault.
#[derive(Debug)]
pub struct Rejects {
    on_error: OnError,
    faults: Faults,
    file: Option<LineWriter>,
}

impl Rejects {
    /// Takes faults as `on_error` says; with `file`, skipped ones are written there as JSON Lines of `file`, `line`,
    /// `reason` and `row`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn new(on_error: OnError, file: Option<&Path>) -> Result<Self, DataError> {
        let file = file.map(LineWriter::create).transpose()?;
        Ok(Self { on_error, faults: Faults::default(), file })
    }

    /// Takes a fault.
    ///
    /// # Errors
    /// More faults than the limit, or one that ends the file: rows were lost that nobody has seen.
    pub fn take(&mut self, fault: Fault) -> Result<(), DataError> {
        if let Some(file) = &mut self.file {
            file.value(&reject(
                &fault.source_row,
                &fault.cause.to_string(),
                fault.text.as_deref(),
            ))?;
        }
        if fault.ends_file() && self.on_error != OnError::Fail {
            return Err(DataError::Faults(Faults { told: vec![fault], untold: 0 }));
        }
        self.faults.push_fault(fault);
        match self.on_error {
            OnError::Fail => Ok(()),
            OnError::Skip { limit: Some(limit) } if self.faults.count() > limit => {
                Err(DataError::TooManyFaults { limit, faults: std::mem::take(&mut self.faults) })
            }
            OnError::Skip { .. } => Ok(()),
        }
    }

    /// Whether rows at fault are skipped.
    pub(crate) fn skips(&self) -> bool {
        self.on_error != OnError::Fail
    }

    /// Whether what is read is of use yet: not after a fault that will be an error.
    pub(crate) fn goes_on(&self) -> bool {
        self.skips() || self.faults.is_empty()
    }

    /// Whether reading may go on to what needs all rows, between two lists of files.
    ///
    /// # Errors
    /// All faults so far, unless they may be skipped.
    pub fn so_far(&mut self) -> Result<(), DataError> {
        if self.on_error == OnError::Fail && !self.faults.is_empty() {
            return Err(DataError::Faults(std::mem::take(&mut self.faults)));
        }
        Ok(())
    }

    /// What was skipped, after the last row.
    ///
    /// # Errors
    /// All faults, unless they may be skipped; a file that cannot be written.
    pub fn finish(self) -> Result<Faults, DataError> {
        if let Some(file) = self.file {
            file.commit()?;
        }
        match self.on_error {
            OnError::Fail if !self.faults.is_empty() => Err(DataError::Faults(self.faults)),
            _ => Ok(self.faults),
        }
    }
}

/// A line of a file of rejects: the row as JSON if it is that, else as a string.
pub(crate) fn reject(source: &Source, reason: &str, row: Option<&str>) -> Value {
    let row = row.map(|text| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|_| Value::String(text.to_owned()))
    });
    json!({
        "file": source.file.to_string_lossy(),
        "line": source.line,
        "reason": reason,
        "row": row,
    })
}

/// The fault that a line of rejects tells of.
pub(crate) fn rejected(line: &Value) -> Option<Fault> {
    let text = match &line["row"] {
        Value::Null => None,
        Value::String(text) => Some(text.as_str().into()),
        row => Some(row.to_string().into()),
    };
    let source_row = Source {
        file: Path::new(line["file"].as_str()?).into(),
        line: usize::try_from(line["line"].as_u64()?).ok()?,
    };
    let cause = RowError::Told(line["reason"].as_str()?.to_owned());
    Some(Fault { source_row, cause, text })
}
