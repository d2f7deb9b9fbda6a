//! What can be said of one row by itself.

use super::Judge;
use super::finding::Finding;
use crate::error::Fault;
use crate::example::{Example, ExampleOptions, build};
use crate::near::{Part, Signature, signature};
use crate::row::{Row, Source, SourcedRow};
use crate::source::Read;
use crate::text::quality::{cut_off, html_marks, mojibake, urls};

/// What was found out about a row.
pub(super) struct Facts {
    pub(super) source: Source,
    pub(super) findings: Vec<Finding>,
    pub(super) fault: Option<String>,
    pub(super) kind: &'static str,
    pub(super) size: Option<Size>,
    pub(super) hash: Option<[u64; 2]>,
    pub(super) signature: Option<Box<Signature>>,
    pub(super) example: Option<Example>,
}

/// Tokens of an example.
pub(super) struct Size {
    /// Before it is cut.
    pub(super) length: u64,
    /// After it.
    pub(super) tokens: u64,
    pub(super) supervised: u64,
}

impl Judge<'_> {
    pub(super) fn facts(&self, row: &Read, keep: bool) -> Facts {
        let (row, format) = match row {
            Ok((row, format, _)) => (row, format),
            Err(fault) => return unreadable(fault),
        };
        let mut findings = self.of_text(&row.row);
        let mut facts = Facts {
            source: row.source.clone(),
            findings: Vec::new(),
            fault: None,
            kind: format.name(),
            size: None,
            hash: Some(Part::Row.hash(&row.row)),
            signature: None,
            example: None,
        };
        if self.options.near.is_some() {
            let text = Part::Row.text(&row.row);
            facts.signature = signature(&text, self.options.ngram).map(Box::new);
        }
        match self.example(row) {
            Err(fault) => {
                findings.push(Finding::Unusable);
                facts.fault = Some(fault.to_string());
            }
            Ok((example, length)) => {
                let supervised = example.supervised();
                findings.extend(self.of_tokens(&example, supervised));
                facts.size = Some(Size {
                    length: length as u64,
                    tokens: example.ids.len() as u64,
                    supervised: supervised as u64,
                });
                facts.example = Some(example).filter(|_| keep);
            }
        }
        facts.findings = findings;
        facts
    }

    /// The example as it is trained, and its length before it was cut.
    fn example(&self, row: &SourcedRow) -> Result<(Example, usize), Fault> {
        let options = &self.options.example;
        let made = |options: &ExampleOptions| {
            build(self.tokenizer, row, options)
                .map_err(|cause| Fault::new(row.source.clone(), cause))
        };
        let example = made(options)?;
        let length = if example.truncated {
            made(&ExampleOptions { max_length: None, ..options.clone() })?.ids.len()
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
        let endless = example.trained.chunk_by(|a, b| a == b).any(|run| {
            end += run.len();
            let cut = example.truncated && end == example.ids.len();
            run[0] && !cut && !self.stops.contains(&example.ids[end - 1])
        });
        if endless {
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
            (Finding::Urls, any(&is_url_heap)),
            (Finding::Mojibake, any(&|text| mojibake(text) > 0)),
        ];
        found.into_iter().filter(|(_, found)| *found).map(|(finding, _)| finding).collect()
    }
}

/// A text of addresses.
pub(crate) fn is_url_heap(text: &str) -> bool {
    let (count, share) = urls(text);
    count >= 10 || (count >= 2 && share >= 0.3)
}

/// Whether a message, the prompt or the completion is empty; a call of a tool needs no text.
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

fn unreadable(fault: &Fault) -> Facts {
    Facts {
        source: fault.source_row.clone(),
        findings: vec![Finding::Unreadable],
        fault: Some(fault.to_string()),
        kind: "unreadable",
        size: None,
        hash: None,
        signature: None,
        example: None,
    }
}
