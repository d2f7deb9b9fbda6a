//! Tokenizing the rows of files, a few thousand at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{DataError, Fault};
use crate::example::{Example, ExampleOptions, build};
use crate::source::{Read, ReadOptions, Rejects, for_each_batch};
use crate::summary::Summary;
use crate::tokenizer::TextTokenizer;

/// Data files and how to tokenize them.
#[derive(Debug, Clone, Copy)]
pub struct DataFiles<'a> {
    /// The files, in order.
    pub files: &'a [PathBuf],
    /// How rows are read.
    pub read: &'a ReadOptions,
    /// The tokenizer.
    pub tokenizer: &'a TextTokenizer,
    /// How examples are built.
    pub options: &'a ExampleOptions,
}

/// The result of tokenizing a row.
pub(crate) enum Tokenized<'a> {
    /// An example with a supervised token.
    Example(Example),
    /// An invalid row, which the rejects receive too.
    Fault(&'a Fault),
}

impl DataFiles<'_> {
    /// Passes the tokenized rows to `keep`, in order, while the next rows are read. Each batch is tokenized on all cores
    /// and passed on before the next one is taken, so memory holds two batches. Invalid rows go to `rejects`, both those
    /// that can't be read and those that the template can't render. Unless they are skipped, no example is kept after
    /// the first invalid row.
    ///
    /// # Errors
    /// Files that can't be read or have no rows; faults that `rejects` doesn't skip; no example left; an error of `keep`.
    pub(crate) fn tokenize(
        &self,
        rejects: &mut Rejects,
        mut keep: impl FnMut(Tokenized<'_>) -> Result<(), DataError>,
    ) -> Result<Summary, DataError> {
        let Self { files, read, tokenizer, options } = *self;
        let mut summary = Summary::default();
        let mut with_rows: Vec<Arc<Path>> = Vec::new();
        for_each_batch(files, read, |batch: Vec<Read>| {
            let example = |row: Read| {
                let (row, _, record) = row?;
                build(tokenizer, &row, options).map_err(|cause| Fault {
                    source_row: row.source,
                    cause,
                    text: Some(record.json_line().into()),
                })
            };
            let rows: Vec<_> = batch.into_par_iter().map(example).collect();
            for row in rows {
                let source = match &row {
                    Ok(example) => &example.source,
                    Err(fault) => &fault.source_row,
                };
                if with_rows.last().is_none_or(|last| !Arc::ptr_eq(last, &source.file)) {
                    with_rows.push(Arc::clone(&source.file));
                }
                match row {
                    Err(fault) => {
                        if rejects.skips() {
                            keep(Tokenized::Fault(&fault))?;
                        }
                        rejects.take(fault)?;
                    }
                    Ok(example) => {
                        summary.rows += 1;
                        if rejects.needs_rows() && summary.count(&example, options.max_length) {
                            keep(Tokenized::Example(example))?;
                        }
                    }
                }
            }
            Ok::<_, DataError>(())
        })?;
        // Faults are reported before errors that follow from them.
        rejects.check()?;
        if let Some(empty) =
            files.iter().find(|file| with_rows.iter().all(|with| **with != ***file))
        {
            return Err(DataError::EmptyFile { path: empty.clone() });
        }
        if summary.examples == 0 {
            return Err(DataError::NothingToTrain(summary.why_empty(options)));
        }
        Ok(summary)
    }
}
