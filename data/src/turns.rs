//! Where an assistant's turn begins and ends in a template that does not say so.
//!
//! Trained is a turn from the end of its header (what `add_generation_prompt` appends) to the end of its
//! end-of-turn mark. Both are found by rendering the conversation again with the turn's text replaced by a
//! placeholder: what stands before and after the placeholder does not depend on the text, so content that repeats,
//! is trimmed, or holds the template's own marks misleads nobody. What does not fit is an error.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::error::TemplateError;
use crate::template::{Conversation, Messages};

/// How a template opens and closes an assistant's turn, found out with a small conversation.
#[derive(Debug)]
pub(crate) struct TurnMarks {
    /// What `add_generation_prompt` appends, or else all that follows a question's text when an answer is asked for.
    header: Option<String>,
    /// All that follows the text of a turn that is the last.
    closing: String,
    /// From the text's end to the end of the end-of-turn mark, in the last turn.
    pub(crate) end_last: String,
    /// The same in a turn that another follows.
    pub(crate) end_inner: String,
}

impl TurnMarks {
    pub(crate) fn probe(
        conversation: &Conversation<'_>,
        added: &[String],
    ) -> Result<Self, TemplateError> {
        let [ask, say, again] = ["Qz0Vask", "Qz1Vsay", "Qz2Vagain"];
        let message = |role: &str, content: &str| -> Map<String, Value> {
            Map::from_iter([("role".into(), role.into()), ("content".into(), content.into())])
        };
        let user = vec![message("user", ask)];
        let answered = vec![user[0].clone(), message("assistant", say)];
        let mut followed = answered.clone();
        followed.push(message("user", again));

        // Without a header of its own, a turn begins where the question's closing ends.
        let prompt = conversation.render(&user, true).ok();
        let past = conversation.render(&user, false).ok();
        let header = prompt.as_deref().and_then(|prompt| {
            let appended = past.and_then(|past| prompt.strip_prefix(&past));
            appended
                .filter(|header| !header.is_empty())
                .or_else(|| Some(prompt.rsplit_once(ask)?.1))
        });
        let text = conversation.render(&answered, false)?;
        let closing = match text.rsplit_once(say) {
            Some((_, closing)) => closing.to_owned(),
            None => return Err(TemplateError::WithoutAssistant { turn: 1 }),
        };
        // A template may refuse a conversation that ends with a question.
        let inner = conversation
            .render(&followed, false)
            .ok()
            .and_then(|text| Some(text.split_once(say)?.1.rsplit_once(again)?.0.to_owned()))
            .unwrap_or_else(|| closing.clone());
        let common = &closing[..common_prefix(&closing, &inner)];
        let [end_last, end_inner] = match first_added(&closing, added) {
            // No added token ends a turn: what closes every turn does, a line break for instance.
            None => [common.to_owned(), common.to_owned()],
            Some(end) if inner.starts_with(&closing[..end]) => {
                [closing[..end].to_owned(), closing[..end].to_owned()]
            }
            // The last turn may end otherwise than the others.
            Some(end) => {
                let other = first_added(&inner, added).map_or(common, |end| &inner[..end]);
                [closing[..end].to_owned(), other.to_owned()]
            }
        };
        Ok(Self {
            header: header.filter(|header| !header.is_empty()).map(str::to_owned),
            closing,
            end_last,
            end_inner,
        })
    }
}

/// End of the first added token in the text.
fn first_added(text: &str, added: &[String]) -> Option<usize> {
    added
        .iter()
        .filter_map(|token| {
            text.find(token.as_str()).map(|at| (at, std::cmp::Reverse(at + token.len())))
        })
        .min()
        .map(|(_, std::cmp::Reverse(end))| end)
}

/// Byte ranges of `text`, the whole rendering, that the assistant's turns at `assistants` take.
pub(crate) fn derive(
    conversation: &Conversation<'_>,
    marks: &TurnMarks,
    messages: &Messages,
    assistants: &[usize],
    text: &str,
) -> Result<Vec<Range<usize>>, TemplateError> {
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(assistants.len());
    for &turn in assistants {
        let derivation = Derivation { conversation, marks, messages, turn, text };
        let span = derivation.span()?;
        let previous = spans.last().map_or(0, |span| span.end);
        if span.start < previous {
            return Err(derivation.underivable("it overlaps the turn before it"));
        }
        spans.push(span);
    }
    Ok(spans)
}

struct Derivation<'a> {
    conversation: &'a Conversation<'a>,
    marks: &'a TurnMarks,
    messages: &'a Messages,
    turn: usize,
    text: &'a str,
}

impl Derivation<'_> {
    fn span(&self) -> Result<Range<usize>, TemplateError> {
        let holder = placeholder(self.text, 'X');
        let replaced = self.with(self.turn, &holder, self.messages);
        let rendering = self.conversation.render(&replaced, false)?;
        let mut pieces = rendering.split(holder.as_str());
        let (before, after) = match (pieces.next(), pieces.next(), pieces.next()) {
            (Some(before), Some(after), None) => (before, after),
            // A call of a tool may be written without the turn's text.
            (_, None, _) => {
                return self.by_prefix().ok_or(TemplateError::WithoutAssistant { turn: self.turn });
            }
            _ => {
                return self.by_prefix().ok_or_else(|| {
                    self.underivable("the template writes its text more than once")
                });
            }
        };
        let start = self.header_end(before, &replaced)?;
        if !self.text.starts_with(&before[..start]) {
            return Err(self.underivable("what stands before it depends on its text"));
        }
        let mark = self.end_mark(after, &replaced, &holder)?;
        if !self.text.ends_with(&after[mark.start..]) {
            return Err(self.underivable("what follows it depends on its text"));
        }
        let end = self.text.len() - (after.len() - mark.end);
        if end < start {
            return Err(self.underivable("its end stands before its beginning"));
        }
        Ok(start..end)
    }

    /// Where the turn's header ends in `before`, the text that precedes the turn's own.
    fn header_end(&self, before: &str, replaced: &Messages) -> Result<usize, TemplateError> {
        let by_header = || {
            let header = self.marks.header.as_deref()?;
            before.rfind(header).map(|at| at..at + header.len())
        };
        if self.turn == 0 {
            // A template may insert a system's message before the first one, and not if there is none: the beginning
            // of an empty conversation tells nothing.
            return Ok(by_header().map_or(before.len(), |header| header.end));
        }
        if let Ok(prompt) = self.conversation.render(&self.messages[..self.turn], true) {
            let common = common_prefix(before, &prompt);
            if common == prompt.len() {
                return Ok(common);
            }
            // The prompt may append more than a turn of the past holds (an opened `<think>`): the header is what both
            // have.
            if let Ok(past) = self.conversation.render(&self.messages[..self.turn], false)
                && before.starts_with(&past)
                && common == before.len()
            {
                return Ok(common);
            }
        }
        // The past is written otherwise when nothing follows it: look for the header itself.
        by_header()
            .filter(|header| self.outside_of_previous(&before[header.start..], replaced))
            .map(|header| header.end)
            .ok_or_else(|| {
                self.underivable(
                    "the header that add_generation_prompt appends does not stand before it",
                )
            })
    }

    /// Whether `tail`, which ends where the turn's text begins, is free of the previous message's text.
    fn outside_of_previous(&self, tail: &str, replaced: &Messages) -> bool {
        let previous = placeholder(self.text, 'Y');
        let holder = placeholder(self.text, 'X');
        let both = self.with(self.turn - 1, &previous, replaced);
        let Ok(rendering) = self.conversation.render(&both, false) else { return false };
        let Some((before, _)) = rendering.split_once(holder.as_str()) else { return false };
        before.strip_suffix(tail).is_some_and(|head| {
            head.contains(previous.as_str()) || !before.contains(previous.as_str())
        })
    }

    /// The end-of-turn mark in `after`, the text that follows the turn's own.
    fn end_mark(
        &self,
        after: &str,
        replaced: &Messages,
        holder: &str,
    ) -> Result<Range<usize>, TemplateError> {
        let last = self.turn + 1 == self.messages.len();
        let [first, second] = if last {
            [&self.marks.end_last, &self.marks.end_inner]
        } else {
            [&self.marks.end_inner, &self.marks.end_last]
        };
        if !self.messages[self.turn].contains_key("tool_calls") {
            for end in [first, second] {
                if after.starts_with(end.as_str()) {
                    return Ok(0..end.len());
                }
            }
        }
        // More is written between the text and the mark, such as calls of tools: what remains as the last turn tells it.
        let alone = self.conversation.render(&replaced[..=self.turn], false)?;
        if let Some((_, rest)) = alone.split_once(holder)
            && let Some(more) = rest.strip_suffix(self.marks.closing.as_str())
            && let Some(closing) = after.strip_prefix(more)
        {
            for end in [first, second] {
                if closing.starts_with(end.as_str()) {
                    return Ok(more.len()..more.len() + end.len());
                }
            }
        }
        Err(self.underivable("the end-of-turn mark does not follow it"))
    }

    /// The turn as what the conversation up to and with it has more than the conversation before it.
    fn by_prefix(&self) -> Option<Range<usize>> {
        let prompt = self.conversation.render(&self.messages[..self.turn], true).ok()?;
        let through = self.conversation.render(&self.messages[..=self.turn], false).ok()?;
        let body = through.strip_suffix(self.marks.closing.as_str())?;
        if body.len() <= prompt.len() || !body.starts_with(&prompt) {
            return None;
        }
        let rest = self.text.strip_prefix(body)?;
        let end = [&self.marks.end_last, &self.marks.end_inner]
            .into_iter()
            .find(|end| rest.starts_with(end.as_str()))?;
        Some(prompt.len()..body.len() + end.len())
    }

    fn with(&self, turn: usize, content: &str, messages: &Messages) -> Messages {
        let mut messages = messages.clone();
        messages[turn].insert("content".into(), content.into());
        messages
    }

    fn underivable(&self, detail: &str) -> TemplateError {
        TemplateError::Underivable { turn: self.turn, detail: detail.to_owned() }
    }
}

/// A word that does not occur in the text, and that no template trims or splits.
fn placeholder(text: &str, letter: char) -> String {
    let mut number = 0_u32;
    loop {
        let word = format!("Qz{letter}{number}{letter}zQ");
        if !text.contains(&word) {
            return word;
        }
        number += 1;
    }
}

/// Length of the common beginning, at a character's border.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}
