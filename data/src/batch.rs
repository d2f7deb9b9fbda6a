//! Batches: rows of examples, padded to one length.

use std::ops::Range;

use crate::example::Example;
use crate::example_view::ExampleView;
use crate::examples::Examples;
use crate::packing::Piece;

/// A batch: `rows` × `seq`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of rows.
    pub rows: usize,
    /// Tokens of a row: those of the longest one.
    pub seq: usize,
    /// Tokens, [rows × seq], padded on the right.
    pub ids: Vec<u32>,
    /// Positions within each sequence, [rows × seq]; 0 in padding.
    pub positions: Vec<u32>,
    /// Number of each token's sequence in its row, from 1, [rows × seq]; 0 in padding.
    pub segments: Vec<u32>,
    /// The tokens to predict, in the order of the positions.
    pub targets: Vec<Target>,
    /// Indices of the examples in the data set, one for each sequence, row by row.
    pub examples: Vec<usize>,
}

/// A token to predict and the position that predicts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Flat index (`row · seq + t`) of the position that predicts.
    pub index: usize,
    /// The token it should predict: the next one of the same sequence.
    pub token: u32,
    /// Weight of its loss, greater than 0; 1 unless the data sets weights.
    pub weight: f32,
}

impl Target {
    /// A target of weight 1.
    pub fn new(index: usize, token: u32) -> Self {
        Self { index, token, weight: 1.0 }
    }
}

impl Batch {
    /// A batch with one example per row, each given with its index in the data set.
    pub fn collate(examples: &[(usize, &Example)], pad_id: u32) -> Self {
        fn whole(index: usize, example: &Example) -> Vec<(Piece, ExampleView<'_>)> {
            vec![(
                Piece { example: index, start: 0, end: example.ids.len() },
                ExampleView::of(example),
            )]
        }
        let rows: Vec<_> = examples.iter().map(|&(index, example)| whole(index, example)).collect();
        Self::from_views(&rows, pad_id)
    }

    /// A batch of rows of pieces of `examples`. Each piece is a separate sequence: its positions start at 0, and its
    /// first token is not predicted.
    ///
    /// # Panics
    /// If a piece is out of range.
    pub fn of_rows(rows: &[Vec<Piece>], examples: &Examples, pad_id: u32) -> Self {
        let with_example = |piece: &Piece| (*piece, examples.view(piece.example));
        let rows: Vec<Vec<(Piece, ExampleView<'_>)>> =
            rows.iter().map(|row| row.iter().map(with_example).collect()).collect();
        Self::from_views(&rows, pad_id)
    }

    fn from_views(rows: &[Vec<(Piece, ExampleView<'_>)>], pad_id: u32) -> Self {
        let tokens =
            |row: &Vec<(Piece, ExampleView<'_>)>| row.iter().map(|(piece, _)| piece.len()).sum();
        let seq = rows.iter().map(tokens).max().unwrap_or(0);
        let mut batch = Self {
            rows: rows.len(),
            seq,
            ids: vec![pad_id; rows.len() * seq],
            positions: vec![0; rows.len() * seq],
            segments: vec![0; rows.len() * seq],
            targets: Vec::new(),
            examples: Vec::new(),
        };
        for (row, pieces) in rows.iter().enumerate() {
            let mut start = row * seq;
            for ((piece, example), segment) in pieces.iter().zip(1..) {
                batch.place(piece, example, start, segment);
                start += piece.len();
            }
        }
        batch
    }

    fn place(&mut self, piece: &Piece, example: &ExampleView<'_>, start: usize, segment: u32) {
        let range = start..start + piece.len();
        self.ids[range.clone()].copy_from_slice(&example.ids[piece.start..piece.end]);
        self.segments[range.clone()].fill(segment);
        for (slot, position) in self.positions[range].iter_mut().zip(0..) {
            *slot = position;
        }
        let supervised = example.supervised_in(piece.start + 1..piece.end);
        self.targets.extend(supervised.map(|(token, weight)| Target {
            index: start + token - piece.start - 1,
            token: example.ids[token],
            weight,
        }));
        self.examples.push(piece.example);
    }

    /// Number of tokens without padding.
    pub fn tokens(&self) -> usize {
        self.segments.iter().filter(|&&segment| segment > 0).count()
    }

    /// Sum of the targets' weights, by which the sum of their losses is divided: their number, unless the data sets
    /// weights.
    pub fn weight(&self) -> f64 {
        self.targets.iter().map(|target| f64::from(target.weight)).sum()
    }

    /// Range of each sequence in the batch's tokens (`row · seq + t`), in the order of [`examples`](Self::examples).
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let rows = self.segments.chunks(self.seq.max(1)).enumerate();
        rows.flat_map(|(row, segments)| {
            let mut start = row * self.seq;
            segments.chunk_by(|a, b| a == b).filter_map(move |run| {
                let range = start..start + run.len();
                start = range.end;
                (run[0] > 0).then_some(range)
            })
        })
    }

    /// Each sequence as a batch of one row without padding, in the order of [`examples`](Self::examples).
    pub fn sequences(&self) -> impl Iterator<Item = Self> {
        self.ranges().zip(&self.examples).map(|(range, &example)| Self {
            rows: 1,
            seq: range.len(),
            ids: self.ids[range.clone()].to_vec(),
            positions: self.positions[range.clone()].to_vec(),
            segments: vec![1; range.len()],
            targets: self
                .targets
                .iter()
                .filter(|target| range.contains(&target.index))
                .map(|target| Target { index: target.index - range.start, ..*target })
                .collect(),
            examples: vec![example],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Source;

    fn example(ids: &[u32], loss_mask: &[bool]) -> Example {
        Example {
            ids: ids.to_vec(),
            loss_mask: loss_mask.to_vec(),
            weights: Vec::new(),
            source: Source::new("x", 1),
            truncated: false,
            is_document: false,
        }
    }

    fn piece(example: usize, start: usize, end: usize) -> Piece {
        Piece { example, start, end }
    }

    #[test]
    fn targets_are_at_the_position_that_predicts_them_and_padding_has_none() {
        // The padding token is also a target: masked by position, it stays one.
        let a = example(&[5, 6, 9], &[true, false, true]);
        let b = example(&[7, 9], &[false, true]);
        let batch = Batch::collate(&[(4, &a), (2, &b)], 9);
        assert_eq!((batch.rows, batch.seq), (2, 3));
        assert_eq!(batch.ids, [5, 6, 9, 7, 9, 9]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 0]);
        assert_eq!(batch.segments, [1, 1, 1, 1, 1, 0]);
        assert_eq!(batch.targets, [Target::new(1, 9), Target::new(3, 9)]);
        assert_eq!(batch.examples, [4, 2]);
        assert_eq!(batch.weight(), 2.0);

        let heavy = Example { weights: vec![0.25, 0.0, 2.5], ..a };
        let batch = Batch::collate(&[(4, &heavy), (2, &b)], 9);
        assert_eq!(batch.targets, [Target { weight: 2.5, ..Target::new(1, 9) }, Target::new(3, 9)]);
        assert_eq!(batch.weight(), 3.5);
    }

    #[test]
    fn no_target_is_predicted_from_another_example() {
        // Every token is supervised, also the first of each example: it must not be predicted from another example.
        let examples = vec![
            example(&[5, 6, 7], &[true; 3]),
            example(&[8, 9], &[true; 2]),
            example(&[4], &[true]),
        ];
        let examples = Examples::from(examples);
        let rows = [vec![piece(0, 0, 3), piece(1, 0, 2)], vec![piece(2, 0, 1), piece(0, 1, 3)]];
        let batch = Batch::of_rows(&rows, &examples, 0);
        assert_eq!(batch.ids, [5, 6, 7, 8, 9, 4, 6, 7, 0, 0]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 0, 0, 1, 0, 0]);
        assert_eq!(batch.segments, [1, 1, 1, 2, 2, 1, 2, 2, 0, 0]);
        let targets: Vec<_> = batch.targets.iter().map(|t| (t.index, t.token)).collect();
        assert_eq!(targets, [(0, 6), (1, 7), (3, 9), (6, 7)]);
        assert_eq!(batch.examples, [0, 1, 2, 0]);
        assert_eq!(batch.tokens(), 8);

        let alone: Vec<Batch> = batch.sequences().collect();
        assert_eq!(alone.len(), 4);
        assert_eq!(alone[1], Batch::of_rows(&[vec![piece(1, 0, 2)]], &examples, 0));
        assert_eq!(alone[3], Batch::of_rows(&[vec![piece(0, 1, 3)]], &examples, 0));
    }
}
