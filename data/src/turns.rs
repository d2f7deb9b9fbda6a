//! Start and end of the assistant's turns, for templates without generation tags.
//!
//! A turn is trained on from the end of its header (the text that `add_generation_prompt` appends) to the end of its
//! end-of-turn mark. Both are found by rendering the conversation again with the turn's text replaced by a placeholder:
//! the text around the placeholder does not depend on the turn's text, so content that repeats, is trimmed or contains
//! the template's own marks causes no mistakes. A template that this doesn't work for is an error.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::error::TemplateError;

/// Messages as the template sees them.
pub(crate) type Messages = Vec<Map<String, Value>>;

/// Renders messages, with or without the generation prompt.
pub(crate) type Render<'a> =
    dyn Fn(&[Map<String, Value>], bool) -> Result<String, TemplateError> + 'a;

/// How a template starts and ends an assistant's turn, determined with a small conversation.
#[derive(Debug)]
pub(crate) struct TurnMarks {
    /// The text that `add_generation_prompt` appends, or else all text after the question in a generation prompt.
    header: Option<String>,
    /// All text after the content of the last turn.
    closing: String,
    /// From the end of the content to the end of the end-of-turn mark, in the last turn.
    pub(crate) end_last: String,
    /// The same in a turn that is followed by another.
    pub(crate) end_inner: String,
}

impl TurnMarks {
    /// `added`: the added tokens, one of which ends a turn.
    pub(crate) fn probe(render: &Render<'_>, added: &[String]) -> Result<Self, TemplateError> {
        let [ask, say, again] = ["Qz0Vask", "Qz1Vsay", "Qz2Vagain"];
        let message = |role: &str, content: &str| -> Map<String, Value> {
            Map::from_iter([("role".into(), role.into()), ("content".into(), content.into())])
        };
        let user = vec![message("user", ask)];
        let answered = vec![user[0].clone(), message("assistant", say)];
        let mut followed = answered.clone();
        followed.push(message("user", again));

        // Without a header, a turn starts where the end of the question ends.
        let prompt = render(&user, true).ok();
        let past = render(&user, false).ok();
        let header = prompt.as_deref().and_then(|prompt| {
            let appended = past.and_then(|past| prompt.strip_prefix(&past));
            appended
                .filter(|header| !header.is_empty())
                .or_else(|| Some(prompt.rsplit_once(ask)?.1))
        });
        let text = render(&answered, false)?;
        let closing = match text.rsplit_once(say) {
            Some((_, closing)) => closing.to_owned(),
            None => return Err(TemplateError::WithoutAssistant { turn: 1 }),
        };
        // A template may reject a conversation that ends with a question.
        let inner = render(&followed, false)
            .ok()
            .and_then(|text| Some(text.split_once(say)?.1.rsplit_once(again)?.0.to_owned()))
            .unwrap_or_else(|| closing.clone());
        let common = &closing[..common_prefix(&closing, &inner)];
        let [end_last, end_inner] = match first_added(&closing, added) {
            // No added token ends a turn: the common end of all turns does, such as a line break.
            None => [common.to_owned(), common.to_owned()],
            Some(end) if inner.starts_with(&closing[..end]) => {
                [closing[..end].to_owned(), closing[..end].to_owned()]
            }
            // The last turn may end differently from the others.
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

/// Byte ranges of the turns with the indices `assistants` in `text`, the rendering of all messages.
pub(crate) fn derive(
    render: &Render<'_>,
    marks: &TurnMarks,
    messages: &Messages,
    assistants: &[usize],
    text: &str,
) -> Result<Vec<Range<usize>>, TemplateError> {
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(assistants.len());
    for &turn in assistants {
        let derivation = Derivation { render, marks, messages, turn, text };
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
    render: &'a Render<'a>,
    marks: &'a TurnMarks,
    messages: &'a Messages,
    turn: usize,
    text: &'a str,
}

impl Derivation<'_> {
    fn span(&self) -> Result<Range<usize>, TemplateError> {
        let holder = placeholder(self.text, 'X');
        let replaced = self.with(self.turn, &holder, self.messages);
        let rendering = (self.render)(&replaced, false)?;
        let mut pieces = rendering.split(holder.as_str());
        let (before, after) = match (pieces.next(), pieces.next(), pieces.next()) {
            (Some(before), Some(after), None) => (before, after),
            // A tool call may be rendered without the turn's text.
            (_, None, _) => {
                return self.by_prefix().ok_or(TemplateError::WithoutAssistant { turn: self.turn });
            }
            _ => {
                return self.by_prefix().ok_or_else(|| {
                    self.underivable("the template renders its text more than once")
                });
            }
        };
        let start = self.header_end(before, &replaced)?;
        if !self.text.starts_with(&before[..start]) {
            return Err(self.underivable("the text before it depends on its content"));
        }
        let mark = self.end_mark(after, &replaced, &holder)?;
        if !self.text.ends_with(&after[mark.start..]) {
            return Err(self.underivable("the text after it depends on its content"));
        }
        let end = self.text.len() - (after.len() - mark.end);
        if end < start {
            return Err(self.underivable("its end is before its start"));
        }
        Ok(start..end)
    }

    /// End of the turn's header in `before`, the text before the turn's content.
    fn header_end(&self, before: &str, replaced: &Messages) -> Result<usize, TemplateError> {
        let by_header = || {
            let header = self.marks.header.as_deref()?;
            before.rfind(header).map(|at| at..at + header.len())
        };
        if self.turn == 0 {
            // A template may insert a system message before the first one, but not into an empty conversation, which
            // therefore can't be compared.
            return Ok(by_header().map_or(before.len(), |header| header.end));
        }
        if let Ok(prompt) = (self.render)(&self.messages[..self.turn], true) {
            let common = common_prefix(before, &prompt);
            if common == prompt.len() {
                return Ok(common);
            }
            // The prompt may append more than earlier turns have (an open `<think>`): the header is the common part.
            if let Ok(past) = (self.render)(&self.messages[..self.turn], false)
                && before.starts_with(&past)
                && common == before.len()
            {
                return Ok(common);
            }
        }
        // Earlier turns are rendered differently when nothing follows them: search for the header itself.
        by_header()
            .filter(|header| self.outside_of_previous(&before[header.start..], replaced))
            .map(|header| header.end)
            .ok_or_else(|| {
                self.underivable(
                    "the header that add_generation_prompt appends is missing before it",
                )
            })
    }

    /// Whether `tail`, the text right before the turn's content, contains no text of the previous message.
    fn outside_of_previous(&self, tail: &str, replaced: &Messages) -> bool {
        let previous = placeholder(self.text, 'Y');
        let holder = placeholder(self.text, 'X');
        let both = self.with(self.turn - 1, &previous, replaced);
        let Ok(rendering) = (self.render)(&both, false) else { return false };
        let Some((before, _)) = rendering.split_once(holder.as_str()) else { return false };
        before.strip_suffix(tail).is_some_and(|head| {
            head.contains(previous.as_str()) || !before.contains(previous.as_str())
        })
    }

    /// Range of the end-of-turn mark in `after`, the text after the turn's content.
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
        // There is more text before the mark, such as tool calls: determine it by rendering the turn as the last one.
        let alone = (self.render)(&replaced[..=self.turn], false)?;
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

    /// The turn as the difference between the conversations with and without it.
    fn by_prefix(&self) -> Option<Range<usize>> {
        let prompt = (self.render)(&self.messages[..self.turn], true).ok()?;
        let through = (self.render)(&self.messages[..=self.turn], false).ok()?;
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

/// A word that does not occur in the text and that no template trims or splits.
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

/// Length of the common prefix, at a character boundary.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}
