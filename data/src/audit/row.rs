//! Checking a single row.

use std::collections::BTreeSet;

use aho_corasick::AhoCorasick;

use super::finding::Finding;
use super::options::AuditOptions;
use crate::error::Fault;
use crate::example::{Example, ExampleOptions, build};
use crate::format::Format;
use crate::location::Source;
use crate::near::{Part, Signature, signature};
use crate::row::{Row, SourcedRow};
use crate::source::Read;
use crate::text::quality::{cut_off, html_marks, mojibake, urls};
use crate::tokenizer::TextTokenizer;

/// The results of checking a row.
pub(super) struct RowReport {
    pub(super) source: Source,
    pub(super) findings: Vec<Finding>,
    pub(super) fault: Option<String>,
    pub(super) format: Format,
    pub(super) size: Option<Size>,
    pub(super) hash: Option<[u64; 2]>,
    pub(super) signature: Option<Box<Signature>>,
    pub(super) example: Option<Example>,
}

/// Token counts of an example.
pub(super) struct Size {
    /// Length before truncation.
    pub(super) length: u64,
    /// Length after truncation.
    pub(super) tokens: u64,
    pub(super) supervised: u64,
}

/// Checks rows one by one.
pub(super) struct RowChecker<'a> {
    pub(super) tokenizer: &'a TextTokenizer,
    pub(super) options: &'a AuditOptions,
    pub(super) specials: AhoCorasick,
    pub(super) stops: BTreeSet<u32>,
}

impl RowChecker<'_> {
    /// `keep`: whether the report keeps the example.
    pub(super) fn check(&self, row: &Read, keep: bool) -> RowReport {
        let (row, format) = match row {
            Ok((row, format, _)) => (row, format),
            Err(fault) => return unreadable(fault),
        };
        let mut findings = self.of_text(&row.row);
        let mut report = RowReport {
            source: row.source.clone(),
            findings: Vec::new(),
            fault: None,
            format: *format,
            size: None,
            hash: Some(Part::Row.hash(&row.row)),
            signature: None,
            example: None,
        };
        if self.options.near.is_some() {
            let text = Part::Row.text(&row.row);
            report.signature = signature(&text, self.options.ngram).map(Box::new);
        }
        match self.example(row) {
            Err(fault) => {
                findings.push(Finding::Unusable);
                report.fault = Some(fault.to_string());
            }
            Ok((example, length)) => {
                let supervised = example.supervised();
                findings.extend(self.of_tokens(&example, supervised));
                report.size = Some(Size {
                    length: length as u64,
                    tokens: example.ids.len() as u64,
                    supervised: supervised as u64,
                });
                report.example = Some(example).filter(|_| keep);
            }
        }
        report.findings = findings;
        report
    }

    /// The example and its length before truncation.
    fn example(&self, row: &SourcedRow) -> Result<(Example, usize), Fault> {
        let options = &self.options.example;
        let built = |options: &ExampleOptions| {
            build(self.tokenizer, row, options)
                .map_err(|cause| Fault::new(row.source.clone(), cause))
        };
        let example = built(options)?;
        let length = if example.truncated {
            built(&ExampleOptions { max_length: None, ..options.clone() })?.ids.len()
        } else {
            example.ids.len()
        };
        Ok((example, length))
    }

    fn of_tokens(&self, example: &Example, supervised: usize) -> Vec<Finding> {
        let mut findings = Vec::new();
        if example.truncated {
            findings.push(Finding::Truncated);
        }
        if supervised == 0 {
            findings.push(Finding::AllMasked);
        } else if supervised < self.options.min_supervised {
            findings.push(Finding::TooShort);
        }
        let mut end = 0;
        let unended = example.loss_mask.chunk_by(|a, b| a == b).any(|run| {
            end += run.len();
            let truncated = example.truncated && end == example.ids.len();
            run[0] && !truncated && !self.stops.contains(&example.ids[end - 1])
        });
        if unended {
            findings.push(Finding::WithoutEndMark);
        }
        let bos = self.tokenizer.bos_id();
        if bos.is_some()
            && example.ids.first().copied() == bos
            && example.ids.get(1).copied() == bos
        {
            findings.push(Finding::DoubledBos);
        }
        findings
    }

    fn of_text(&self, row: &Row) -> Vec<Finding> {
        let texts = Part::Row.texts(row);
        let any = |test: &dyn Fn(&str) -> bool| texts.iter().any(|(_, text)| test(text));
        let last = Part::Answer.texts(row).last().map_or("", |(_, text)| *text);
        let last = if let Row::Text(text) = row { text } else { last };
        let found = [
            (Finding::SpecialTokens, any(&|text| self.specials.is_match(text))),
            (Finding::Empty, is_empty(row)),
            (Finding::CutOff, cut_off(last)),
            (Finding::Html, any(&|text| html_marks(text) >= 2)),
            (Finding::Urls, any(&is_mostly_urls)),
            (Finding::Mojibake, any(&|text| mojibake(text) > 0)),
        ];
        found.into_iter().filter(|(_, found)| *found).map(|(finding, _)| finding).collect()
    }
}

/// Whether a text has ten URLs, or two or more that make up 30 % of it.
pub(crate) fn is_mostly_urls(text: &str) -> bool {
    let (count, share) = urls(text);
    count >= 10 || (count >= 2 && share >= 0.3)
}

/// Whether a message, the prompt or the completion is empty. Tool calls need no text.
pub(crate) fn is_empty(row: &Row) -> bool {
    match row {
        Row::Text(text) => text.trim().is_empty(),
        Row::Completion { prompt, completion } => {
            prompt.trim().is_empty() || completion.trim().is_empty()
        }
        Row::Chat { messages, .. } => messages.iter().any(|message| {
            message.content.trim().is_empty()
                && message.extra.is_empty()
                && message.role != "system"
        }),
    }
}

fn unreadable(fault: &Fault) -> RowReport {
    RowReport {
        source: fault.source_row.clone(),
        findings: vec![Finding::Unreadable],
        fault: Some(fault.to_string()),
        format: Format::Auto,
        size: None,
        hash: None,
        signature: None,
        example: None,
    }
}
