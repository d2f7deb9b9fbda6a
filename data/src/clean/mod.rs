//! Cleaning: rules, then exact and near duplicates. The same input gives the same output.

mod rule;

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;

pub use rule::{Rule, pattern};

use crate::error::DataError;
use crate::example::{ExampleOptions, build};
use crate::location::Source;
use crate::near::{ExactIndex, NearIndex, Part, Places, Signature, signature};
use crate::output::LineWriter;
use crate::row::SourcedRow;
use crate::source::{Read, ReadOptions, for_each_batch, reject_line};
use crate::tokenizer::TextTokenizer;

/// Options of cleaning.
#[derive(Debug, Clone)]
pub struct CleanOptions {
    /// The rules, in the order in which they are checked: a row is counted for the first that it breaks.
    pub rules: Vec<Rule>,
    /// Whether exact duplicates are removed.
    pub exact: bool,
    /// Minimum similarity of near-duplicates, which are removed, 0 < s ≤ 1; `None`: they are kept.
    pub near: Option<f64>,
    /// Words of the n-grams that are compared.
    pub ngram: usize,
    /// The part of the rows that is compared.
    pub part: Part,
    /// How examples are built, for rules on tokens.
    pub example: ExampleOptions,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self {
            rules: vec![Rule::Empty],
            exact: true,
            near: Some(0.8),
            ngram: 3,
            part: Part::default(),
            example: ExampleOptions::default(),
        }
    }
}

/// The report of cleaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CleanReport {
    /// Rows that were read.
    pub rows: u64,
    /// Rows that were kept.
    pub kept: u64,
    /// Rows that were removed.
    pub rejected: u64,
    /// All rules, in the order in which they are checked.
    pub rules: Vec<RuleCount>,
}

/// Rows that a rule removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleCount {
    /// The rule's name.
    pub rule: String,
    /// Number of rows.
    pub rows: u64,
}

const UNREADABLE: &str = "unreadable";
const UNUSABLE: &str = "unusable";
const EXACT: &str = "exact-duplicate";
const NEAR: &str = "near-duplicate";

/// Cleans files: rows that are kept are written to `out` unchanged (one JSON object per line), the others to `rejects`
/// with `file`, `line`, `rule`, `reason` and `row`. The tokenizer is used only for rules on tokens.
///
/// # Errors
/// A file that cannot be opened or written; no rows; a rule on tokens without a tokenizer; a truncated file.
pub fn clean(
    files: &[PathBuf],
    read: &ReadOptions,
    tokenizer: Option<&TextTokenizer>,
    options: &CleanOptions,
    out: &Path,
    rejects: &Path,
) -> Result<CleanReport, DataError> {
    let needs_tokens = options.rules.iter().any(Rule::needs_tokens);
    if needs_tokens && tokenizer.is_none() {
        return Err(DataError::Setting {
            key: "model".into(),
            expected: "a folder with a tokenizer, as a rule counts tokens".into(),
            found: "none".into(),
            nearest: None,
        });
    }
    let mut cleaner = Cleaner {
        checker: RowChecker { options, tokenizer: tokenizer.filter(|_| needs_tokens) },
        exact: ExactIndex::default(),
        near: options.near.map(NearIndex::new),
        places: Places::default(),
        kept: LineWriter::create(out)?,
        rejected: LineWriter::create(rejects)?,
        counts: Counts::of(options),
    };
    for_each_batch(files, read, |batch| cleaner.take(batch))?;
    let report = cleaner.counts.report(cleaner.kept.lines(), cleaner.rejected.lines());
    if report.rows == 0 {
        return Err(DataError::NothingToTrain("there are no rows. Check the data files".into()));
    }
    cleaner.kept.commit()?;
    cleaner.rejected.commit()?;
    Ok(report)
}

struct RowChecker<'a> {
    options: &'a CleanOptions,
    tokenizer: Option<&'a TextTokenizer>,
}

/// The result of checking a row before it is compared with others.
enum Verdict {
    Rejected { rule: String, reason: String },
    Compare { hash: [u64; 2], signature: Option<Box<Signature>> },
}

impl RowChecker<'_> {
    fn verdict(&self, row: &SourcedRow) -> Verdict {
        let tokens = match self.tokenizer.map(|tokenizer| {
            let options = ExampleOptions { max_length: None, ..self.options.example.clone() };
            build(tokenizer, row, &options)
        }) {
            None => None,
            Some(Ok(example)) => Some(example.ids.len()),
            Some(Err(cause)) => {
                return Verdict::Rejected { rule: UNUSABLE.into(), reason: cause.to_string() };
            }
        };
        for (at, rule) in self.options.rules.iter().enumerate() {
            if let Some(reason) = rule.violation(&row.row, tokens) {
                return Verdict::Rejected { rule: shown(&self.options.rules, at), reason };
            }
        }
        let near = self.options.near.is_some();
        let text = near.then(|| self.options.part.text(&row.row));
        Verdict::Compare {
            hash: self.options.part.hash(&row.row),
            signature: text.and_then(|text| signature(&text, self.options.ngram)).map(Box::new),
        }
    }
}

/// A rule's name, with a number if several rules have the same name.
fn shown(rules: &[Rule], at: usize) -> String {
    let name = rules[at].name();
    let alike = |rule: &&Rule| rule.name() == name;
    match rules.iter().filter(alike).count() {
        1 => name.to_owned(),
        _ => format!("{name} {}", rules[..=at].iter().filter(alike).count()),
    }
}

struct Cleaner<'a> {
    checker: RowChecker<'a>,
    exact: ExactIndex,
    near: Option<NearIndex>,
    places: Places,
    kept: LineWriter,
    rejected: LineWriter,
    counts: Counts,
}

impl Cleaner<'_> {
    fn take(&mut self, batch: Vec<Read>) -> Result<(), DataError> {
        let checker = &self.checker;
        let checked: Vec<_> = batch
            .into_par_iter()
            .map(|read| {
                read.map(|(row, _, record)| (checker.verdict(&row), row.source, record.json_line()))
            })
            .collect();
        for row in checked {
            match row {
                Err(fault) if fault.ends_file() => {
                    return Err(DataError::Faults(fault.into()));
                }
                Err(fault) => {
                    let (source, text) = (&fault.source_row, fault.text.as_deref());
                    self.reject(source, UNREADABLE, &fault.cause.to_string(), text)?;
                }
                Ok((Verdict::Rejected { rule, reason }, source, line)) => {
                    self.reject(&source, &rule, &reason, Some(&line))?;
                }
                Ok((Verdict::Compare { hash, signature }, source, line)) => {
                    match self.duplicate(&source, hash, signature.as_deref()) {
                        None => self.kept.line(&line)?,
                        Some((rule, reason)) => self.reject(&source, rule, &reason, Some(&line))?,
                    }
                }
            }
        }
        Ok(())
    }

    /// The rule and reason if the row is a duplicate of an earlier one.
    fn duplicate(
        &mut self,
        source: &Source,
        hash: [u64; 2],
        signature: Option<&Signature>,
    ) -> Option<(&'static str, String)> {
        let number = self.places.push(source);
        let earlier = |places: &Places, number| {
            places.get(number).map(|source| source.to_string()).unwrap_or_default()
        };
        if self.checker.options.exact
            && let Some(first) = self.exact.find_or_insert(hash, number)
        {
            return Some((EXACT, format!("same as {}", earlier(&self.places, first))));
        }
        let (first, similarity) = self.near.as_mut()?.find_or_insert(signature?, number)?;
        Some((NEAR, format!("similar to {}, {similarity:.2}", earlier(&self.places, first))))
    }

    fn reject(
        &mut self,
        source: &Source,
        rule: &str,
        reason: &str,
        row: Option<&str>,
    ) -> Result<(), DataError> {
        self.counts.add(rule);
        let mut line = reject_line(source, reason, row);
        if let Some(object) = line.as_object_mut() {
            object.shift_insert(2, "rule".into(), rule.into());
        }
        self.rejected.value(&line)
    }
}

struct Counts {
    rules: Vec<RuleCount>,
}

impl Counts {
    fn of(options: &CleanOptions) -> Self {
        let rules = (0..options.rules.len()).map(|at| shown(&options.rules, at));
        let unusable = options.rules.iter().any(Rule::needs_tokens).then_some(UNUSABLE);
        let exact = options.exact.then_some(EXACT);
        let near = options.near.map(|_| NEAR);
        let names = std::iter::once(UNREADABLE.to_owned())
            .chain(unusable.map(str::to_owned))
            .chain(rules)
            .chain(exact.into_iter().chain(near).map(str::to_owned));
        Self { rules: names.map(|rule| RuleCount { rule, rows: 0 }).collect() }
    }

    fn add(&mut self, rule: &str) {
        if let Some(count) = self.rules.iter_mut().find(|count| count.rule == rule) {
            count.rows += 1;
        }
    }

    fn report(&self, kept: u64, rejected: u64) -> CleanReport {
        CleanReport { rows: kept + rejected, kept, rejected, rules: self.rules.clone() }
    }
}

#[cfg(test)]
mod tests;
