//! The rules of cleaning.

use regex::Regex;

use crate::audit::{is_empty, is_mostly_urls};
use crate::error::DataError;
use crate::near::Part;
use crate::row::Row;
use crate::text::language::Languages;
use crate::text::quality::{cut_off, garbage, html_marks, mojibake, repetition};

/// A rule that a row must satisfy to be kept. Characters are counted in the row's texts without roles.
#[derive(Debug, Clone)]
pub enum Rule {
    /// No message, prompt or completion is empty.
    Empty,
    /// Minimum characters of the row.
    MinChars(usize),
    /// Maximum characters of the row.
    MaxChars(usize),
    /// Minimum characters of the answer.
    MinAnswerChars(usize),
    /// Minimum tokens of the example.
    MinTokens(usize),
    /// Maximum tokens of the example.
    MaxTokens(usize),
    /// No text of the row matches.
    Drop(Regex),
    /// Some text of the row matches.
    Keep(Regex),
    /// At most one HTML tag or entity in a text, outside of code.
    Html,
    /// No text that is mostly URLs.
    Urls,
    /// No text decoded with a wrong encoding, and at most 1 % control, private-use and replacement characters.
    Garbage,
    /// The answer does not end in mid-sentence.
    CutOff,
    /// Maximum share of repeated three-word sequences in a text.
    Repetition(f64),
    /// Minimum share of the row's letters in one of the languages.
    Language {
        /// The languages.
        languages: Languages,
        /// The share, 0 to 1.
        share: f64,
    },
}

impl Rule {
    /// The name in a report.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::MinChars(_) => "min-chars",
            Self::MaxChars(_) => "max-chars",
            Self::MinAnswerChars(_) => "min-answer-chars",
            Self::MinTokens(_) => "min-tokens",
            Self::MaxTokens(_) => "max-tokens",
            Self::Drop(_) => "drop",
            Self::Keep(_) => "keep",
            Self::Html => "html",
            Self::Urls => "urls",
            Self::Garbage => "garbage",
            Self::CutOff => "cut-off",
            Self::Repetition(_) => "repetition",
            Self::Language { .. } => "language",
        }
    }

    /// Whether the rule counts tokens.
    pub(super) fn needs_tokens(&self) -> bool {
        matches!(self, Self::MinTokens(_) | Self::MaxTokens(_))
    }

    /// Why the row violates the rule, if it does. `tokens`: the number of tokens of its example.
    pub(super) fn violation(&self, row: &Row, tokens: Option<usize>) -> Option<String> {
        let texts = || Part::Row.texts(row).into_iter().map(|(_, text)| text);
        let chars = |part: Part| -> usize {
            part.texts(row).iter().map(|(_, text)| text.chars().count()).sum()
        };
        match self {
            Self::Empty => is_empty(row).then(|| "an empty message".into()),
            Self::MinChars(least) => below(chars(Part::Row), *least, "characters"),
            Self::MaxChars(most) => above(chars(Part::Row), *most, "characters"),
            Self::MinAnswerChars(least) => {
                below(chars(Part::Answer), *least, "characters of the answer")
            }
            Self::MinTokens(least) => below(tokens?, *least, "tokens"),
            Self::MaxTokens(most) => above(tokens?, *most, "tokens"),
            Self::Drop(expression) => texts().find_map(|text| {
                let found = expression.find(text)?;
                Some(format!("`{expression}` matches `{}`", short(found.as_str())))
            }),
            Self::Keep(expression) => (!texts().any(|text| expression.is_match(text)))
                .then(|| format!("`{expression}` matches nothing")),
            Self::Html => {
                let most = texts().map(html_marks).max().unwrap_or(0);
                (most >= 2).then(|| format!("{most} HTML tags or entities"))
            }
            Self::Urls => texts().any(is_mostly_urls).then(|| "a text is mostly URLs".into()),
            Self::Garbage => texts().find_map(|text| {
                let share = garbage(text);
                match mojibake(text) {
                    0 if share <= 0.01 => None,
                    0 => Some(format!("{:.1} % of the characters are not text", 100.0 * share)),
                    count => Some(format!("{count} characters were decoded with a wrong encoding")),
                }
            }),
            Self::CutOff => {
                let texts = Part::Answer.texts(row);
                let last = texts.last().map_or("", |(_, text)| *text);
                cut_off(last).then(|| "the answer ends in mid-sentence".into())
            }
            Self::Repetition(most) => {
                let share = texts().map(repetition).fold(0.0, f64::max);
                (share > *most).then(|| format!("{:.0} % is repeated", 100.0 * share))
            }
            Self::Language { languages, share } => {
                let found = languages.share(&Part::Row.text(row))?;
                (found < *share)
                    .then(|| format!("{:.0} % is in the selected languages", 100.0 * found))
            }
        }
    }
}

/// A regular expression for [`Rule::Drop`] and [`Rule::Keep`].
///
/// # Errors
/// An invalid pattern.
pub fn pattern(text: &str) -> Result<Regex, DataError> {
    Regex::new(text).map_err(|error| DataError::Setting {
        key: "pattern".into(),
        expected: format!("a regular expression ({error})"),
        found: text.to_owned(),
        nearest: None,
    })
}

fn below(found: usize, least: usize, what: &str) -> Option<String> {
    (found < least).then(|| format!("{found} {what}, expected at least {least}"))
}

fn above(found: usize, most: usize, what: &str) -> Option<String> {
    (found > most).then(|| format!("{found} {what}, expected at most {most}"))
}

fn short(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
