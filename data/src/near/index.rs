//! Finding earlier duplicates and near-duplicates of rows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::minhash::{PLACES, Signature, similarity};

/// Rows by a 128-bit hash of their content.
#[derive(Debug, Default)]
pub(crate) struct ExactIndex {
    rows: HashMap<[u64; 2], u32>,
}

impl ExactIndex {
    /// The earlier row with the same content; if there is none, `row` is inserted.
    pub(crate) fn find_or_insert(&mut self, hash: [u64; 2], row: u32) -> Option<u32> {
        match self.rows.entry(hash) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(row);
                None
            }
        }
    }
}

/// Rows by their signatures. Two rows are compared if they agree in all places of some band. Thus at least 97 of 100 pairs
/// at the threshold are found, and nearly all more similar ones. Memory per inserted row: 256 bytes for the signature and
/// about 10 bytes per band.
pub(crate) struct NearIndex {
    threshold: f64,
    /// Number of places in a band.
    width: usize,
    /// For each band, indices in `signatures`.
    bands: Vec<HashTable<u32>>,
    signatures: Signatures,
    rows: Vec<u32>,
}

/// Maximum rows that are compared because of one band: a band that thousands of rows share is not informative.
const LONGEST_CHAIN: usize = 64;

/// Minimum share of the pairs at the threshold that are found.
const RECALL: f64 = 0.97;

/// Signatures in blocks, so that growing copies nothing.
#[derive(Default)]
struct Signatures {
    blocks: Vec<Vec<Signature>>,
    len: usize,
}

const BLOCK: usize = 1 << 14;

impl Signatures {
    fn get(&self, at: usize) -> &Signature {
        &self.blocks[at / BLOCK][at % BLOCK]
    }

    fn push(&mut self, signature: Signature) {
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        if let Some(block) = self.blocks.last_mut() {
            block.push(signature);
            self.len += 1;
        }
    }
}

impl NearIndex {
    /// `threshold`: minimum Jaccard similarity of near-duplicates, 0 < threshold ≤ 1.
    pub(crate) fn new(threshold: f64) -> Self {
        let recall = |width: usize| {
            let bands = (PLACES / width) as i32;
            1.0 - (1.0 - threshold.powi(width as i32)).powi(bands)
        };
        // The widest bands have the fewest false candidates.
        let width = (1..=32).rev().find(|width| recall(*width) >= RECALL).unwrap_or(1);
        Self {
            threshold,
            width,
            bands: (0..PLACES / width).map(|_| HashTable::new()).collect(),
            signatures: Signatures::default(),
            rows: Vec::new(),
        }
    }

    /// The most similar earlier row at or above the threshold (the first of equally similar ones) and its similarity; if
    /// there is none, `row` is inserted.
    pub(crate) fn find_or_insert(&mut self, signature: &Signature, row: u32) -> Option<(u32, f64)> {
        let found = self.find(signature);
        if found.is_none() {
            self.insert(signature, row);
        }
        found
    }

    fn find(&self, signature: &Signature) -> Option<(u32, f64)> {
        let mut compared: Vec<u32> = Vec::new();
        for (band, table) in self.bands.iter().enumerate() {
            let (hash, own) = self.band(signature, band);
            let alike = table.iter_hash(hash).copied();
            compared.extend(
                alike.filter(|at| self.band(self.signatures.get(*at as usize), band).1 == own),
            );
        }
        compared.sort_unstable();
        compared.dedup();
        let scored = compared
            .into_iter()
            .map(|at| (similarity(signature, self.signatures.get(at as usize)), at));
        let (best, at) = scored
            .filter(|(score, _)| *score >= self.threshold)
            .max_by(|(a, first), (b, second)| a.total_cmp(b).then(second.cmp(first)))?;
        Some((self.rows[at as usize], best))
    }

    fn insert(&mut self, signature: &Signature, row: u32) {
        let Ok(at) = u32::try_from(self.signatures.len) else { return };
        self.signatures.push(*signature);
        self.rows.push(row);
        for band in 0..self.bands.len() {
            let (hash, _) = self.band(signature, band);
            let (width, signatures) = (self.width, &self.signatures);
            let table = &mut self.bands[band];
            if table.iter_hash(hash).count() < LONGEST_CHAIN {
                table.insert_unique(hash, at, |at| {
                    band_hash(&signatures.get(*at as usize)[band * width..][..width])
                });
            }
        }
    }

    fn band<'a>(&self, signature: &'a Signature, band: usize) -> (u64, &'a [u16]) {
        let own = &signature[band * self.width..][..self.width];
        (band_hash(own), own)
    }
}

fn band_hash(band: &[u16]) -> u64 {
    let mut bytes = [0; 2 * PLACES];
    for (to, from) in bytes.chunks_exact_mut(2).zip(band) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    xxh3_64(&bytes[..2 * band.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::near::signature;

    #[test]
    fn near_duplicates_are_found_and_other_rows_are_not() {
        let mut index = NearIndex::new(0.8);
        let text =
            |seed: usize, changed: usize| -> String {
                (0..100)
                    .map(|n| {
                        if n < changed {
                            format!("x{n} ")
                        } else {
                            format!("w{} ", seed * 1000 + n)
                        }
                    })
                    .collect()
            };
        let mut find = |text: &str, row| index.find_or_insert(&signature(text, 3).unwrap(), row);
        for seed in 0..300 {
            assert_eq!(find(&text(seed, 0), seed as u32), None, "{seed}");
        }
        // 96 of 98 n-grams are unchanged: a similarity of 96/100.
        let missed = (0..300).filter(|seed| {
            find(&text(*seed, 2), 1000)
                .is_none_or(|(row, score)| row as usize != *seed || score < 0.8)
        });
        assert_eq!(missed.count(), 0);
        // A similarity of a third is below the threshold.
        assert!((0..50).all(|seed| find(&text(seed, 48), 2000 + seed as u32).is_none()));
    }

    #[test]
    fn the_bands_have_the_recall_for_the_threshold() {
        for (threshold, width) in [(0.5, 4), (0.8, 7), (0.95, 20), (1.0, 32)] {
            let index = NearIndex::new(threshold);
            assert!(index.width.abs_diff(width) <= 3, "{threshold}: {}", index.width);
            let bands = index.bands.len() as i32;
            assert!(1.0 - (1.0 - threshold.powi(index.width as i32)).powi(bands) >= RECALL);
        }
    }

    #[test]
    fn exact_duplicates_are_found() {
        let mut index = ExactIndex::default();
        assert_eq!(index.find_or_insert([1, 2], 7), None);
        assert_eq!(index.find_or_insert([1, 3], 8), None);
        assert_eq!(index.find_or_insert([1, 2], 9), Some(7));
    }
}
