//! Answers to the sample prompts over time.

use indicatif::HumanCount;
use serde::Serialize;

use super::read::{RunData, SampleRow};

/// Maximum number of prompts, of answers of a run to one prompt, and of characters of a text.
const PROMPTS: usize = 30;
const ANSWERS: usize = 12;
const CHARACTERS: usize = 1500;

/// A prompt and the runs' answers.
#[derive(Debug, Serialize)]
pub(crate) struct Prompt {
    prompt: String,
    answers: Vec<Answer>,
    /// Number of answers that are not shown.
    left_out: usize,
}

#[derive(Debug, Serialize)]
struct Answer {
    /// Index of the run.
    run: usize,
    step: String,
    text: String,
    /// Whether it equals the one before.
    is_same: bool,
}

/// The prompts in order of first occurrence, and the number of prompts left out.
pub(crate) fn prompts(runs: &[RunData]) -> (Vec<Prompt>, usize) {
    let mut texts: Vec<&str> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for row in runs.iter().flat_map(|run| &run.samples) {
        if known.insert(row.prompt.as_str()) {
            texts.push(&row.prompt);
        }
    }
    let left_out = texts.len().saturating_sub(PROMPTS);
    texts.truncate(PROMPTS);
    (texts.into_iter().map(|text| prompt(text, runs)).collect(), left_out)
}

fn prompt(text: &str, runs: &[RunData]) -> Prompt {
    let mut shown = Prompt { prompt: cut(text), answers: Vec::new(), left_out: 0 };
    for (n, run) in runs.iter().enumerate() {
        let mut rows: Vec<&SampleRow> = Vec::new();
        for row in run.samples.iter().filter(|row| row.prompt == text) {
            // As for metrics: after a resume the earlier rows of repeated steps are obsolete.
            rows.retain(|earlier| earlier.step < row.step);
            rows.push(row);
        }
        let count = rows.len();
        let kept = evenly(count, ANSWERS);
        shown.left_out += count - kept.len();
        let mut before: Option<&str> = None;
        for row in kept.into_iter().map(|at| rows[at]) {
            let is_same = before == Some(row.answer.as_str());
            before = Some(&row.answer);
            let (step, text) = (HumanCount(row.step).to_string(), cut(&row.answer));
            shown.answers.push(Answer { run: n, step, text, is_same });
        }
    }
    shown
}

/// `wanted` indices below `count`, evenly spaced from the first to the last.
fn evenly(count: usize, wanted: usize) -> Vec<usize> {
    if count <= wanted {
        return (0..count).collect();
    }
    (0..wanted).map(|n| n * (count - 1) / (wanted - 1)).collect()
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{} […]", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: &[(u64, &str, &str)]) -> RunData {
        let row = |&(step, prompt, answer): &(u64, &str, &str)| SampleRow {
            step,
            prompt: prompt.to_owned(),
            answer: answer.to_owned(),
        };
        RunData { samples: rows.iter().map(row).collect(), ..RunData::default() }
    }

    #[test]
    fn answers_are_grouped_by_prompt_run_and_step() {
        let runs = [
            run(&[(0, "a", "1"), (0, "b", "2"), (5, "a", "1"), (9, "a", "old"), (7, "a", "3")]),
            run(&[(0, "a", "4")]),
        ];
        let (prompts, left_out) = prompts(&runs);
        assert_eq!(left_out, 0);
        let of = |n: usize| {
            let answers = prompts[n].answers.iter();
            answers.map(|a| (a.run, a.step.clone(), a.text.clone(), a.is_same)).collect::<Vec<_>>()
        };
        let answer =
            |run, step: &str, text: &str, same| (run, step.to_owned(), text.to_owned(), same);
        let expected = [
            answer(0, "0", "1", false),
            answer(0, "5", "1", true),
            answer(0, "7", "3", false),
            answer(1, "0", "4", false),
        ];
        assert_eq!(of(0), expected);
        assert_eq!(of(1), [answer(0, "0", "2", false)]);
    }

    #[test]
    fn many_answers_and_long_texts_are_shortened_with_a_note() {
        let long = "é".repeat(CHARACTERS + 1);
        let rows: Vec<_> = (0..100).map(|step| (step, "a", long.as_str())).collect();
        let (found, _) = prompts(&[run(&rows)]);
        assert_eq!((found[0].answers.len(), found[0].left_out), (ANSWERS, 100 - ANSWERS));
        let ends = [&found[0].answers[0], &found[0].answers[ANSWERS - 1]].map(|a| a.step.clone());
        assert_eq!(ends, ["0", "99"]);
        assert!(found[0].answers[0].text.ends_with("[…]"));
        let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let rows: Vec<_> = names.iter().map(|name| (0, name.as_str(), "x")).collect();
        let (found, left_out) = prompts(&[run(&rows)]);
        assert_eq!((found.len(), left_out), (PROMPTS, 10));
    }
}
