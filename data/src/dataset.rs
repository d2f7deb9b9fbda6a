//! All examples of a data set, and what there is to say about them.

use std::fmt;
use std::num::NonZeroUsize;

use rayon::prelude::*;

use crate::error::{DataError, Faults};
use crate::example::{Example, ExampleOptions, build};
use crate::examples::Examples;
use crate::order::Share;
use crate::row::SourcedRow;
use crate::source::Rejects;
use crate::supervision::TrainOn;
use crate::tokenize::{DataFiles, Made};
use crate::tokenizer::TextTokenizer;

/// Examples in the order of their rows.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The examples; each has at least one target.
    pub examples: Examples,
    /// Counts.
    pub summary: Summary,
    /// Tokens of a row at most, as the examples were made for.
    pub max_length: Option<NonZeroUsize>,
    /// The sources of a mixture, in the order of their examples. Empty if this is none: then each example comes once an
    /// epoch.
    pub shares: Vec<Share>,
}

/// Counts of a data set; shown as one line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows that were given.
    pub rows: usize,
    /// Examples that are kept.
    pub examples: usize,
    /// Tokens of the examples that are kept.
    pub tokens: usize,
    /// Targets among them.
    pub supervised_tokens: usize,
    /// Examples that are kept and were cut at the greatest length.
    pub truncated: usize,
    /// Documents longer than the greatest length, which go on in further rows.
    pub split: usize,
    /// Examples without a target, which are not kept.
    pub dropped: usize,
    /// Dropped ones that lost their targets to the greatest length.
    pub dropped_by_truncation: usize,
    /// Tokens of the longest example that is kept.
    pub longest: usize,
}

impl Dataset {
    /// Tokenizes the rows, on all cores; the order is kept. Examples without a target are dropped and counted.
    ///
    /// # Errors
    /// Rows at fault, up to twenty told at once; no example left.
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
            return Err(DataError::NothingToTrain(summary.why_nothing(options)));
        }
        let (max_length, shares) = (options.max_length, Vec::new());
        Ok(Self { examples: examples.into(), summary, max_length, shares })
    }

    /// Reads and tokenizes files, into memory; of the rows only the tokens are held. Rows at fault go to `rejects`, which
    /// the caller finishes after the last files.
    ///
    /// # Errors
    /// Files that can't be read or hold no row; faults that `rejects` doesn't take; no example left.
    pub fn of_files(data: DataFiles<'_>, rejects: &mut Rejects) -> Result<Self, DataError> {
        let mut examples = Vec::new();
        let summary = data.make(rejects, |made| {
            if let Made::Example(example) = made {
                examples.push(example);
            }
            Ok(())
        })?;
        let (max_length, shares) = (data.options.max_length, Vec::new());
        Ok(Self { examples: examples.into(), summary, max_length, shares })
    }

    /// Joins data sets into a mixture that is drawn from by weights, each finite and greater than 0. What an epoch of it
    /// is, [`Share`] and [`crate::Loader`] say. The greatest length must be the same in all of them.
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

impl Summary {
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.examples += other.examples;
        self.tokens += other.tokens;
        self.supervised_tokens += other.supervised_tokens;
        self.truncated += other.truncated;
        self.split += other.split;
        self.dropped += other.dropped;
        self.dropped_by_truncation += other.dropped_by_truncation;
        self.longest = self.longest.max(other.longest);
    }

    /// Counts an example; whether it is kept.
    pub(crate) fn count(&mut self, example: &Example, max_length: Option<NonZeroUsize>) -> bool {
        let supervised = example.supervised();
        if supervised == 0 {
            self.dropped += 1;
            self.dropped_by_truncation += usize::from(example.truncated);
            return false;
        }
        self.examples += 1;
        self.tokens += example.ids.len();
        self.supervised_tokens += supervised;
        self.truncated += usize::from(example.truncated);
        let is_long = max_length.is_some_and(|most| example.ids.len() > most.get());
        self.split += usize::from(is_long && example.is_document);
        self.longest = self.longest.max(example.ids.len());
        true
    }

    pub(crate) fn why_nothing(&self, options: &ExampleOptions) -> String {
        match options.max_length {
            _ if self.rows == 0 => "there are no rows. Check the data files".into(),
            Some(most) if self.dropped_by_truncation > 0 => format!(
                "{} of {} examples lost all their targets when cut at {most} tokens: the answers begin later. Raise data.max_length",
                self.dropped_by_truncation, self.rows
            ),
            _ if options.train_on == TrainOn::Marked => format!(
                "none of {} examples has a token to learn: all turns are marked not to be trained, or empty",
                self.rows
            ),
            _ => format!(
                "none of {} examples has a token to learn: the answers are empty",
                self.rows
            ),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { examples, tokens, supervised_tokens, longest, .. } = self;
        let noun = if *examples == 1 { "example" } else { "examples" };
        write!(
            f,
            "{examples} {noun}, {tokens} tokens, {supervised_tokens} of them supervised, longest {longest}"
        )?;
        if self.truncated > 0 {
            write!(f, "; {} truncated", self.truncated)?;
        }
        if self.split > 0 {
            write!(f, "; {} split over rows", self.split)?;
        }
        if self.dropped > 0 {
            write!(f, "; {} dropped for want of a target", self.dropped)?;
            if self.dropped_by_truncation > 0 {
                write!(f, " ({} of them by truncation)", self.dropped_by_truncation)?;
            }
        }
        Ok(())
    }
}
