//! The leak check: evaluation rows that duplicate or nearly duplicate training rows.

use std::collections::HashMap;
use std::path::PathBuf;

use rayon::prelude::*;
use serde::Serialize;

use crate::error::DataError;
use crate::near::Part;
use crate::source::{Read, ReadOptions, Rejects, for_each_batch};
use crate::text::words::ngrams;

/// Options of the leak check.
#[derive(Debug, Clone, PartialEq)]
pub struct LeakOptions {
    /// Minimum cosine of a leaked row, 0 < c ≤ 1.
    pub threshold: f64,
    /// Words of the n-grams that are counted.
    pub ngram: usize,
    /// The part of the rows that is compared.
    pub part: Part,
}

impl Default for LeakOptions {
    fn default() -> Self {
        Self { threshold: 0.8, ngram: 3, part: Part::Row }
    }
}

/// The report of the leak check.
#[derive(Debug, Clone, Serialize)]
pub struct LeakReport {
    /// Training rows.
    pub train: u64,
    /// Evaluation rows.
    pub eval: u64,
    /// Evaluation rows whose nearest training row is at or above the threshold.
    pub leaked: u64,
    /// `leaked / eval`
    pub share: f64,
    /// Mean cosine of the evaluation rows with their nearest training rows.
    pub mean_nearest: f64,
    /// The leaked rows, in the order of the evaluation rows.
    pub pairs: Vec<LeakPair>,
}

/// An evaluation row and the nearest training row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeakPair {
    /// File and line of the evaluation row.
    pub eval: String,
    /// File and line of the training row.
    pub train: String,
    /// Cosine of their word n-gram counts.
    pub cosine: f64,
}

/// Finds the nearest row of `train` for each row of `eval`, exactly. The n-gram counts of the evaluation rows are kept in
/// memory; the training rows are streamed.
///
/// # Errors
/// A file that cannot be opened; invalid rows that `rejects` does not skip; no training rows or no evaluation rows.
pub fn leaks(
    train: &[PathBuf],
    eval: &[PathBuf],
    read: &ReadOptions,
    options: &LeakOptions,
    mut rejects: Rejects,
) -> Result<LeakReport, DataError> {
    let mut index = Index::default();
    for_each_batch(eval, read, |batch| {
        for (place, counts) in vectors(batch, options, &mut rejects)? {
            index.push(place, &counts);
        }
        Ok::<_, DataError>(())
    })?;
    let mut nearest: Vec<Nearest> = vec![None; index.places.len()];
    let mut rows = 0;
    for_each_batch(train, read, |batch| {
        let vectors = vectors(batch, options, &mut rejects)?;
        rows += vectors.len() as u64;
        // Each thread finds the nearest among its rows; these are then compared in the order of the rows.
        let share = vectors.len().div_ceil(rayon::current_num_threads()).max(1);
        let found: Vec<Vec<(u32, f32, usize)>> = vectors
            .par_chunks(share)
            .enumerate()
            .map(|(chunk, rows)| index.nearer(rows, chunk * share, &nearest))
            .collect();
        for (eval, cosine, at) in found.into_iter().flatten() {
            let best = &mut nearest[eval as usize];
            if best.as_ref().is_none_or(|(known, _)| cosine > *known) {
                *best = Some((cosine, vectors[at].0.clone()));
            }
        }
        Ok::<_, DataError>(())
    })?;
    rejects.finish()?;
    let eval = index.places.len() as u64;
    if rows == 0 || eval == 0 {
        let side = if rows == 0 { "training" } else { "evaluation" };
        return Err(DataError::NothingToTrain(format!("there are no {side} rows")));
    }
    let cosines = nearest.iter().map(|best| best.as_ref().map_or(0.0, |(c, _)| f64::from(*c)));
    let mean_nearest = cosines.sum::<f64>() / eval as f64;
    // Single-precision sums for equal rows may be slightly below 1.
    let threshold = options.threshold - 1e-5;
    let pairs: Vec<LeakPair> = index
        .places
        .into_iter()
        .zip(nearest)
        .filter_map(|(eval, best)| {
            let (cosine, train) = best.filter(|(cosine, _)| f64::from(*cosine) >= threshold)?;
            Some(LeakPair { eval, train, cosine: f64::from(cosine).min(1.0) })
        })
        .collect();
    let leaked = pairs.len() as u64;
    Ok(LeakReport {
        train: rows,
        eval,
        leaked,
        share: leaked as f64 / eval as f64,
        mean_nearest,
        pairs,
    })
}

type Nearest = Option<(f32, String)>;

/// N-gram counts by hash, as a vector of length 1.
type Counts = Vec<(u64, f32)>;

/// The vectors of a batch, each with the row's file and line.
fn vectors(
    batch: Vec<Read>,
    options: &LeakOptions,
    rejects: &mut Rejects,
) -> Result<Vec<(String, Counts)>, DataError> {
    let made: Vec<_> = batch
        .into_par_iter()
        .map(|row| {
            row.map(|(row, _, _)| {
                let counts = counts(&options.part.text(&row.row), options.ngram);
                (row.source.to_string(), counts)
            })
        })
        .collect();
    let mut vectors = Vec::with_capacity(made.len());
    for row in made {
        match row {
            Ok(row) => vectors.push(row),
            Err(fault) => rejects.take(fault)?,
        }
    }
    Ok(vectors)
}

fn counts(text: &str, n: usize) -> Counts {
    let mut grams = ngrams(text, n);
    grams.sort_unstable();
    let counts: Counts =
        grams.chunk_by(|a, b| a == b).map(|alike| (alike[0], alike.len() as f32)).collect();
    let length = counts.iter().map(|(_, count)| count * count).sum::<f32>().sqrt();
    counts.into_iter().map(|(gram, count)| (gram, count / length)).collect()
}

/// The evaluation rows by n-gram.
#[derive(Default)]
struct Index {
    places: Vec<String>,
    rows: HashMap<u64, Vec<(u32, f32)>>,
}

impl Index {
    fn push(&mut self, place: String, counts: &Counts) {
        let Ok(row) = u32::try_from(self.places.len()) else { return };
        self.places.push(place);
        for (gram, share) in counts {
            self.rows.entry(*gram).or_default().push((row, *share));
        }
    }

    /// `rows` start at index `first` of their batch. Returns (evaluation row, cosine, index in the batch) of the nearest
    /// of `rows` for each evaluation row for which it is nearer than the `known` one.
    fn nearer(
        &self,
        rows: &[(String, Counts)],
        first: usize,
        known: &[Nearest],
    ) -> Vec<(u32, f32, usize)> {
        let mut scores = vec![0.0_f32; self.places.len()];
        let mut best: HashMap<u32, (f32, usize)> = HashMap::new();
        let mut touched: Vec<u32> = Vec::new();
        for (at, (_, counts)) in rows.iter().enumerate() {
            for (gram, share) in counts {
                for (eval, own) in self.rows.get(gram).into_iter().flatten() {
                    let score = &mut scores[*eval as usize];
                    if *score == 0.0 {
                        touched.push(*eval);
                    }
                    *score += share * own;
                }
            }
            for eval in touched.drain(..) {
                let cosine = std::mem::take(&mut scores[eval as usize]);
                let known = known[eval as usize].as_ref().map_or(0.0, |(known, _)| *known);
                let own = best.get(&eval).map_or(known, |(own, _)| *own);
                if cosine > own {
                    best.insert(eval, (cosine, first + at));
                }
            }
        }
        let mut found: Vec<(u32, f32, usize)> =
            best.into_iter().map(|(eval, (cosine, at))| (eval, cosine, at)).collect();
        found.sort_unstable_by_key(|(eval, _, at)| (*eval, *at));
        found
    }
}
