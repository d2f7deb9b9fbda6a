//! Splitting rows into training and evaluation data, and checking for leaks between them.

mod assign;
mod leak;
mod mask;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use assign::{EvalSize, SplitBy};
pub use leak::{LeakOptions, LeakPair, LeakReport, leaks};
pub use mask::{EntityKind, MaskOptions, MaskReport, mask};

use crate::error::{DataError, Fault};
use crate::output::LineWriter;
use crate::source::{ReadOptions, ReadRow, Rejects, for_each_batch};
use assign::Keys;

/// The report of a split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SplitReport {
    /// Rows that were split.
    pub rows: u64,
    /// Training rows.
    pub train: u64,
    /// Evaluation rows.
    pub eval: u64,
    /// Invalid rows that were skipped.
    pub skipped: u64,
}

/// Splits the rows of files into two JSON Lines files, unchanged and in order. The files are read twice: first the field
/// to split by (kept in memory: nothing, eight bytes per row, or some bytes per group), then the rows.
///
/// # Errors
/// A file that cannot be opened or written; invalid rows that `rejects` does not skip, including rows without the field; a
/// size that leaves one file empty.
pub fn split(
    files: &[PathBuf],
    read: &ReadOptions,
    by: &SplitBy,
    size: &EvalSize,
    mut rejects: Rejects,
    [train, eval]: [&Path; 2],
) -> Result<SplitReport, DataError> {
    let mut keys = Keys::new(by);
    let mut rows = 0;
    for_each_batch(files, read, |batch| {
        for row in batch {
            match row.and_then(|row| with_key(row, |value| keys.take(value))) {
                Ok(_) => rows += 1,
                Err(fault) => rejects.take(fault)?,
            }
        }
        Ok::<_, DataError>(())
    })?;
    let skipped = rejects.finish()?.count() as u64;
    if rows == 0 {
        return Err(DataError::NothingToTrain("there are no rows. Check the data files".into()));
    }
    let mut assign = keys.assign(size, rows)?;
    let [mut to_train, mut to_eval] = [LineWriter::create(train)?, LineWriter::create(eval)?];
    for_each_batch(files, read, |batch| {
        for row in batch {
            let mut held = false;
            let keyed = row.and_then(|row| {
                with_key(row, |value| {
                    held = assign.is_held(value)?;
                    Ok(())
                })
            });
            // Invalid rows were reported in the first pass.
            if let Ok((_, _, record)) = keyed {
                let to = if held { &mut to_eval } else { &mut to_train };
                to.line(&record.json_line())?;
            }
        }
        Ok::<_, DataError>(())
    })?;
    let report = SplitReport { rows, train: to_train.lines(), eval: to_eval.lines(), skipped };
    if report.train == 0 || report.eval == 0 {
        let side = if report.train == 0 { "training" } else { "evaluation" };
        return Err(DataError::NothingToTrain(format!(
            "the split leaves no {side} rows. Choose another size or field"
        )));
    }
    to_train.commit()?;
    to_eval.commit()?;
    Ok(report)
}

fn with_key(
    row: ReadRow,
    key: impl FnOnce(&serde_json::Value) -> Result<(), crate::error::RowError>,
) -> Result<ReadRow, Fault> {
    match key(&row.2.value) {
        Ok(()) => Ok(row),
        Err(cause) => Err(Fault {
            source_row: row.2.source.clone(),
            cause,
            text: Some(row.2.json_line().into()),
        }),
    }
}

#[cfg(test)]
mod tests;
