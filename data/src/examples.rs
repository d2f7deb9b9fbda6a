//! The examples of a data set, wherever their tokens lie.

use std::ops::Range;
use std::sync::Arc;

use crate::example::{Example, told_weights};
use crate::row::Source;
use crate::token_file::TokenFile;

/// Examples in order: held in memory, or in token files that are mapped into it and read as they are needed.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    parts: Vec<Part>,
    /// Index of each part's first example.
    starts: Vec<usize>,
    len: usize,
}

#[derive(Debug, Clone)]
enum Part {
    Memory(Arc<Vec<Example>>),
    File(Arc<TokenFile>),
}

/// An example where it lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) ids: &'a [u32],
    trained: Trained<'a>,
    pub(crate) truncated: bool,
    pub(crate) is_document: bool,
}

#[derive(Debug, Clone, Copy)]
enum Trained<'a> {
    /// Of each token; and the weight of each, unless all are 1.
    Flags(&'a [bool], &'a [f32]),
    /// In order.
    Ranges(&'a [TrainedRange]),
}

/// Tokens that are trained: the first, one past the last, the bits of their weight (f32), and 0.
pub(crate) type TrainedRange = [u32; 4];

impl<'a> View<'a> {
    pub(crate) fn of(example: &'a Example) -> Self {
        let Example { ids, trained, weights, truncated, is_document, .. } = example;
        let trained = Trained::Flags(trained, weights);
        Self { ids, trained, truncated: *truncated, is_document: *is_document }
    }

    pub(crate) fn in_file(
        ids: &'a [u32],
        ranges: &'a [TrainedRange],
        truncated: bool,
        is_document: bool,
    ) -> Self {
        Self { ids, trained: Trained::Ranges(ranges), truncated, is_document }
    }

    /// The tokens of a range that are trained, in order, each with its weight.
    pub(crate) fn trained_in(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (usize, f32)> + use<'a> {
        let (flags, weights, ranges) = match self.trained {
            Trained::Flags(flags, weights) => (Some(flags), weights, [].as_slice()),
            Trained::Ranges(ranges) => (None, [].as_slice(), ranges),
        };
        let of_ranges = ranges.iter().flat_map({
            let range = range.clone();
            move |&[start, end, weight, _]| {
                let tokens = range.start.max(start as usize)..range.end.min(end as usize);
                tokens.map(move |token| (token, f32::from_bits(weight)))
            }
        });
        flags
            .into_iter()
            .flat_map(move |flags| range.clone().filter(|&i| flags[i]))
            .map(|i| (i, weights.get(i).copied().unwrap_or(1.0)))
            .chain(of_ranges)
    }

    fn to_example(self, source: Source) -> Example {
        let Self { ids, truncated, is_document, .. } = self;
        let mut trained = vec![false; ids.len()];
        let mut weights = vec![0.0; ids.len()];
        for (token, weight) in self.trained_in(0..ids.len()) {
            trained[token] = true;
            weights[token] = weight;
        }
        let weights = told_weights(&trained, weights);
        Example { ids: ids.to_vec(), trained, weights, source, truncated, is_document }
    }
}

impl From<Vec<Example>> for Examples {
    fn from(examples: Vec<Example>) -> Self {
        let mut all = Self::default();
        all.push(examples.len(), Part::Memory(Arc::new(examples)));
        all
    }
}

impl From<TokenFile> for Examples {
    fn from(file: TokenFile) -> Self {
        let mut all = Self::default();
        all.push(file.len(), Part::File(Arc::new(file)));
        all
    }
}

impl FromIterator<Self> for Examples {
    fn from_iter<I: IntoIterator<Item = Self>>(parts: I) -> Self {
        let mut all = Self::default();
        for examples in parts {
            let lengths: Vec<usize> =
                (0..examples.parts.len()).map(|n| examples.len_of(n)).collect();
            for (part, len) in examples.parts.into_iter().zip(lengths) {
                all.push(len, part);
            }
        }
        all
    }
}

impl Examples {
    fn push(&mut self, len: usize, part: Part) {
        self.parts.push(part);
        self.starts.push(self.len);
        self.len += len;
    }

    fn len_of(&self, part: usize) -> usize {
        self.starts.get(part + 1).copied().unwrap_or(self.len) - self.starts[part]
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An example, copied.
    ///
    /// # Panics
    /// If there is no such example.
    pub fn get(&self, index: usize) -> Example {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => examples[at].clone(),
            Part::File(file) => file.view(at).to_example(file.source(at)),
        }
    }

    /// All of them, one after another, each copied.
    pub fn iter(&self) -> impl Iterator<Item = Example> + '_ {
        (0..self.len).map(|index| self.get(index))
    }

    /// Where an example's row stands.
    ///
    /// # Panics
    /// If there is no such example.
    pub fn source(&self, index: usize) -> Source {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => examples[at].source.clone(),
            Part::File(file) => file.source(at),
        }
    }

    /// An example where it lies.
    pub(crate) fn view(&self, index: usize) -> View<'_> {
        let (part, at) = self.place(index);
        match part {
            Part::Memory(examples) => View::of(&examples[at]),
            Part::File(file) => file.view(at),
        }
    }

    fn place(&self, index: usize) -> (&Part, usize) {
        assert!(index < self.len, "example {index} of {}", self.len);
        // Empty parts begin where the next one does.
        let part = self.starts.partition_point(|start| *start <= index) - 1;
        (&self.parts[part], index - self.starts[part])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_one_after_another() {
        let example = |line| Example {
            ids: vec![7; line],
            trained: vec![true; line],
            weights: Vec::new(),
            source: Source::new("x", line),
            truncated: false,
            is_document: false,
        };
        let parts = [vec![example(1), example(2)], vec![], vec![example(3)]];
        let all: Examples = parts.into_iter().map(Examples::from).collect();
        assert_eq!((all.len(), all.is_empty()), (3, false));
        let lines: Vec<usize> = all.iter().map(|example| example.source.line).collect();
        assert_eq!(lines, [1, 2, 3]);
        assert_eq!(all.get(2), example(3));
        let again: Examples = [all.clone(), all].into_iter().collect();
        assert_eq!((again.len(), again.source(4).line), (6, 2));
    }

    #[test]
    fn trained_tokens_are_those_of_flags_or_ranges() {
        let flags = [false, true, true, false, false, true];
        let [one, half] = [1f32, 0.5].map(f32::to_bits);
        for (weights, ranges) in [
            (vec![], [[1, 2, one, 0], [2, 3, one, 0], [5, 6, one, 0]]),
            (
                vec![0.0, 0.5, 1.0, 0.0, 0.0, 0.5],
                [[1, 2, half, 0], [2, 3, one, 0], [5, 6, half, 0]],
            ),
        ] {
            let weight = |i: usize| weights.get(i).copied().unwrap_or(1.0);
            let example = Example {
                ids: vec![0; 6],
                trained: flags.to_vec(),
                weights: weights.clone(),
                source: Source::new("x", 1),
                truncated: false,
                is_document: false,
            };
            for view in [View::of(&example), View::in_file(&[0; 6], &ranges, false, false)] {
                let expected = [1, 2, 5].map(|i| (i, weight(i)));
                assert_eq!(view.trained_in(0..6).collect::<Vec<_>>(), expected);
                assert_eq!(view.trained_in(2..5).collect::<Vec<_>>(), expected[1..2]);
                assert_eq!(view.to_example(Source::new("x", 1)), example);
            }
        }
    }
}
