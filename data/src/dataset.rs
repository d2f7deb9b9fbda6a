//! A tokenized data set.

use std::num::NonZeroUsize;

use rayon::prelude::*;

use crate::error::{DataError, Faults};
use crate::example::{ExampleOptions, build};
use crate::examples::Examples;
use crate::order::Share;
use crate::row::SourcedRow;
use crate::source::Rejects;
use crate::summary::Summary;
use crate::tokenize::{DataFiles, Tokenized};
use crate::tokenizer::TextTokenizer;

/// Examples in the order of their rows.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The examples, each with at least one supervised token.
    pub examples: Examples,
    /// Counts.
    pub summary: Summary,
    /// Maximum tokens of a row, as used for the examples.
    pub max_length: Option<NonZeroUsize>,
    /// The sources of a mixture, in the order of their examples. Empty if this isn't a mixture: then an epoch is each
    /// example once.
    pub shares: Vec<Share>,
}

impl Dataset {
    /// Tokenizes rows on all cores, in order. Examples without a supervised token are dropped and counted.
    ///
    /// # Errors
    /// Invalid rows, of which the first twenty are listed; no example left.
    pub fn build(
        rows: impl AsRef<[SourcedRow]>,
        tokenizer: &TextTokenizer,
        options: &ExampleOptions,
    ) -> Result<Self, DataError> {
        let rows = rows.as_ref();
        let built: Vec<_> = rows.par_iter().map(|row| build(tokenizer, row, options)).collect();
        let mut faults = Faults::default();
        let mut examples = Vec::with_capacity(rows.len());
        let mut summary = Summary { rows: rows.len(), ..Summary::default() };
        for (row, result) in rows.iter().zip(built) {
            match result {
                Err(cause) => faults.push(row.source.clone(), cause),
                Ok(example) => {
                    if summary.count(&example, options.max_length) {
                        examples.push(example);
                    }
                }
            }
        }
        if !faults.is_empty() {
            return Err(DataError::Faults(faults));
        }
        if examples.is_empty() {
            return Err(DataError::NothingToTrain(summary.why_empty(options)));
        }
        let (max_length, shares) = (options.max_length, Vec::new());
        Ok(Self { examples: examples.into(), summary, max_length, shares })
    }

    /// Reads and tokenizes files into memory, keeping only the tokens. Invalid rows go to `rejects`, which the caller
    /// finishes after the last files.
    ///
    /// # Errors
    /// Files that can't be read or have no rows; faults that `rejects` doesn't skip; no example left.
    pub fn of_files(data: DataFiles<'_>, rejects: &mut Rejects) -> Result<Self, DataError> {
        let mut examples = Vec::new();
        let summary = data.tokenize(rejects, |row| {
            if let Tokenized::Example(example) = row {
                examples.push(example);
            }
            Ok(())
        })?;
        let (max_length, shares) = (data.options.max_length, Vec::new());
        Ok(Self { examples: examples.into(), summary, max_length, shares })
    }

    /// Joins data sets into a mixture that is sampled by weights, each finite and greater than 0. [`crate::Loader`]
    /// defines an epoch of it. The maximum length must be the same in all of them.
    pub fn mixture(sources: impl IntoIterator<Item = (Self, f64)>) -> Self {
        let mut all = Self {
            examples: Examples::default(),
            summary: Summary::default(),
            max_length: None,
            shares: Vec::new(),
        };
        let mut parts = Vec::new();
        for (data, weight) in sources {
            all.shares.push(Share { examples: data.examples.len(), weight });
            parts.push(data.examples);
            all.summary.add(&data.summary);
            all.max_length = all.max_length.max(data.max_length);
        }
        all.examples = parts.into_iter().collect();
        all
    }
}
