//! Borrowed examples, from memory or from a token file.

use std::ops::Range;

use crate::example::{Example, sparse_weights};
use crate::location::Source;

/// A borrowed example.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExampleView<'a> {
    pub(crate) ids: &'a [u32],
    loss_mask: LossMask<'a>,
    pub(crate) truncated: bool,
    pub(crate) is_document: bool,
}

#[derive(Debug, Clone, Copy)]
enum LossMask<'a> {
    /// A flag for each token, and its weight unless all are 1.
    Flags(&'a [bool], &'a [f32]),
    /// Ranges in ascending order.
    Ranges(&'a [SupervisedRange]),
}

/// Supervised tokens of one weight: start, end (exclusive), bits of the weight (f32), 0.
pub(crate) type SupervisedRange = [u32; 4];

impl<'a> ExampleView<'a> {
    pub(crate) fn of(example: &'a Example) -> Self {
        let Example { ids, loss_mask, weights, truncated, is_document, .. } = example;
        let loss_mask = LossMask::Flags(loss_mask, weights);
        Self { ids, loss_mask, truncated: *truncated, is_document: *is_document }
    }

    pub(crate) fn in_file(
        ids: &'a [u32],
        ranges: &'a [SupervisedRange],
        truncated: bool,
        is_document: bool,
    ) -> Self {
        Self { ids, loss_mask: LossMask::Ranges(ranges), truncated, is_document }
    }

    /// The supervised tokens in a range, in order, each with its weight.
    pub(crate) fn supervised_in(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (usize, f32)> + use<'a> {
        let (flags, weights, ranges) = match self.loss_mask {
            LossMask::Flags(flags, weights) => (Some(flags), weights, [].as_slice()),
            LossMask::Ranges(ranges) => (None, [].as_slice(), ranges),
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

    /// A copy of the example.
    pub(crate) fn to_example(self, source: Source) -> Example {
        let Self { ids, truncated, is_document, .. } = self;
        let mut loss_mask = vec![false; ids.len()];
        let mut weights = vec![0.0; ids.len()];
        for (token, weight) in self.supervised_in(0..ids.len()) {
            loss_mask[token] = true;
            weights[token] = weight;
        }
        let weights = sparse_weights(&loss_mask, weights);
        Example { ids: ids.to_vec(), loss_mask, weights, source, truncated, is_document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervised_tokens_are_the_same_from_flags_and_ranges() {
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
                loss_mask: flags.to_vec(),
                weights: weights.clone(),
                source: Source::new("x", 1),
                truncated: false,
                is_document: false,
            };
            for view in
                [ExampleView::of(&example), ExampleView::in_file(&[0; 6], &ranges, false, false)]
            {
                let expected = [1, 2, 5].map(|i| (i, weight(i)));
                assert_eq!(view.supervised_in(0..6).collect::<Vec<_>>(), expected);
                assert_eq!(view.supervised_in(2..5).collect::<Vec<_>>(), expected[1..2]);
                assert_eq!(view.to_example(Source::new("x", 1)), example);
            }
        }
    }
}
