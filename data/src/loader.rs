//! Which examples a step takes: a pure function of seed, epoch and place, so that a run resumes anywhere.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dataset::Dataset;
use crate::order::{Order, Purpose, Share, shuffle};
use crate::packing::{Piece, WINDOW, first_fit_decreasing, joined, split};

/// Micro-batches that are grouped by length with each other. Within them the lengths are sorted, so padding is next to
/// nothing; more would make what stands in a micro-batch less random and save no more.
const GROUPED: usize = 64;

/// How examples stand in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Each example in a row of its own.
    #[default]
    OnePerRow,
    /// The same, examples of similar length in one micro-batch, so that padding is short.
    ByLength {
        /// Rows in a micro-batch.
        micro_batch: usize,
    },
    /// As many in a row as fit.
    Packed,
}

/// A place in the stream of rows: what a run needs to know to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Epochs that are through.
    pub epoch: u64,
    /// Rows of this epoch that are through.
    pub place: u64,
}

/// What decides the stream, beside the examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoaderOptions {
    /// Of all orders.
    pub seed: u64,
    /// Whether each epoch has a random order of its own; else the order of the data.
    pub shuffle: bool,
    /// How examples stand in rows.
    pub layout: Layout,
}

/// The stream of rows: the epochs end to end, each in an order of its own.
///
/// What an epoch holds, and in which order, depends on nothing but the options, its number and the examples' lengths.
#[derive(Debug)]
pub struct Loader {
    options: LoaderOptions,
    lengths: Vec<Length>,
    order: Order,
    /// Tokens in a row at most. Only documents are split at it.
    row_length: usize,
    /// Rows of every epoch, where they are as many.
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
    /// The epoch asked for last: steps ask for the same one many times.
    recent: Option<(u64, Arc<Rows>)>,
    /// Rows up to the end of each epoch, from the first on.
    ends: Vec<u64>,
}

/// The rows of an epoch, one after another.
#[derive(Debug, Default)]
struct Rows {
    pieces: Vec<Piece>,
    /// Where each row ends in `pieces`.
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
    /// The stream over a data set.
    pub fn new(data: &Dataset, options: LoaderOptions) -> Self {
        Self::with_shares(data, &data.shares, options)
    }

    /// How many examples an epoch takes of each source of a mixture.
    pub fn draws(&self) -> Vec<usize> {
        self.order.draws()
    }

    /// The stream that has each example once an epoch, in the order of the data, also if that is a mixture.
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

    /// The rows of `epochs` epochs, counted from the first: whole ones, and of the last one the share that is left, to the
    /// nearest row. Takes the layout of each of these epochs.
    pub fn rows_in(&self, epochs: f64) -> u64 {
        let whole = epochs.floor();
        let rest = (epochs - whole) * self.rows_of(whole as u64) as f64;
        self.rows_before(whole as u64) + rest.round() as u64
    }

    /// Rows of an epoch.
    pub fn rows_of(&self, epoch: u64) -> u64 {
        self.rows_per_epoch.unwrap_or_else(|| self.count(epoch))
    }

    /// The place of a row that is counted from the beginning of the stream.
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

    /// The next `count` rows from a place on, across the borders of epochs, and the place after them. No rows if there
    /// are no examples.
    pub fn take(&self, from: Cursor, count: usize) -> (Vec<Vec<Piece>>, Cursor) {
        let mut taken = Vec::with_capacity(count);
        let mut cursor = from;
        if self.lengths.is_empty() {
            return (taken, cursor);
        }
        while taken.len() < count {
            let rows = self.rows(cursor.epoch);
            // No more than the rows of an epoch, which are a usize.
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

    /// How far a place is, in epochs.
    pub fn epochs_at(&self, cursor: Cursor) -> f64 {
        if cursor.place == 0 {
            return cursor.epoch as f64;
        }
        cursor.epoch as f64 + cursor.place as f64 / self.rows_of(cursor.epoch) as f64
    }

    /// How many epochs so many rows are, counted from the first.
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
            // Another thread may have been faster.
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

    /// The rows that an example needs if it shares none.
    fn pieces(&self, example: usize) -> impl Iterator<Item = Piece> {
        let Length { tokens, is_document } = self.lengths[example];
        split(example, tokens, if is_document { self.row_length } else { tokens })
    }

    fn one_per_row(&self, order: &[usize], epoch: u64) -> Vec<Piece> {
        let mut rows: Vec<Piece> = order.iter().flat_map(|&i| self.pieces(i)).collect();
        // The parts of a long document are not to follow each other.
        if self.options.shuffle && rows.len() > order.len() {
            self.shuffle(&mut rows, epoch, 0);
        }
        rows
    }

    /// Sorts windows of some micro-batches by length and shuffles the micro-batches. Those begin at the multiples of
    /// their size in the stream, so at an epoch's ends there may be parts of some, which are not sorted.
    fn by_length(&self, mut rows: Vec<Piece>, micro_batch: usize, epoch: u64) -> Vec<Piece> {
        let size = micro_batch as u64;
        let begun = (self.rows_before(epoch) % size) as usize;
        let head = if begun == 0 { 0 } else { rows.len().min(micro_batch - begun) };
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
        // Rows with the place of their first piece in the order, which an order that is not shuffled keeps.
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
