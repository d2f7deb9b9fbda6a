//! Counts of a data set.

use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::example::{Example, ExampleOptions};
use crate::supervision::TrainOn;

/// Counts of a data set, displayed as one line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Rows read.
    pub rows: usize,
    /// Examples.
    pub examples: usize,
    /// Tokens of the examples.
    pub tokens: usize,
    /// Supervised tokens among them.
    pub supervised_tokens: usize,
    /// Examples that were truncated to the maximum length.
    pub truncated: usize,
    /// Documents longer than the maximum length, which are split over rows.
    pub split: usize,
    /// Rows without a supervised token, which make no example.
    pub dropped: usize,
    /// Dropped rows whose supervised tokens were all truncated.
    pub dropped_by_truncation: usize,
    /// Tokens of the longest example.
    pub longest: usize,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
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

    /// Counts an example and returns whether it is kept.
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

    /// Why no example is left, for an error message.
    pub(crate) fn why_empty(&self, options: &ExampleOptions) -> String {
        match options.max_length {
            _ if self.rows == 0 => "there are no rows. Check the data files".into(),
            Some(most) if self.dropped_by_truncation > 0 => format!(
                "{} of {} examples have no supervised token within the first {most} tokens: the answers start later. Raise data.max_length",
                self.dropped_by_truncation, self.rows
            ),
            _ if options.train_on == TrainOn::Marked => format!(
                "none of {} examples has a token to train on: all turns are empty or marked with weight 0 or train false",
                self.rows
            ),
            _ => format!(
                "none of {} examples has a token to train on: the answers are empty",
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
            "{examples} {noun}, {tokens} tokens, {supervised_tokens} trained on, longest {longest}"
        )?;
        if self.truncated > 0 {
            write!(f, "; {} truncated", self.truncated)?;
        }
        if self.split > 0 {
            write!(f, "; {} split over rows", self.split)?;
        }
        if self.dropped > 0 {
            write!(f, "; {} dropped without supervised tokens", self.dropped)?;
            if self.dropped_by_truncation > 0 {
                write!(f, " ({} of them truncated)", self.dropped_by_truncation)?;
            }
        }
        Ok(())
    }
}
