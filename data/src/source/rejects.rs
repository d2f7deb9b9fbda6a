//! Handling invalid rows: stop with an error, or skip, count and record them.

use std::path::Path;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::error::{DataError, Fault, Faults, RowError};
use crate::location::Source;
use crate::output::LineWriter;

/// How invalid rows are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(tag = "on_error", rename_all = "lowercase")]
pub enum OnError {
    /// Stop with an error that lists all invalid rows.
    #[default]
    Fail,
    /// Skip invalid rows, up to a limit.
    Skip {
        /// Maximum number of skipped rows; `None`: no maximum.
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
                PossibleValue::new("fail").help("Stop with an error that lists all invalid rows")
            }
            Self::Skip { .. } => PossibleValue::new("skip").help("Skip invalid rows"),
        })
    }
}

/// Collects invalid rows.
#[derive(Debug)]
pub struct Rejects {
    on_error: OnError,
    faults: Faults,
    file: Option<LineWriter>,
}

impl Rejects {
    /// Handles faults as `on_error` says. They are also written to `file`, if given, as JSON Lines with `file`, `line`,
    /// `reason` and `row`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn new(on_error: OnError, file: Option<&Path>) -> Result<Self, DataError> {
        let file = file.map(LineWriter::create).transpose()?;
        Ok(Self { on_error, faults: Faults::default(), file })
    }

    /// Adds an invalid row.
    ///
    /// # Errors
    /// More faults than the limit; a fault that loses the rest of the file.
    pub fn take(&mut self, fault: Fault) -> Result<(), DataError> {
        if let Some(file) = &mut self.file {
            file.value(&reject_line(
                &fault.source_row,
                &fault.cause.to_string(),
                fault.text.as_deref(),
            ))?;
        }
        if fault.ends_file() && self.on_error != OnError::Fail {
            return Err(DataError::Faults(fault.into()));
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

    /// Whether invalid rows are skipped.
    pub(crate) fn skips(&self) -> bool {
        self.on_error != OnError::Fail
    }

    /// Whether further rows are needed: not after a fault that will be reported as an error.
    pub(crate) fn needs_rows(&self) -> bool {
        self.skips() || self.faults.is_empty()
    }

    /// Stops before work that needs all rows, such as after the first of two lists of files.
    ///
    /// # Errors
    /// The faults so far, unless they are skipped.
    pub fn check(&mut self) -> Result<(), DataError> {
        if self.on_error == OnError::Fail && !self.faults.is_empty() {
            return Err(DataError::Faults(std::mem::take(&mut self.faults)));
        }
        Ok(())
    }

    /// The skipped rows, after the last file.
    ///
    /// # Errors
    /// The faults, unless they are skipped; a file that cannot be written.
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

/// A line of a file of rejects. The row is JSON if it parses, else a string.
pub(crate) fn reject_line(source: &Source, reason: &str, row: Option<&str>) -> Value {
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

/// The fault that a line of rejects describes.
pub(crate) fn from_reject_line(line: &Value) -> Option<Fault> {
    let text = match &line["row"] {
        Value::Null => None,
        Value::String(text) => Some(text.as_str().into()),
        row => Some(row.to_string().into()),
    };
    let source_row = Source {
        file: Path::new(line["file"].as_str()?).into(),
        line: usize::try_from(line["line"].as_u64()?).ok()?,
    };
    let cause = RowError::Recorded(line["reason"].as_str()?.to_owned());
    Some(Fault { source_row, cause, text })
}
