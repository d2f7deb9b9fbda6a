//! Hashes of a run's inputs.

use crate::base::file_hash::Hashing;
use crate::run::error::RunError;
use crate::run::manifest::Source;

/// Hashes of a run's inputs. They are computed in the background, as large files take a while.
pub(crate) struct InputHashes {
    /// Of the tokenized training data.
    pub(crate) rows: String,
    /// Of the base model's files.
    pub(crate) base: Hashing,
    /// Of the data files.
    pub(crate) data: Hashing,
}

impl InputHashes {
    /// The base model's files, waiting for their hashes.
    pub(crate) fn base(&mut self) -> Result<Source, RunError> {
        Ok(Source::new(self.base.files().map_err(RunError::Hashing)?.to_vec()))
    }

    /// The data files, likewise.
    pub(crate) fn data(&mut self) -> Result<Source, RunError> {
        Ok(Source::new(self.data.files().map_err(RunError::Hashing)?.to_vec()))
    }
}
