//! Evaluation data with masked entities: prompts that end before a number, a date or a name, which a model that knows the
//! fact completes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use clap::ValueEnum;
use regex::Regex;
use serde::Serialize;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::DataError;
use crate::location::Source;
use crate::near::Part;
use crate::output::LineWriter;
use crate::row::Row;
use crate::source::{ReadOptions, Rejects, for_each_batch};

/// A kind of entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntityKind {
    /// An entity of the list, not found by a rule.
    #[value(skip)]
    Listed,
    /// A date: `2024-01-31`, `31.1.2024`, `31 January 2024`, `January 31, 2024`, `January 2024`
    Date,
    /// A number, with sign, currency, thousands separators, decimals or percent
    Number,
    /// Capitalized words, except a single one at the start of a sentence (for English)
    Name,
}

impl EntityKind {
    /// The kinds that are found by rules.
    pub const BY_RULE: [Self; 3] = [Self::Date, Self::Number, Self::Name];
}

/// Options of masking.
#[derive(Debug, Clone)]
pub struct MaskOptions {
    /// Kinds that are found by rules.
    pub kinds: Vec<EntityKind>,
    /// Listed entities, matched as whole words, with priority over the other kinds.
    pub listed: Vec<String>,
    /// Maximum entities of a row. Each makes a separate question.
    pub per_row: usize,
    /// Minimum characters of the answer before an entity: without context no entity could be known.
    pub context: usize,
    /// Random seed of the choice among a row's entities.
    pub seed: u64,
}

impl Default for MaskOptions {
    fn default() -> Self {
        Self {
            kinds: EntityKind::BY_RULE.to_vec(),
            listed: Vec::new(),
            per_row: 1,
            context: 20,
            seed: 0,
        }
    }
}

/// The report of masking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MaskReport {
    /// Rows that were read.
    pub rows: u64,
    /// Questions that were written.
    pub questions: u64,
    /// Questions whose prompt contains the entity.
    pub copied: u64,
    /// Questions with a listed entity.
    pub listed: u64,
    /// Questions with a date.
    pub date: u64,
    /// Questions with a number.
    pub number: u64,
    /// Questions with a name.
    pub name: u64,
    /// Rows without an entity.
    pub without: u64,
}

/// Writes questions from the rows of files: `prompt` (the text before the entity), `completion` (the entity with the space
/// before it), `entity`, `kind`, `copied` (whether the prompt contains the entity), `masked` (the whole answer with `____`
/// in place of the entity), `file`, `line`. To be read with template `none`, as rows of `prompt` and `completion`.
///
/// # Errors
/// A file that cannot be opened or written; invalid rows that `rejects` does not skip; no entity in any row.
pub fn mask(
    files: &[PathBuf],
    read: &ReadOptions,
    options: &MaskOptions,
    mut rejects: Rejects,
    out: &Path,
) -> Result<MaskReport, DataError> {
    let finder = Finder::new(options)?;
    let mut report = MaskReport::default();
    let mut writer = LineWriter::create(out)?;
    for_each_batch(files, read, |batch| {
        for row in batch {
            match row {
                Err(fault) => rejects.take(fault)?,
                Ok((row, _, _)) => {
                    report.rows += 1;
                    let questions = finder.questions(&row.row, &row.source);
                    report.without += u64::from(questions.is_empty());
                    for question in questions {
                        report.count(&question);
                        writer.value(&question.value)?;
                    }
                }
            }
        }
        Ok::<_, DataError>(())
    })?;
    rejects.finish()?;
    if report.questions == 0 {
        return Err(DataError::NothingToTrain(format!(
            "no entity was found in {} rows. Select other kinds, or give a list of entities",
            report.rows
        )));
    }
    writer.commit()?;
    Ok(report)
}

struct Question {
    kind: EntityKind,
    copied: bool,
    value: serde_json::Value,
}

impl MaskReport {
    fn count(&mut self, question: &Question) {
        self.questions += 1;
        self.copied += u64::from(question.copied);
        *match question.kind {
            EntityKind::Listed => &mut self.listed,
            EntityKind::Date => &mut self.date,
            EntityKind::Number => &mut self.number,
            EntityKind::Name => &mut self.name,
        } += 1;
    }
}

struct Finder<'a> {
    options: &'a MaskOptions,
    listed: Option<AhoCorasick>,
}

impl<'a> Finder<'a> {
    fn new(options: &'a MaskOptions) -> Result<Self, DataError> {
        let words: Vec<&str> =
            options.listed.iter().map(|word| word.trim()).filter(|word| !word.is_empty()).collect();
        let listed = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&words);
        let listed = listed.map_err(|error| DataError::Setting {
            key: "list".into(),
            expected: format!("a list of entities ({error})"),
            found: format!("{} entries", words.len()),
            nearest: None,
        })?;
        Ok(Self { options, listed: Some(listed).filter(|_| !words.is_empty()) })
    }

    fn questions(&self, row: &Row, source: &Source) -> Vec<Question> {
        let answers = Part::Answer.texts(row);
        let answer = match (row, answers.last()) {
            (Row::Text(text), _) => text,
            (_, Some((_, text))) => *text,
            (_, None) => return Vec::new(),
        };
        let before = before_the_answer(row);
        // Entities that could be copied from the prompt come last: they show the least about what the model knows.
        let mut found: Vec<(bool, u64, EntityKind, usize, usize)> = self
            .entities(answer)
            .into_iter()
            .filter(|(_, start, _)| answer[..*start].chars().count() >= self.options.context)
            .map(|(kind, start, end)| {
                let key = format!("{source}:{start}");
                let entity = &answer[start..end];
                let copied = before.contains(entity) || answer[..start].contains(entity);
                (copied, xxh3_64_with_seed(key.as_bytes(), self.options.seed), kind, start, end)
            })
            .collect();
        found.sort_unstable();
        found.truncate(self.options.per_row);
        found.sort_unstable_by_key(|(_, _, _, start, _)| *start);
        found
            .into_iter()
            .map(|(copied, _, kind, start, end)| {
                let entity = &answer[start..end];
                let lead = answer[..start].trim_end_matches(' ');
                let prompt = format!("{before}{lead}");
                let value = json!({
                    "prompt": prompt,
                    "completion": &answer[lead.len()..end],
                    "entity": entity,
                    "kind": kind,
                    "copied": copied,
                    "masked": format!("{}____{}", &answer[..start], &answer[end..]),
                    "file": source.file.to_string_lossy(),
                    "line": source.line,
                });
                Question { kind, copied, value }
            })
            .collect()
    }

    /// Entities in order. Of overlapping ones, the one of the first kind is kept.
    fn entities(&self, text: &str) -> Vec<(EntityKind, usize, usize)> {
        let mut found: Vec<(EntityKind, usize, usize)> = Vec::new();
        let mut add = |kind: EntityKind, start: usize, end: usize| {
            if found.iter().all(|(_, from, to)| end <= *from || start >= *to) {
                found.push((kind, start, end));
            }
        };
        for place in self.listed.iter().flat_map(|listed| listed.find_iter(text)) {
            if is_whole(text, place.start(), place.end()) {
                add(EntityKind::Listed, place.start(), place.end());
            }
        }
        let mut kinds = self.options.kinds.clone();
        kinds.sort_unstable();
        for kind in kinds {
            for (start, end) in by_rule(kind, text) {
                add(kind, start, end);
            }
        }
        found.sort_unstable_by_key(|(_, start, _)| *start);
        found
    }
}

/// The text before the last answer.
fn before_the_answer(row: &Row) -> String {
    match row {
        Row::Text(_) => String::new(),
        Row::Completion { prompt, .. } => prompt.clone(),
        Row::Chat { messages, .. } => {
            let last = messages.iter().rposition(|message| message.role == "assistant");
            let before = &messages[..last.unwrap_or(messages.len())];
            before.iter().map(|message| format!("{}\n\n", message.content)).collect()
        }
    }
}

/// Whether there is no letter or digit directly before or after the range.
fn is_whole(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].chars().next_back().is_some_and(char::is_alphanumeric);
    let after = text[end..].chars().next().is_some_and(char::is_alphanumeric);
    !before && !after
}

fn by_rule(kind: EntityKind, text: &str) -> Vec<(usize, usize)> {
    const MONTH: &str = "(?:January|February|March|April|May|June|July|August|September|October|November|December|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)";
    static DATE: LazyLock<Regex> = LazyLock::new(|| {
        expression(&format!(
            r"\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}|\d{{1,2}}(?:st|nd|rd|th)?\s{MONTH}\.?,?\s\d{{4}}|{MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}|{MONTH}\.?\s\d{{4}}"
        ))
    });
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| expression(r"[-+]?[$€£]?\d+(?:[,.]\d+)*\s?%?"));
    static NAME: LazyLock<Regex> = LazyLock::new(|| {
        expression(
            r"\p{Lu}[\p{L}'’-]+(?:\s(?:(?:of|the|de|la|von|van|der)\s){0,2}\p{Lu}[\p{L}'’-]+)*",
        )
    });
    let found = match kind {
        EntityKind::Listed => return Vec::new(),
        EntityKind::Date => DATE.find_iter(text),
        EntityKind::Number => NUMBER.find_iter(text),
        EntityKind::Name => NAME.find_iter(text),
    };
    found
        .map(|place| (place.start(), place.start() + place.as_str().trim_end().len()))
        .filter(|(start, end)| is_whole(text, *start, *end))
        .filter(|(start, end)| {
            kind != EntityKind::Name || is_name(text, *start, &text[*start..*end])
        })
        .collect()
}

/// A single word at the start of a sentence is capitalized anyway, and doesn't count.
fn is_name(text: &str, start: usize, found: &str) -> bool {
    const NO_NAMES: [&str; 16] = [
        "I'm", "I've", "I'll", "I'd", "The", "This", "That", "These", "Those", "It's", "If", "In",
        "Yes", "No", "And", "But",
    ];
    let before = text[..start].trim_end_matches([' ', '"', '“', '\'', '(', '*', '_']);
    let begins =
        before.is_empty() || before.ends_with(['.', '!', '?', ':', ';', '\n', '-', '•', '…']);
    !NO_NAMES.contains(&found) && (!begins || found.contains(char::is_whitespace))
}

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant that a test compiles")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entities(text: &str, listed: &[&str]) -> Vec<(EntityKind, String)> {
        let options = MaskOptions {
            listed: listed.iter().map(|word| (*word).to_owned()).collect(),
            ..MaskOptions::default()
        };
        let found = Finder::new(&options).unwrap().entities(text);
        found.into_iter().map(|(kind, from, to)| (kind, text[from..to].to_owned())).collect()
    }

    #[test]
    fn entities_are_found_by_rules_and_by_list() {
        let text = "Paris was ruled by Louis the Great from 1643. On 14 July 1789 it cost $1,200.50, or 5 %; \
            A4 and v2 are none. Yesterday Marie Curie came; see 2024-01-31.";
        let expected = [
            (EntityKind::Name, "Louis the Great"),
            (EntityKind::Number, "1643"),
            (EntityKind::Date, "14 July 1789"),
            (EntityKind::Number, "$1,200.50"),
            (EntityKind::Number, "5 %"),
            (EntityKind::Name, "Yesterday Marie Curie"),
            (EntityKind::Date, "2024-01-31"),
        ];
        assert_eq!(entities(text, &[]), expected.map(|(kind, text)| (kind, text.to_owned())));
        let found = entities("the red stone of 12 stones and 3", &["stone", "of 12"]);
        let expected = [
            (EntityKind::Listed, "stone"),
            (EntityKind::Listed, "of 12"),
            (EntityKind::Number, "3"),
        ];
        assert_eq!(found, expected.map(|(kind, text)| (kind, text.to_owned())));
    }

    #[test]
    fn a_question_is_the_text_before_the_entity() {
        let row = Row::Completion {
            prompt: "How old? ".into(),
            completion: "The tower in the harbour is 42 years old.".into(),
        };
        let options = MaskOptions::default();
        let questions = Finder::new(&options).unwrap().questions(&row, &Source::new("x.jsonl", 3));
        assert_eq!(questions.len(), 1);
        let value = &questions[0].value;
        assert_eq!(value["prompt"], "How old? The tower in the harbour is");
        assert_eq!((&value["completion"], &value["entity"]), (&json!(" 42"), &json!("42")));
        assert_eq!(value["masked"], "The tower in the harbour is ____ years old.");
        assert_eq!((&value["copied"], &value["line"]), (&json!(false), &json!(3)));
        // Entities that the prompt contains come last.
        let row = Row::Text("The 12 men who came here saw 12 ships and 30 boats.".into());
        let questions = Finder::new(&options).unwrap().questions(&row, &Source::new("x", 1));
        assert_eq!(questions[0].value["entity"], "30");
        let row = Row::Text("The tower in the harbour is 42 years old.".into());
        // Too little context.
        let options = MaskOptions { context: 40, ..options };
        let questions = Finder::new(&options).unwrap().questions(&row, &Source::new("x", 1));
        assert!(questions.is_empty());
    }
}
