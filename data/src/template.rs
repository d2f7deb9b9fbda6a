//! Chat templates: rendering as transformers does, and determining the part of the text that is trained on.

use std::ops::Range;
use std::sync::OnceLock;

use jiff::Zoned;
use jiff::civil::Date;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::error::TemplateError;
use crate::generation_tag::{self, FILTER, MARKS};
use crate::python;
use crate::row::Message;
use crate::turns::{self, Messages, TurnMarks};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A conversation as text, and the parts of it that are trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole conversation.
    pub text: String,
    /// Byte ranges of the text that are trained on, in order and disjoint.
    pub loss_spans: Vec<Range<usize>>,
}

/// A template's text, its name and the file it was read from.
pub(crate) struct TemplateSource {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) file: String,
}

/// The templates of one tokenizer.
pub(crate) struct ChatTemplates {
    env: Environment<'static>,
    /// Names of templates with generation tags.
    tagged: Vec<String>,
    tool_use: bool,
    /// `bos_token` and other special tokens, as variables of the template.
    variables: Vec<(String, String)>,
    /// Texts of the added tokens. One of them usually ends a turn; not all of those are flagged as special.
    added: Vec<String>,
    turn_marks: OnceLock<Result<TurnMarks, TemplateError>>,
}

/// A template with everything but the messages, for rendering variations of a conversation.
pub(crate) struct Conversation<'a> {
    templates: &'a ChatTemplates,
    tools: Value,
    template: &'static str,
    date: Option<Date>,
}

impl ChatTemplates {
    pub(crate) fn new(
        sources: Vec<TemplateSource>,
        variables: Vec<(String, String)>,
        added: Vec<String>,
    ) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        python::install(&mut env);
        env.add_filter(FILTER, mark);
        let mut tagged = Vec::new();
        let mut tool_use = false;
        for TemplateSource { name, text, file } in sources {
            let rewritten = generation_tag::rewrite(&text).into_owned();
            if rewritten != text {
                tagged.push(name.clone());
            }
            tool_use |= name == TOOL_USE;
            env.add_template_owned(name, rewritten)
                .map_err(|error| TemplateError::Syntax { file, detail: with_causes(&error) })?;
        }
        Ok(Self { env, tagged, tool_use, variables, added, turn_marks: OnceLock::new() })
    }

    pub(crate) fn conversation(
        &self,
        tools: Option<&Json>,
        date: Option<&str>,
    ) -> Result<Conversation<'_>, TemplateError> {
        let date = match date {
            None => None,
            Some(text) => Some(
                text.parse::<Date>().map_err(|_| TemplateError::Date { found: text.to_owned() })?,
            ),
        };
        Ok(Conversation {
            templates: self,
            tools: tools.map_or(Value::from(()), Value::from_serialize),
            template: if tools.is_some() && self.tool_use { TOOL_USE } else { DEFAULT },
            date,
        })
    }

    /// How turns start and end in this template; determined once.
    pub(crate) fn turn_marks(&self) -> Result<&TurnMarks, TemplateError> {
        let probe = || {
            let conversation = self.conversation(None, Some("2024-07-26"))?;
            TurnMarks::probe(&|messages, prompt| conversation.render(messages, prompt), &self.added)
        };
        self.turn_marks.get_or_init(probe).as_ref().map_err(Clone::clone)
    }

    /// The added token at the end of a text.
    pub(crate) fn ending_token(&self, text: &str) -> Option<&str> {
        self.added
            .iter()
            .map(String::as_str)
            .filter(|token| text.ends_with(token))
            .max_by_key(|token| token.len())
    }
}

impl Conversation<'_> {
    pub(crate) fn render(
        &self,
        messages: &[Map<String, Json>],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_marked(messages, add_generation_prompt, None)
    }

    fn render_marked(
        &self,
        messages: &[Map<String, Json>],
        add_generation_prompt: bool,
        marks: Option<[char; 2]>,
    ) -> Result<String, TemplateError> {
        let rejected = |error: Error| TemplateError::Render { detail: with_causes(&error) };
        let template =
            self.templates.env.get_template(self.template).map_err(|_| TemplateError::Missing)?;
        let date = self.date;
        let marks = marks.map_or_else(String::new, |marks| marks.iter().collect());
        let variables = self
            .templates
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), Value::from(value.as_str())));
        let context: Value = variables
            .chain([
                ("messages", Value::from_serialize(messages)),
                ("tools", self.tools.clone()),
                ("documents", Value::from(())),
                ("add_generation_prompt", Value::from(add_generation_prompt)),
                (
                    "strftime_now",
                    Value::from_function(move |format: String| strftime(&format, date)),
                ),
                (MARKS, Value::from(marks)),
            ])
            .collect();
        template.render(context).map_err(rejected)
    }

    /// Renders the whole conversation and determines the spans to train on: the assistant's turns, or only the
    /// `chosen` ones.
    pub(crate) fn render_with_loss_spans(
        &self,
        messages: &Messages,
        chosen: Option<&[usize]>,
    ) -> Result<Rendered, TemplateError> {
        let tagged = self.templates.tagged.iter().any(|name| name == self.template);
        let assistants: Vec<usize> =
            (0..messages.len()).filter(|i| is_assistant(&messages[*i])).collect();
        let turns = chosen.unwrap_or(&assistants);
        let render = |messages: &[Map<String, Json>], prompt| self.render(messages, prompt);
        let derive = |text: &str| {
            turns::derive(&render, self.templates.turn_marks()?, messages, turns, text)
        };
        if !tagged {
            let text = self.render(messages, false)?;
            let loss_spans = if turns.is_empty() { Vec::new() } else { derive(&text)? };
            return Ok(Rendered { text, loss_spans });
        }
        // Marks that don't occur in the rendering, so that no content can be mistaken for them.
        let plain = self.render(messages, false)?;
        let marks = generation_tag::unused_marks(std::iter::once(plain.as_str()));
        let (text, mut loss_spans) =
            generation_tag::unmark(&self.render_marked(messages, false, Some(marks))?, marks);
        match assistants.first() {
            Some(turn) if text != plain => Err(TemplateError::Underivable {
                turn: *turn,
                detail: "the template computes with the text between the generation tags".into(),
            }),
            Some(turn) if loss_spans.is_empty() => {
                Err(TemplateError::WithoutAssistant { turn: *turn })
            }
            _ => {
                if turns.is_empty() {
                    loss_spans.clear();
                } else if turns != assistants {
                    // The tags don't identify the turns: match them with the positions of the turns.
                    let ranges = derive(&text)?;
                    let overlap =
                        |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
                    loss_spans.retain(|span| ranges.iter().any(|range| overlap(span, range)));
                }
                Ok(Rendered { text, loss_spans })
            }
        }
    }
}

/// Messages as the template sees them.
pub(crate) fn values(messages: &[Message]) -> Messages {
    messages.iter().map(Message::to_value).collect()
}

fn is_assistant(message: &Map<String, Json>) -> bool {
    message.get("role").and_then(Json::as_str) == Some("assistant")
}

/// The filter that replaces the generation tags.
fn mark(content: &str, marks: &str) -> String {
    let mut marks = marks.chars();
    match (marks.next(), marks.next()) {
        (Some(begin), Some(end)) => format!("{begin}{content}{end}"),
        _ => content.to_owned(),
    }
}

fn strftime(format: &str, date: Option<Date>) -> Result<String, Error> {
    let text = match date {
        Some(date) => jiff::fmt::strtime::format(format, date.at(0, 0, 0, 0)),
        None => jiff::fmt::strtime::format(format, &Zoned::now()),
    };
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// The error and its causes in one line.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
