//! Tokenizing a row and computing its loss mask.

use std::num::NonZeroUsize;
use std::ops::Range;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::error::{DataError, Faults, RowError};
use crate::location::Source;
use crate::row::{Message, Row, SourcedRow};
use crate::supervision::{TrainOn, Turn, chosen, row_weight};
use crate::tokenizer::TextTokenizer;

/// A tokenized row.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The tokens.
    pub ids: Vec<u32>,
    /// `loss_mask[i]`: token `i` is supervised. The first token has no effect, as nothing predicts it.
    pub loss_mask: Vec<bool>,
    /// Loss weight of each supervised token, 0 for the others; empty if all weights are 1.
    pub weights: Vec<f32>,
    /// Where the row was read.
    pub source: Source,
    /// Whether the example was truncated to `max_length`.
    pub truncated: bool,
    /// Plain text, which is split over rows instead of being truncated.
    pub is_document: bool,
}

impl Example {
    /// Positions of the supervised tokens, except the first token.
    pub fn supervised_positions(&self) -> impl Iterator<Item = usize> {
        (1..self.ids.len()).filter(|position| self.loss_mask[*position])
    }

    /// Number of supervised tokens.
    pub fn supervised(&self) -> usize {
        self.supervised_positions().count()
    }
}

/// Which chat template renders conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TemplateChoice {
    /// The tokenizer's chat template, if there is one; also for prompts with completions.
    #[default]
    Auto,
    /// No template: prompt and completion are joined, and end with the end-of-text token.
    None,
}

/// How examples are built.
#[derive(Debug, Clone, Default)]
pub struct ExampleOptions {
    /// Maximum tokens of a row. Conversations and completions are truncated; documents of plain text are split over rows.
    pub max_length: Option<NonZeroUsize>,
    /// Which turns of a conversation are trained on.
    pub train_on: TrainOn,
    /// Which chat template renders conversations.
    pub template: TemplateChoice,
    /// The date (`YYYY-MM-DD`) of a template's `strftime_now`; `None`: today. Set it for results that can be reproduced
    /// on another day.
    pub date: Option<String>,
}

/// Tokenizes a row.
///
/// # Errors
/// A row that the template can't render or that has no assistant message, named by file and line.
pub fn example(
    tokenizer: &TextTokenizer,
    row: &SourcedRow,
    options: &ExampleOptions,
) -> Result<Example, DataError> {
    build(tokenizer, row, options)
        .map_err(|cause| DataError::Faults(Faults::one(row.source.clone(), cause)))
}

pub(crate) fn build(
    tokenizer: &TextTokenizer,
    row: &SourcedRow,
    options: &ExampleOptions,
) -> Result<Example, RowError> {
    let templated = options.template == TemplateChoice::Auto && tokenizer.has_chat_template();
    let row_weight = row_weight(&row.marks, options.train_on)?;
    let Labelled { mut ids, mut loss_mask, mut weights } = match &row.row {
        Row::Text(text) => document(tokenizer, text)?,
        Row::Chat { messages, tools } if templated => {
            chat(tokenizer, messages, tools.as_ref(), options)?
        }
        Row::Chat { .. } => {
            return Err(RowError::NoChatTemplate {
                why: match options.template {
                    TemplateChoice::Auto => "the tokenizer has none",
                    TemplateChoice::None => "the template is set to none",
                },
            });
        }
        Row::Completion { prompt, completion } if templated => {
            let messages = [
                Message::new("user", prompt.as_str()),
                Message::new("assistant", completion.as_str()),
            ];
            chat(tokenizer, &messages, None, options)?
        }
        Row::Completion { prompt, completion } => completed(tokenizer, prompt, completion)?,
    };
    let is_document = matches!(row.row, Row::Text(_));
    let max_length = options.max_length.filter(|_| !is_document);
    let truncated = max_length.is_some_and(|max| ids.len() > max.get());
    if let Some(max) = max_length {
        ids.truncate(max.get());
        loss_mask.truncate(max.get());
        weights.truncate(max.get());
    }
    if row_weight == 0.0 {
        loss_mask.fill(false);
    } else if row_weight != 1.0 {
        weights.resize(loss_mask.len(), 1.0);
        weights.iter_mut().for_each(|weight| *weight *= row_weight);
    }
    let weights = sparse_weights(&loss_mask, weights);
    Ok(Example { ids, loss_mask, weights, source: row.source.clone(), truncated, is_document })
}

/// Weights in the form of [`Example::weights`]: 0 for unsupervised tokens, empty if all others are 1.
pub(crate) fn sparse_weights(loss_mask: &[bool], mut weights: Vec<f32>) -> Vec<f32> {
    let ones =
        loss_mask.iter().zip(&weights).all(|(supervised, weight)| !supervised || *weight == 1.0);
    if ones {
        return Vec::new();
    }
    for (weight, supervised) in weights.iter_mut().zip(loss_mask) {
        *weight = if *supervised { *weight } else { 0.0 };
    }
    weights
}

/// Tokens, loss mask and weights (empty: all 1).
struct Labelled {
    ids: Vec<u32>,
    loss_mask: Vec<bool>,
    weights: Vec<f32>,
}

fn chat(
    tokenizer: &TextTokenizer,
    messages: &[Message],
    tools: Option<&Value>,
    options: &ExampleOptions,
) -> Result<Labelled, RowError> {
    let turns = chosen(messages, options.train_on)?;
    let date = options.date.as_deref();
    let render = |turns: &[Turn]| {
        let turns: Vec<usize> = turns.iter().map(|turn| turn.message).collect();
        tokenizer.render_chosen(messages, tools, date, &turns)
    };
    let rendered = render(&turns)?;
    let encoded = tokenizer.encoded(&rendered.text).map_err(RowError::Tokenizer)?;
    let loss_mask = mask_of_spans(&encoded.offsets, &rendered.loss_spans);
    let mut weights = Vec::new();
    if turns.iter().any(|turn| turn.weight != 1.0) {
        // Spans don't identify their turns, so the spans of each weight are rendered separately.
        weights.resize(loss_mask.len(), 1.0);
        let mut values: Vec<f32> = turns.iter().map(|turn| turn.weight).collect();
        values.sort_unstable_by(f32::total_cmp);
        values.dedup();
        for value in values {
            let same_weight: Vec<Turn> =
                turns.iter().filter(|turn| turn.weight == value).copied().collect();
            let mask = mask_of_spans(&encoded.offsets, &render(&same_weight)?.loss_spans);
            for (weight, supervised) in weights.iter_mut().zip(mask) {
                if supervised {
                    *weight = value;
                }
            }
        }
    }
    Ok(Labelled { ids: encoded.ids, loss_mask, weights })
}

fn document(tokenizer: &TextTokenizer, text: &str) -> Result<Labelled, RowError> {
    let encoded = tokenizer.encoded(text).map_err(RowError::Tokenizer)?;
    let ids = framed(tokenizer, &encoded.ids);
    let loss_mask = vec![true; ids.len()];
    Ok(Labelled { ids, loss_mask, weights: Vec::new() })
}

fn completed(
    tokenizer: &TextTokenizer,
    prompt: &str,
    completion: &str,
) -> Result<Labelled, RowError> {
    if tokenizer.eos_id().is_none() {
        return Err(RowError::NoEos);
    }
    // Tokenized as one text: a token that spans the boundary belongs to the completion.
    let encoded =
        tokenizer.encoded(&format!("{prompt}{completion}")).map_err(RowError::Tokenizer)?;
    let ids = framed(tokenizer, &encoded.ids);
    let span = prompt.len()..prompt.len() + completion.len();
    let mut loss_mask = vec![false; tokenizer.prefix().len()];
    loss_mask.extend(mask_of_spans(&encoded.offsets, std::slice::from_ref(&span)));
    loss_mask.resize(ids.len(), true);
    Ok(Labelled { ids, loss_mask, weights: Vec::new() })
}

/// The tokens of a whole text with the special tokens around it, ending with the end-of-text token if there is one.
fn framed(tokenizer: &TextTokenizer, body: &[u32]) -> Vec<u32> {
    let suffix = tokenizer.suffix();
    let eos = tokenizer.eos_id().filter(|eos| !suffix.contains(eos));
    [tokenizer.prefix(), body, suffix].into_iter().flatten().copied().chain(eos).collect()
}

/// The loss mask of spans: from the first token that overlaps a span to the last. The tokens of one character all have
/// its range; a token with an empty range counts if it is between two that overlap.
fn mask_of_spans(offsets: &[(usize, usize)], spans: &[Range<usize>]) -> Vec<bool> {
    let mut mask = vec![false; offsets.len()];
    for span in spans {
        let overlaps =
            |(begin, end): &(usize, usize)| begin < end && *begin < span.end && *end > span.start;
        if let (Some(first), Some(last)) =
            (offsets.iter().position(overlaps), offsets.iter().rposition(overlaps))
        {
            mask[first..=last].fill(true);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_supervised_if_it_overlaps_a_span() {
        // Bytes of one character share its range; a token may have none.
        let offsets = [(0, 2), (2, 3), (3, 7), (3, 7), (7, 7), (7, 9), (9, 9)];
        assert_eq!(
            mask_of_spans(&offsets, std::slice::from_ref(&(4..8))),
            [false, false, true, true, true, true, false]
        );
        assert_eq!(
            mask_of_spans(&offsets, &[0..1, 2..3]),
            [true, true, false, false, false, false, false]
        );
        assert_eq!(mask_of_spans(&offsets, std::slice::from_ref(&(9..9))), [false; 7]);
    }
}
