//! The audit of a data set: what would be trained of it, and what is wrong with it.

mod finding;
mod report;
mod row;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aho_corasick::AhoCorasick;
use rayon::prelude::*;

pub use finding::{Allowed, FailOn, Finding};
pub use report::{AuditReport, Bin, Count, Kind, Lengths};

use crate::error::DataError;
use crate::example::{Example, ExampleOptions};
use crate::near::{ExactIndex, NearIndex, Places};
use crate::source::{Read, ReadOptions, for_each_batch};
use crate::tokenizer::TextTokenizer;
use row::Facts;
pub(crate) use row::{is_empty, is_url_heap};

/// Places told of a finding, and faults told in full.
const TOLD: usize = 5;
const FAULTS: usize = 20;

/// How an audit looks.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// How examples are made.
    pub example: ExampleOptions,
    /// Fewer trained tokens are too short.
    pub min_supervised: usize,
    /// Similarity from which rows count as near-duplicates, 0 < s ≤ 1; `None`: those are not looked for.
    pub near: Option<f64>,
    /// Words of the sequences that are compared.
    pub ngram: usize,
    /// Examples that are kept to be shown.
    pub show: usize,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            example: ExampleOptions::default(),
            min_supervised: 3,
            near: Some(0.8),
            ngram: 3,
            show: 1,
        }
    }
}

/// Audits files as the tokenizer would read them.
///
/// # Errors
/// A file that cannot be opened; no row at all. Rows at fault are findings.
pub fn audit(
    files: &[PathBuf],
    read: &ReadOptions,
    tokenizer: &TextTokenizer,
    options: &AuditOptions,
) -> Result<AuditReport, DataError> {
    let mut audit = Audit::new(tokenizer, options)?;
    for_each_batch(files, read, |batch| {
        audit.take(&batch);
        Ok::<_, DataError>(())
    })?;
    match audit.rows {
        0 => Err(DataError::NothingToTrain("there are no rows. Check the data files".into())),
        _ => Ok(audit.finish()),
    }
}

/// What stays the same for all rows.
struct Judge<'a> {
    tokenizer: &'a TextTokenizer,
    options: &'a AuditOptions,
    specials: AhoCorasick,
    stops: BTreeSet<u32>,
}

struct Audit<'a> {
    judge: Judge<'a>,
    rows: u64,
    examples: u64,
    tokens: u64,
    supervised: u64,
    counts: BTreeMap<Finding, (u64, Vec<String>)>,
    kinds: BTreeMap<&'static str, Kind>,
    lengths: BTreeMap<u64, u64>,
    faults: Vec<String>,
    shown: Vec<Example>,
    exact: ExactIndex,
    near: Option<NearIndex>,
    places: Places,
}

impl<'a> Audit<'a> {
    fn new(tokenizer: &'a TextTokenizer, options: &'a AuditOptions) -> Result<Self, DataError> {
        let specials = AhoCorasick::new(tokenizer.special_tokens())
            .map_err(|error| DataError::Tokenizer(error.to_string()))?;
        Ok(Self {
            judge: Judge { tokenizer, options, specials, stops: tokenizer.stop_ids() },
            rows: 0,
            examples: 0,
            tokens: 0,
            supervised: 0,
            counts: BTreeMap::new(),
            kinds: BTreeMap::new(),
            lengths: BTreeMap::new(),
            faults: Vec::new(),
            shown: Vec::new(),
            exact: ExactIndex::default(),
            near: options.near.map(NearIndex::new),
            places: Places::default(),
        })
    }

    /// Rows are judged on all cores and counted in order.
    fn take(&mut self, batch: &[Read]) {
        let show = self.judge.options.show.saturating_sub(self.shown.len());
        // Some rows more than are shown: not every row makes an example.
        let keep = if show == 0 { 0 } else { show + 100 };
        let judge = &self.judge;
        let rows = batch.par_iter().enumerate();
        let facts: Vec<Facts> = rows.map(|(at, row)| judge.facts(row, at < keep)).collect();
        for facts in facts {
            self.count(facts);
        }
    }

    fn count(&mut self, facts: Facts) {
        self.rows += 1;
        let place = facts.source.to_string();
        for finding in facts.findings {
            self.found(finding, &place);
        }
        if let Some(fault) = facts.fault.filter(|_| self.faults.len() < FAULTS) {
            self.faults.push(fault);
        }
        if let Some(hash) = facts.hash {
            let number = self.places.push(&facts.source);
            if let Some(first) = self.exact.find_or_insert(hash, number) {
                self.found(Finding::ExactDuplicate, &self.beside(&place, first, None));
            } else if let (Some(near), Some(signature)) = (&mut self.near, &facts.signature)
                && let Some((first, alike)) = near.find_or_insert(signature, number)
            {
                self.found(Finding::NearDuplicate, &self.beside(&place, first, Some(alike)));
            }
        }
        if let Some(size) = facts.size {
            self.examples += 1;
            self.tokens += size.tokens;
            self.supervised += size.supervised;
            *self.lengths.entry(size.length).or_default() += 1;
            let kind = self.kinds.entry(facts.kind).or_default();
            kind.rows += 1;
            kind.tokens += size.tokens;
            kind.supervised_tokens += size.supervised;
        }
        if let Some(example) = facts.example.filter(|_| self.shown.len() < self.judge.options.show)
        {
            self.shown.push(example);
        }
    }

    fn found(&mut self, finding: Finding, place: &str) {
        let (count, first) = self.counts.entry(finding).or_default();
        *count += 1;
        if first.len() < TOLD {
            first.push(place.to_owned());
        }
    }

    fn beside(&self, place: &str, first: u32, alike: Option<f64>) -> String {
        let first = self.places.get(first).map(|first| first.to_string()).unwrap_or_default();
        match alike {
            Some(alike) => format!("{place} (like {first}, {alike:.2})"),
            None => format!("{place} (as {first})"),
        }
    }

    fn finish(mut self) -> AuditReport {
        let rows = self.rows;
        let findings = Finding::ALL.map(|finding| {
            let (count, first) = self.counts.remove(&finding).unwrap_or_default();
            Count {
                finding: finding.name(),
                rows: count,
                share: count as f64 / rows.max(1) as f64,
                first,
            }
        });
        AuditReport {
            rows,
            examples: self.examples,
            tokens: self.tokens,
            supervised_tokens: self.supervised,
            supervised_share: self.supervised as f64 / self.tokens.max(1) as f64,
            findings: findings.to_vec(),
            kinds: self.kinds,
            lengths: Lengths::of(&self.lengths),
            faults: self.faults,
            shown: self.shown,
        }
    }
}

#[cfg(test)]
mod tests;
