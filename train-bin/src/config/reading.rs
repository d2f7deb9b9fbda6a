//! How the rows of a run are read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use emberlm_data::{DataError, FieldMap, ReadOptions, Rejects, RowShape, RowTemplates, TextBy};

use super::choice::OnError;

/// How rows are read: the keys of `[data]` beside `format`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// Names of one's own for known fields.
    pub fields: BTreeMap<String, String>,
    /// Template of a prompt.
    pub prompt_template: Option<String>,
    /// Template of what follows it.
    pub completion_template: Option<String>,
    /// Template of a system's message before it.
    pub system_template: Option<String>,
    /// Template of plain text, in place of the others.
    pub text_template: Option<String>,
    /// What is a document in plain text.
    pub text_by: TextBy,
    /// What a row at fault does.
    pub on_error: OnError,
    /// Rows that may be skipped; `None`: any number.
    pub max_errors: Option<usize>,
    /// Where skipped rows are written.
    pub rejects: Option<PathBuf>,
}

impl Reading {
    /// The data crate's options; `format` is the name of a format.
    ///
    /// # Errors
    /// A format, field or template that is none.
    pub fn options(&self, format: &str) -> Result<ReadOptions, DataError> {
        let templates = RowTemplates::new(
            self.system_template.as_deref(),
            self.prompt_template.as_deref(),
            self.completion_template.as_deref(),
            self.text_template.as_deref(),
        )?;
        let fields = FieldMap::new(self.fields.clone())?;
        let shape = match templates {
            Some(templates) => RowShape::Templates(templates),
            None if !self.fields.is_empty() => RowShape::Fields(fields),
            None => RowShape::Keys(format.parse()?),
        };
        Ok(ReadOptions { shape, text_by: self.text_by })
    }

    /// What takes the rows at fault.
    ///
    /// # Errors
    /// A file of rejects that cannot be written.
    pub fn takes_faults(&self) -> Result<Rejects, DataError> {
        let on_error = match self.on_error {
            OnError::Fail => emberlm_data::OnError::Fail,
            OnError::Skip => emberlm_data::OnError::Skip { limit: self.max_errors },
        };
        let rejects = self.rejects.as_deref().filter(|_| self.on_error == OnError::Skip);
        Rejects::new(on_error, rejects)
    }
}
