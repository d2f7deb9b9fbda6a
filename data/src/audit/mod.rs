//! Auditing a data set: what would be trained on, and which problems the rows have.

mod finding;
mod options;
mod report;
mod row;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aho_corasick::AhoCorasick;
use clap::ValueEnum;
use rayon::prelude::*;

pub use finding::{Allowed, FailOn, Finding};
pub use options::AuditOptions;
pub use report::{AuditReport, Bin, Count, Kind, Lengths};

use crate::error::DataError;
use crate::example::Example;
use crate::format::Format;
use crate::near::{ExactIndex, NearIndex, Places};
use crate::source::{Read, ReadOptions, for_each_batch};
use crate::tokenizer::TextTokenizer;
use row::{RowChecker, RowReport};
pub(crate) use row::{is_empty, is_mostly_urls};

/// Rows listed for each finding, and invalid rows listed.
const LISTED: usize = 5;
const FAULTS: usize = 20;

/// Audits files with a tokenizer and its chat template.
///
/// # Errors
/// A file that cannot be opened; no rows. Invalid rows are findings.
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

struct Audit<'a> {
    checker: RowChecker<'a>,
    rows: u64,
    examples: u64,
    tokens: u64,
    supervised: u64,
    counts: BTreeMap<Finding, (u64, Vec<String>)>,
    kinds: BTreeMap<Format, Kind>,
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
            checker: RowChecker { tokenizer, options, specials, stops: tokenizer.stop_ids() },
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

    /// Checks rows on all cores and counts them in order.
    fn take(&mut self, batch: &[Read]) {
        let show = self.checker.options.show.saturating_sub(self.shown.len());
        // Some extra, as not every row makes an example.
        let keep = if show == 0 { 0 } else { show + 100 };
        let checker = &self.checker;
        let rows = batch.par_iter().enumerate();
        let reports: Vec<RowReport> = rows.map(|(at, row)| checker.check(row, at < keep)).collect();
        for report in reports {
            self.count(report);
        }
    }

    fn count(&mut self, report: RowReport) {
        self.rows += 1;
        let place = report.source.to_string();
        for finding in report.findings {
            self.found(finding, &place);
        }
        if let Some(fault) = report.fault.filter(|_| self.faults.len() < FAULTS) {
            self.faults.push(fault);
        }
        if let Some(hash) = report.hash {
            let number = self.places.push(&report.source);
            if let Some(first) = self.exact.find_or_insert(hash, number) {
                self.found(Finding::ExactDuplicate, &self.with_first(&place, first, None));
            } else if let (Some(near), Some(signature)) = (&mut self.near, &report.signature)
                && let Some((first, alike)) = near.find_or_insert(signature, number)
            {
                self.found(Finding::NearDuplicate, &self.with_first(&place, first, Some(alike)));
            }
        }
        if let Some(size) = report.size {
            self.examples += 1;
            self.tokens += size.tokens;
            self.supervised += size.supervised;
            *self.lengths.entry(size.length).or_default() += 1;
            let kind = self.kinds.entry(report.format).or_default();
            kind.rows += 1;
            kind.tokens += size.tokens;
            kind.supervised_tokens += size.supervised;
        }
        if let Some(example) =
            report.example.filter(|_| self.shown.len() < self.checker.options.show)
        {
            self.shown.push(example);
        }
    }

    fn found(&mut self, finding: Finding, place: &str) {
        let (count, first) = self.counts.entry(finding).or_default();
        *count += 1;
        if first.len() < LISTED {
            first.push(place.to_owned());
        }
    }

    fn with_first(&self, place: &str, first: u32, similarity: Option<f64>) -> String {
        let first = self.places.get(first).map(|first| first.to_string()).unwrap_or_default();
        match similarity {
            Some(similarity) => format!("{place} (similar to {first}, {similarity:.2})"),
            None => format!("{place} (same as {first})"),
        }
    }

    fn finish(mut self) -> AuditReport {
        let rows = self.rows;
        let findings = Finding::value_variants().iter().map(|finding| {
            let (count, first) = self.counts.remove(finding).unwrap_or_default();
            Count {
                finding: *finding,
                rows: count,
                share: count as f64 / rows.max(1) as f64,
                first,
            }
        });
        let kinds = self.kinds.into_iter();
        AuditReport {
            rows,
            examples: self.examples,
            tokens: self.tokens,
            supervised_tokens: self.supervised,
            supervised_share: self.supervised as f64 / self.tokens.max(1) as f64,
            findings: findings.collect(),
            kinds: kinds.map(|(format, kind)| (format.name(), kind)).collect(),
            lengths: Lengths::of(&self.lengths),
            faults: self.faults,
            shown: self.shown,
        }
    }
}

#[cfg(test)]
mod tests;
