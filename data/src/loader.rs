//! The rows of each step: a pure function of seed, epoch and position, so that a run can resume at any step.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dataset::Dataset;
use crate::order::{Order, Purpose, Share, shuffle};
use crate::packing::{Piece, WINDOW, first_fit_decreasing, joined, split};

/// Micro-batches in a window that is sorted by length. Padding is already negligible with this many; more would only
/// make the composition of a micro-batch less random.
const GROUPED: usize = 64;

/// How examples are arranged in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// One example per row.
    #[default]
    OnePerRow,
    /// One example per row; a micro-batch has examples of similar length, to reduce padding.
    ByLength {
        /// Rows in a micro-batch.
        micro_batch: usize,
    },
    /// As many examples per row as fit.
    Packed,
}

/// A position in the stream of rows, from which a run can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Completed epochs.
    pub epoch: u64,
    /// Rows already taken from this epoch.
    pub place: u64,
}

/// The options that, with the examples, determine the stream of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoaderOptions {
    /// Seed of all random orders.
    pub seed: u64,
    /// Whether each epoch has a new random order; otherwise it has the order of the data.
    pub shuffle: bool,
    /// How examples are arranged in rows.
    pub layout: Layout,
}

/// The stream of rows: one epoch after another, each in its own order.
///
/// The rows of an epoch and their order depend only on the options, the epoch's number and the examples' lengths.
#[derive(Debug)]
pub struct Loader {
    options: LoaderOptions,
    lengths: Vec<Length>,
    order: Order,
    /// Maximum tokens of a row. Only documents are split at it.
    row_length: usize,
    /// Rows of an epoch, if all epochs have the same number.
    rows_per_epoch: Option<u64>,
    known: Mutex<Known>,
}

#[derive(Debug, Clone, Copy)]
struct Length {
    tokens: usize,
    is_document: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// The last epoch that was requested: successive steps request the same one.
    recent: Option<(u64, Arc<Rows>)>,
    /// Number of rows up to the end of each epoch, from the first.
    ends: Vec<u64>,
}

/// The rows of an epoch.
#[derive(Debug, Default)]
struct Rows {
    pieces: Vec<Piece>,
    /// End of each row in `pieces`.
    ends: Vec<usize>,
}

impl Rows {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn row(&self, row: usize) -> &[Piece] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.pieces[start..self.ends[row]]
    }
}

impl FromIterator<Vec<Piece>> for Rows {
    fn from_iter<I: IntoIterator<Item = Vec<Piece>>>(rows: I) -> Self {
        let mut all = Self::default();
        for row in rows {
            all.pieces.extend(row);
            all.ends.push(all.pieces.len());
        }
        all
    }
}

impl Loader {
    /// The stream of a data set.
    pub fn new(data: &Dataset, options: LoaderOptions) -> Self {
        Self::with_shares(data, &data.shares, options)
    }

    /// Number of examples that an epoch draws from each source of a mixture.
    pub fn draws(&self) -> Vec<usize> {
        self.order.draws()
    }

    /// A stream with each example once per epoch in the order of the data, even if the data is a mixture.
    pub fn each_once(data: &Dataset, layout: Layout) -> Self {
        Self::with_shares(data, &[], LoaderOptions { layout, ..LoaderOptions::default() })
    }

    fn with_shares(data: &Dataset, shares: &[Share], options: LoaderOptions) -> Self {
        let length = |index| {
            let view = data.examples.view(index);
            Length { tokens: view.ids.len(), is_document: view.is_document }
        };
        let lengths: Vec<Length> = (0..data.examples.len()).map(length).collect();
        Self::over(lengths, data.max_length.map(NonZeroUsize::get), shares, options)
    }

    fn over(
        lengths: Vec<Length>,
        row_length: Option<usize>,
        shares: &[Share],
        options: LoaderOptions,
    ) -> Self {
        let LoaderOptions { seed, shuffle, layout } = options;
        let order = match shares {
            [] | [_] => Order::plain(lengths.len(), seed, shuffle),
            shares => Order::mixed(shares, lengths.len(), seed, shuffle),
        };
        let longest = lengths.iter().map(|length| length.tokens).max().unwrap_or(0);
        let row_length = row_length.unwrap_or(longest).max(2);
        let splits = lengths.iter().any(|l| l.is_document && l.tokens > row_length);
        let mut loader = Self {
            options,
            lengths,
            order,
            row_length,
            rows_per_epoch: None,
            known: Mutex::default(),
        };
        if layout != Layout::Packed && (!splits || loader.order.is_plain()) {
            loader.rows_per_epoch = Some(loader.count(0));
        }
        loader
    }

    /// Number of rows in the first `epochs` epochs; the fraction of the last one is rounded to the nearest row. May have
    /// to arrange each of these epochs.
    pub fn rows_in(&self, epochs: f64) -> u64 {
        let whole = epochs.floor();
        let rest = (epochs - whole) * self.rows_of(whole as u64) as f64;
        self.rows_before(whole as u64) + rest.round() as u64
    }

    /// Number of rows in an epoch.
    pub fn rows_of(&self, epoch: u64) -> u64 {
        self.rows_per_epoch.unwrap_or_else(|| self.count(epoch))
    }

    /// The position of a row that is counted from the start of the stream.
    pub fn cursor(&self, row: u64) -> Cursor {
        if self.lengths.is_empty() {
            return Cursor::default();
        }
        if let Some(rows) = self.rows_per_epoch {
            return Cursor { epoch: row / rows, place: row % rows };
        }
        let mut epoch = 0;
        while self.rows_before(epoch + 1) <= row {
            epoch += 1;
        }
        Cursor { epoch, place: row - self.rows_before(epoch) }
    }

    /// The next `count` rows from a position, across epochs, and the position after them. No rows if there are no
    /// examples.
    pub fn take(&self, from: Cursor, count: usize) -> (Vec<Vec<Piece>>, Cursor) {
        let mut taken = Vec::with_capacity(count);
        let mut cursor = from;
        if self.lengths.is_empty() {
            return (taken, cursor);
        }
        while taken.len() < count {
            let rows = self.rows(cursor.epoch);
            // At most the number of rows in an epoch, which is a usize.
            let place = cursor.place.min(rows.len() as u64) as usize;
            let to = rows.len().min(place + count - taken.len());
            taken.extend((place..to).map(|row| rows.row(row).to_vec()));
            cursor.place = to as u64;
            if to == rows.len() {
                cursor = Cursor { epoch: cursor.epoch + 1, place: 0 };
            }
        }
        (taken, cursor)
    }

    /// A position in epochs.
    pub fn epochs_at(&self, cursor: Cursor) -> f64 {
        if cursor.place == 0 {
            return cursor.epoch as f64;
        }
        cursor.epoch as f64 + cursor.place as f64 / self.rows_of(cursor.epoch) as f64
    }

    /// The number of epochs in the first `rows` rows.
    pub fn epochs_of(&self, rows: u64) -> f64 {
        self.epochs_at(self.cursor(rows))
    }

    fn rows_before(&self, epoch: u64) -> u64 {
        if let Some(rows) = self.rows_per_epoch {
            return epoch * rows;
        }
        let Some(last) = epoch.checked_sub(1) else { return 0 };
        loop {
            let known = self.known().ends.len();
            if let Some(&end) = self.known().ends.get(last as usize) {
                return end;
            }
            let rows = self.count(known as u64);
            let ends = &mut self.known().ends;
            // Another thread may already have added it.
            if ends.len() == known {
                ends.push(ends.last().copied().unwrap_or(0) + rows);
            }
        }
    }

    fn count(&self, epoch: u64) -> u64 {
        let rows = match self.options.layout {
            Layout::Packed => self.rows(epoch).len(),
            _ if self.order.is_plain() => {
                (0..self.lengths.len()).map(|i| self.pieces(i).count()).sum()
            }
            _ => self.order.epoch(epoch).into_iter().map(|i| self.pieces(i).count()).sum(),
        };
        rows as u64
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self, epoch: u64) -> Arc<Rows> {
        if let Some((known, rows)) = &self.known().recent
            && *known == epoch
        {
            return Arc::clone(rows);
        }
        let rows = Arc::new(self.arrange(epoch));
        self.known().recent = Some((epoch, Arc::clone(&rows)));
        rows
    }

    fn arrange(&self, epoch: u64) -> Rows {
        let order = self.order.epoch(epoch);
        match self.options.layout {
            Layout::OnePerRow => {
                self.one_per_row(&order, epoch).into_iter().map(|p| vec![p]).collect()
            }
            Layout::ByLength { micro_batch } => {
                let rows = self.one_per_row(&order, epoch);
                self.by_length(rows, micro_batch.max(1), epoch)
                    .into_iter()
                    .map(|p| vec![p])
                    .collect()
            }
            Layout::Packed => self.packed(&order, epoch).into_iter().collect(),
        }
    }

    /// The pieces of an example that shares no row.
    fn pieces(&self, example: usize) -> impl Iterator<Item = Piece> {
        let Length { tokens, is_document } = self.lengths[example];
        split(example, tokens, if is_document { self.row_length } else { tokens })
    }

    fn one_per_row(&self, order: &[usize], epoch: u64) -> Vec<Piece> {
        let mut rows: Vec<Piece> = order.iter().flat_map(|&i| self.pieces(i)).collect();
        // The parts of a long document must not follow each other.
        if self.options.shuffle && rows.len() > order.len() {
            self.shuffle(&mut rows, epoch, 0);
        }
        rows
    }

    /// Sorts windows of micro-batches by length and shuffles the micro-batches. Micro-batches start at multiples of their
    /// size in the stream, so an epoch may start and end with an incomplete one, which is not sorted.
    fn by_length(&self, mut rows: Vec<Piece>, micro_batch: usize, epoch: u64) -> Vec<Piece> {
        let size = micro_batch as u64;
        let filled = (self.rows_before(epoch) % size) as usize;
        let head = if filled == 0 { 0 } else { rows.len().min(micro_batch - filled) };
        let whole = (rows.len() - head) / micro_batch * micro_batch;
        let middle = &mut rows[head..head + whole];
        for window in middle.chunks_mut(GROUPED * micro_batch) {
            window.sort_by_key(Piece::len);
        }
        let mut groups: Vec<&[Piece]> = middle.chunks(micro_batch).collect();
        self.shuffle(&mut groups, epoch, 1);
        let shuffled = groups.concat();
        rows[head..head + whole].copy_from_slice(&shuffled);
        rows
    }

    fn packed(&self, order: &[usize], epoch: u64) -> Vec<Vec<Piece>> {
        let length = |&place: &usize| self.lengths[order[place]];
        let whole = |place: usize| {
            let example = order[place];
            Piece { example, start: 0, end: self.lengths[example].tokens }
        };
        let (documents, others): (Vec<usize>, Vec<usize>) =
            (0..order.len()).partition(|place| length(place).is_document);
        let texts = documents.iter().map(|place| (*place, length(place).tokens));
        // Each row with the position of its first piece in the order, by which the rows are sorted.
        let mut rows: Vec<(usize, Vec<Piece>)> = Vec::new();
        for mut row in joined(texts, self.row_length) {
            let first = row.first().map_or(0, |piece| piece.example);
            row.iter_mut().for_each(|piece| piece.example = order[piece.example]);
            rows.push((first, row));
        }
        for window in others.chunks(WINDOW) {
            let lengths: Vec<usize> = window.iter().map(|place| length(place).tokens).collect();
            for mut bin in first_fit_decreasing(&lengths, self.row_length) {
                bin.sort_unstable();
                let first = bin.first().map_or(0, |&item| window[item]);
                rows.push((first, bin.into_iter().map(|item| whole(window[item])).collect()));
            }
        }
        // Stable: the rows of one document keep their order.
        rows.sort_by_key(|(first, _)| *first);
        let mut rows: Vec<Vec<Piece>> = rows.into_iter().map(|(_, row)| row).collect();
        if self.options.shuffle {
            self.shuffle(&mut rows, epoch, 0);
        }
        rows
    }

    fn shuffle<T>(&self, items: &mut [T], epoch: u64, which: u64) {
        shuffle(items, self.options.seed, epoch, Purpose::Rows, which);
    }
}

#[cfg(test)]
mod tests;
