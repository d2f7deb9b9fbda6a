//! From a row to tokens and the mask of what is trained.

use std::num::NonZeroUsize;
use std::ops::Range;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::error::{DataError, Faults, RowError};
use crate::row::{Message, Row, Source, SourcedRow};
use crate::supervision::{TrainOn, Turn, chosen, row_weight};
use crate::tokenizer::TextTokenizer;

/// A tokenized row.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The tokens.
    pub ids: Vec<u32>,
    /// `trained[i]`: token `i` is a target. The first is none in effect, as nothing predicts it.
    pub trained: Vec<bool>,
    /// What the loss of each target counts, 0 at the others; empty if it is 1 for all of them.
    pub weights: Vec<f32>,
    /// Where the row stands.
    pub source: Source,
    /// Whether tokens beyond `max_length` were cut off.
    pub truncated: bool,
    /// Plain text: what is longer than `max_length` is not cut off, but goes on in another row.
    pub is_document: bool,
}

impl Example {
    /// Positions of tokens that are targets and have one before them.
    pub fn supervised_positions(&self) -> impl Iterator<Item = usize> {
        (1..self.ids.len()).filter(|position| self.trained[*position])
    }

    /// Number of targets.
    pub fn supervised(&self) -> usize {
        self.supervised_positions().count()
    }
}

/// How conversations are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TemplateChoice {
    /// By the tokenizer's chat template; prompts with completions too, if it has one.
    #[default]
    Auto,
    /// Not at all: prompt, completion and end-of-text token as they are.
    None,
}

/// How examples are made.
#[derive(Debug, Clone, Default)]
pub struct ExampleOptions {
    /// Tokens of a row at most. Of a conversation or a completion the first are kept; documents of plain text are kept
    /// whole, and split over rows.
    pub max_length: Option<NonZeroUsize>,
    /// Which turns of a conversation are trained.
    pub train_on: TrainOn,
    /// How conversations are written.
    pub template: TemplateChoice,
    /// The day (`YYYY-MM-DD`) that a template's `strftime_now` tells; today if none. A run that must come out the
    /// same tomorrow sets it.
    pub date: Option<String>,
}

/// Tokenizes a row.
///
/// # Errors
/// A row that cannot be written with the template, or has nothing to train on; it is named by file and line.
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
    let Labelled { mut ids, mut trained, mut weights } = match &row.row {
        Row::Text(text) => document(tokenizer, text)?,
        Row::Chat { messages, tools } if templated => {
            chat(tokenizer, messages, tools.as_ref(), options)?
        }
        Row::Chat { .. } => {
            return Err(RowError::NoChatTemplate {
                why: match options.template {
                    TemplateChoice::Auto => "the tokenizer has none",
                    TemplateChoice::None => "the options ask for none",
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
    let most = options.max_length.filter(|_| !is_document);
    let truncated = most.is_some_and(|most| ids.len() > most.get());
    if let Some(most) = most {
        ids.truncate(most.get());
        trained.truncate(most.get());
        weights.truncate(most.get());
    }
    if row_weight == 0.0 {
        trained.fill(false);
    } else if row_weight != 1.0 {
        weights.resize(trained.len(), 1.0);
        weights.iter_mut().for_each(|weight| *weight *= row_weight);
    }
    let weights = told_weights(&trained, weights);
    Ok(Example { ids, trained, weights, source: row.source.clone(), truncated, is_document })
}

/// Weights as an [`Example`] tells them.
pub(crate) fn told_weights(trained: &[bool], mut weights: Vec<f32>) -> Vec<f32> {
    let ones = trained.iter().zip(&weights).all(|(trained, weight)| !trained || *weight == 1.0);
    if ones {
        return Vec::new();
    }
    for (weight, trained) in weights.iter_mut().zip(trained) {
        *weight = if *trained { *weight } else { 0.0 };
    }
    weights
}

/// Tokens, which of them are trained, and what their losses count (nothing said: 1).
struct Labelled {
    ids: Vec<u32>,
    trained: Vec<bool>,
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
    let trained = mask(&encoded.offsets, &rendered.trained);
    let mut weights = Vec::new();
    if turns.iter().any(|turn| turn.weight != 1.0) {
        // Spans don't say whose turn they are: those of each weight are found by themselves.
        weights.resize(trained.len(), 1.0);
        let mut values: Vec<f32> = turns.iter().map(|turn| turn.weight).collect();
        values.sort_unstable_by(f32::total_cmp);
        values.dedup();
        for value in values {
            let alike: Vec<Turn> =
                turns.iter().filter(|turn| turn.weight == value).copied().collect();
            let trained = mask(&encoded.offsets, &render(&alike)?.trained);
            for (weight, trained) in weights.iter_mut().zip(trained) {
                if trained {
                    *weight = value;
                }
            }
        }
    }
    Ok(Labelled { ids: encoded.ids, trained, weights })
}

fn document(tokenizer: &TextTokenizer, text: &str) -> Result<Labelled, RowError> {
    let encoded = tokenizer.encoded(text).map_err(RowError::Tokenizer)?;
    let ids = framed(tokenizer, &encoded.ids);
    let trained = vec![true; ids.len()];
    Ok(Labelled { ids, trained, weights: Vec::new() })
}

fn completed(
    tokenizer: &TextTokenizer,
    prompt: &str,
    completion: &str,
) -> Result<Labelled, RowError> {
    if tokenizer.eos_id().is_none() {
        return Err(RowError::NoEos);
    }
    // Tokenized as one: a token that spans the border belongs to the completion.
    let encoded =
        tokenizer.encoded(&format!("{prompt}{completion}")).map_err(RowError::Tokenizer)?;
    let ids = framed(tokenizer, &encoded.ids);
    let trained_range = prompt.len()..prompt.len() + completion.len();
    let mut trained = vec![false; tokenizer.prefix().len()];
    trained.extend(mask(&encoded.offsets, std::slice::from_ref(&trained_range)));
    trained.resize(ids.len(), true);
    Ok(Labelled { ids, trained, weights: Vec::new() })
}

/// The tokens of a whole text, which ends with the end-of-text token if there is one.
fn framed(tokenizer: &TextTokenizer, body: &[u32]) -> Vec<u32> {
    let suffix = tokenizer.suffix();
    let eos = tokenizer.eos_id().filter(|eos| !suffix.contains(eos));
    [tokenizer.prefix(), body, suffix].into_iter().flatten().copied().chain(eos).collect()
}

/// Which tokens overlap a span: all from the first that does to the last. A character split over tokens gives all
/// of them the same range, and a token without a range of its own counts by its place.
fn mask(offsets: &[(usize, usize)], spans: &[Range<usize>]) -> Vec<bool> {
    let mut trained = vec![false; offsets.len()];
    for span in spans {
        let overlaps =
            |(begin, end): &(usize, usize)| begin < end && *begin < span.end && *end > span.start;
        if let (Some(first), Some(last)) =
            (offsets.iter().position(overlaps), offsets.iter().rposition(overlaps))
        {
            trained[first..=last].fill(true);
        }
    }
    trained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trained_if_it_overlaps_a_span() {
        // Bytes of one character share its range; a token may have none.
        let offsets = [(0, 2), (2, 3), (3, 7), (3, 7), (7, 7), (7, 9), (9, 9)];
        assert_eq!(
            mask(&offsets, std::slice::from_ref(&(4..8))),
            [false, false, true, true, true, true, false]
        );
        assert_eq!(mask(&offsets, &[0..1, 2..3]), [true, true, false, false, false, false, false]);
        assert_eq!(mask(&offsets, std::slice::from_ref(&(9..9))), [false; 7]);
    }
}
