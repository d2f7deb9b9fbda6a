//! Packing examples into rows.
//!
//! Examples are packed by first-fit-decreasing (Johnson 1973: about 11/9 of the minimum number of rows at most), in windows
//! of [`WINDOW`] examples in the order of the epoch, so that the order stays random across windows and the time is
//! `O(n log n)`. Documents of plain text are concatenated instead, and continue in the next row if one is full.

/// The tokens of an example that are in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Index of the example.
    pub example: usize,
    /// Its first token in the row.
    pub start: usize,
    /// End of its tokens in the row (exclusive). Only documents longer than a row are split.
    pub end: usize,
}

impl Piece {
    /// Number of tokens.
    #[expect(clippy::len_without_is_empty, reason = "a piece is never empty")]
    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// Examples that are packed with each other. Some thousand fill rows to a percent or so, and more would fill no better.
pub(crate) const WINDOW: usize = 4096;

/// Lays items of these lengths, at most `capacity` each, into bins, the longest first, each into the first bin that has
/// room. A longer one gets a bin of its own. Bins hold indices of items.
pub(crate) fn first_fit_decreasing(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<usize> = (0..lengths.len()).collect();
    items.sort_by_key(|&item| std::cmp::Reverse(lengths[item]));
    let mut rooms = Rooms::new(lengths.len(), capacity);
    let mut bins: Vec<Vec<usize>> = Vec::new();
    for item in items {
        let bin = rooms.take(lengths[item].min(capacity));
        if bin == bins.len() {
            bins.push(Vec::new());
        }
        bins[bin].push(item);
    }
    bins
}

/// The room that is left in each bin, as a tree of maxima: the first bin with enough is found in log n.
struct Rooms {
    leaves: usize,
    tree: Vec<usize>,
}

impl Rooms {
    fn new(bins: usize, capacity: usize) -> Self {
        let leaves = bins.next_power_of_two();
        Self { leaves, tree: vec![capacity; 2 * leaves] }
    }

    /// Takes room in the first bin that has it; as many bins as items always suffice.
    fn take(&mut self, length: usize) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.tree[node] < length {
                node += 1;
            }
        }
        self.tree[node] -= length;
        let bin = node - self.leaves;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].max(self.tree[2 * node + 1]);
        }
        bin
    }
}

/// Concatenates documents, given by index and length, into rows of `capacity` tokens.
///
/// A document that continues in another row repeats its last token there, as context, so every token except a document's
/// first is predicted exactly once, from its own document, for any capacity. Room for a single token stays empty, as such
/// a piece would have nothing to predict.
pub(crate) fn joined(
    documents: impl Iterator<Item = (usize, usize)>,
    capacity: usize,
) -> Vec<Vec<Piece>> {
    // A row of one token predicts nothing, and no document would ever end.
    let capacity = capacity.max(2);
    let mut rows = Vec::new();
    let mut row: Vec<Piece> = Vec::new();
    let mut room = capacity;
    for (example, length) in documents {
        let mut start = 0;
        loop {
            if room < 2.min(length - start) || room == 0 {
                rows.push(std::mem::take(&mut row));
                room = capacity;
            }
            let end = length.min(start + room);
            row.push(Piece { example, start, end });
            room -= end - start;
            if end == length {
                break;
            }
            start = end - 1;
        }
    }
    if !row.is_empty() {
        rows.push(row);
    }
    rows
}

/// The pieces of a document that shares no row.
pub(crate) fn split(example: usize, length: usize, capacity: usize) -> impl Iterator<Item = Piece> {
    joined(std::iter::once((example, length)), capacity).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// First fit by its definition, in quadratic time.
    fn slow(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
        let mut items: Vec<usize> = (0..lengths.len()).collect();
        items.sort_by(|&a, &b| lengths[b].cmp(&lengths[a]).then(a.cmp(&b)));
        let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
        for item in items {
            let length = lengths[item].min(capacity);
            match bins.iter_mut().find(|(room, _)| *room >= length) {
                Some((room, bin)) => {
                    *room -= length;
                    bin.push(item);
                }
                None => bins.push((capacity - length, vec![item])),
            }
        }
        bins.into_iter().map(|(_, bin)| bin).collect()
    }

    #[test]
    fn the_longest_go_first() {
        assert_eq!(first_fit_decreasing(&[3, 7, 2, 5, 4], 10), [vec![1, 0], vec![3, 4], vec![2]]);
        assert_eq!(first_fit_decreasing(&[11, 10], 10), [[0], [1]]);
        assert!(first_fit_decreasing(&[], 10).is_empty());
    }

    #[test]
    fn a_document_continues_with_its_last_token() {
        let piece = |example, start, end| Piece { example, start, end };
        let rows = joined([(0, 3), (1, 8), (2, 2)].into_iter(), 4);
        assert_eq!(
            rows,
            [
                // Room for one token is left empty.
                vec![piece(0, 0, 3)],
                vec![piece(1, 0, 4)],
                vec![piece(1, 3, 7)],
                vec![piece(1, 6, 8), piece(2, 0, 2)],
            ]
        );
        assert_eq!(split(5, 3, 8).collect::<Vec<_>>(), [piece(5, 0, 3)]);
    }

    proptest! {
        #[test]
        fn first_fit_is_first_fit(lengths in prop::collection::vec(1usize..30, 0..120), capacity in 2usize..40) {
            prop_assert_eq!(first_fit_decreasing(&lengths, capacity), slow(&lengths, capacity));
        }

        #[test]
        fn documents_lose_and_repeat_no_target(lengths in prop::collection::vec(2usize..50, 0..40), capacity in 2usize..20) {
            let rows = joined(lengths.iter().copied().enumerate(), capacity);
            let mut predicted: Vec<Vec<usize>> = lengths.iter().map(|_| Vec::new()).collect();
            for (index, row) in rows.iter().enumerate() {
                let taken: usize = row.iter().map(Piece::len).sum();
                prop_assert!(taken <= capacity);
                // Only room for a single token is left, and only the last row has more.
                prop_assert!(taken + 1 >= capacity || index + 1 == rows.len());
                for piece in row {
                    predicted[piece.example].extend(piece.start + 1..piece.end);
                }
            }
            for (length, predicted) in lengths.iter().zip(predicted) {
                prop_assert_eq!(predicted, (1..*length).collect::<Vec<_>>());
            }
        }
    }
}
