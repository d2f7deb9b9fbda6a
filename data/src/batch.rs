//! Examples side by side, padded to one length.

use crate::example::Example;

/// A batch: `rows` × `seq`, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Rows.
    pub rows: usize,
    /// Tokens in a row: those of the longest example.
    pub seq: usize,
    /// Tokens, [rows × seq], padded on the right.
    pub ids: Vec<u32>,
    /// Positions within each sequence, [rows × seq]; 0 in padding.
    pub positions: Vec<u32>,
    /// Which sequence of its row a token belongs to, from 1, [rows × seq]; 0 in padding.
    pub segments: Vec<u32>,
    /// What is to be predicted, in the order of the positions.
    pub targets: Vec<Target>,
    /// Indices of the examples in the data set, row by row.
    pub examples: Vec<usize>,
}

/// A token to be predicted, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Flat index (`row · seq + t`) of the position that predicts.
    pub index: usize,
    /// The token it should predict: the next one.
    pub token: u32,
}

impl Batch {
    /// Sets examples, each with its index in the data set, one to a row.
    pub fn collate(examples: &[(usize, &Example)], pad_id: u32) -> Self {
        let rows = examples.len();
        let seq = examples.iter().map(|(_, example)| example.ids.len()).max().unwrap_or(0);
        let mut batch = Self {
            rows,
            seq,
            ids: vec![pad_id; rows * seq],
            positions: vec![0; rows * seq],
            segments: vec![0; rows * seq],
            targets: Vec::new(),
            examples: examples.iter().map(|(index, _)| *index).collect(),
        };
        for (row, (_, example)) in examples.iter().enumerate() {
            let begin = row * seq;
            let range = begin..begin + example.ids.len();
            batch.ids[range.clone()].copy_from_slice(&example.ids);
            batch.segments[range.clone()].fill(1);
            for (slot, position) in batch.positions[range].iter_mut().zip(0..) {
                *slot = position;
            }
            batch.targets.extend(example.supervised_positions().map(|position| Target {
                index: begin + position - 1,
                token: example.ids[position],
            }));
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Source;

    fn example(ids: &[u32], trained: &[bool]) -> Example {
        Example {
            ids: ids.to_vec(),
            trained: trained.to_vec(),
            source: Source::new("x", 1),
            truncated: false,
        }
    }

    #[test]
    fn a_target_stands_where_it_is_predicted_and_padding_has_none() {
        // The padding token is also a target: masked by position, it stays one.
        let a = example(&[5, 6, 9], &[true, false, true]);
        let b = example(&[7, 9], &[false, true]);
        let batch = Batch::collate(&[(4, &a), (2, &b)], 9);
        assert_eq!((batch.rows, batch.seq), (2, 3));
        assert_eq!(batch.ids, [5, 6, 9, 7, 9, 9]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 0]);
        assert_eq!(batch.segments, [1, 1, 1, 1, 1, 0]);
        assert_eq!(batch.targets, [Target { index: 1, token: 9 }, Target { index: 3, token: 9 }]);
        assert_eq!(batch.examples, [4, 2]);
    }
}
