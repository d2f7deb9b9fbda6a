//! Rows of files to examples, some thousand at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::dataset::Summary;
use crate::error::{DataError, Fault};
use crate::example::{Example, ExampleOptions, build};
use crate::source::{Read, ReadOptions, Rejects, for_each_batch};
use crate::tokenizer::TextTokenizer;

/// Files of rows, and what makes examples of them.
#[derive(Debug, Clone, Copy)]
pub struct DataFiles<'a> {
    /// The files, in order.
    pub files: &'a [PathBuf],
    /// How they are read.
    pub read: &'a ReadOptions,
    /// What tokenizes.
    pub tokenizer: &'a TextTokenizer,
    /// How examples are made.
    pub options: &'a ExampleOptions,
}

/// What becomes of a row.
pub(crate) enum Made<'a> {
    /// An example with a target.
    Example(Example),
    /// The row is at fault. It is told to the rejects by itself.
    Fault(&'a Fault),
}

impl DataFiles<'_> {
    /// Gives what is made of the rows to `keep`, in order; the next rows are read meanwhile. Each batch is tokenized on
    /// all cores and given away before the next is taken, so memory holds two of them. Rows at fault go to `rejects`,
    /// those that can't be read and those that can't be written with the template alike; where they end the reading,
    /// nothing is kept any more after the first of them.
    ///
    /// # Errors
    /// Files that can't be read or hold no row; faults that `rejects` doesn't take; no example left; what `keep` fails
    /// with.
    pub(crate) fn make(
        &self,
        rejects: &mut Rejects,
        mut keep: impl FnMut(Made<'_>) -> Result<(), DataError>,
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
            let made: Vec<_> = batch.into_par_iter().map(example).collect();
            for made in made {
                let source = match &made {
                    Ok(example) => &example.source,
                    Err(fault) => &fault.source_row,
                };
                if with_rows.last().is_none_or(|last| !Arc::ptr_eq(last, &source.file)) {
                    with_rows.push(Arc::clone(&source.file));
                }
                match made {
                    Err(fault) => {
                        if rejects.skips() {
                            keep(Made::Fault(&fault))?;
                        }
                        rejects.take(fault)?;
                    }
                    Ok(example) => {
                        summary.rows += 1;
                        if rejects.goes_on() && summary.count(&example, options.max_length) {
                            keep(Made::Example(example))?;
                        }
                    }
                }
            }
            Ok::<_, DataError>(())
        })?;
        // Before what follows from them is told.
        rejects.so_far()?;
        if let Some(empty) =
            files.iter().find(|file| with_rows.iter().all(|with| **with != ***file))
        {
            return Err(DataError::EmptyFile { path: empty.clone() });
        }
        if summary.examples == 0 {
            return Err(DataError::NothingToTrain(summary.why_nothing(options)));
        }
        Ok(summary)
    }
}
