//! A run folder as far as it can be read. What is missing or damaged is noted, and the rest is used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use toml::Table;

use super::thin::Point;
use crate::run::dataset_stats::{DATA_FILE, DataFile};

/// Files of a run folder that a report is made of.
const METRICS_FILE: &str = "metrics.jsonl";
const CONFIG_FILE: &str = "config.toml";
const SAMPLES_FILE: &str = "samples.jsonl";

/// What a run left behind.
#[derive(Debug, Default)]
pub(crate) struct RunData {
    /// What it is called here.
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) folder: PathBuf,
    /// Rows of steps, their steps rising.
    pub(crate) steps: Vec<StepRow>,
    /// Rows of evaluations, likewise.
    pub(crate) evals: Vec<EvalRow>,
    /// Prompts and answers, in the file's order.
    pub(crate) samples: Vec<SampleRow>,
    /// `data.json`.
    pub(crate) data: Option<DataFile>,
    /// The text of `config.toml`.
    pub(crate) config_text: Option<String>,
    /// Its content, where that is TOML.
    pub(crate) config: Table,
    /// What is missing or damaged.
    pub(crate) notes: Vec<String>,
}

/// A row of `metrics.jsonl` for a step. `None`: not told, or not a finite number.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StepRow {
    pub(crate) step: u64,
    pub(crate) epoch: Option<f64>,
    pub(crate) loss: Option<f64>,
    pub(crate) grad_norm: Option<f64>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) supervised_tokens: Option<f64>,
    pub(crate) tokens: Option<f64>,
    pub(crate) padding: Option<f64>,
    pub(crate) tokens_per_s: Option<f64>,
    pub(crate) peak_memory_mib: Option<f64>,
    /// Why the step left the weights as they were, where it did.
    pub(crate) skipped: Option<Value>,
}

/// A row of `metrics.jsonl` for an evaluation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EvalRow {
    pub(crate) step: u64,
    pub(crate) eval_loss: Option<f64>,
    pub(crate) eval_perplexity: Option<f64>,
}

/// A row of `samples.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct SampleRow {
    pub(crate) step: u64,
    pub(crate) prompt: String,
    pub(crate) answer: String,
}

impl RunData {
    /// Reads a folder; `None` if it has none of a run's files.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let mut run = Self { folder: folder.to_owned(), ..Self::default() };
        let found = [METRICS_FILE, CONFIG_FILE, SAMPLES_FILE, DATA_FILE]
            .into_iter()
            .any(|file| folder.join(file).exists());
        if !found {
            return None;
        }
        run.read_metrics();
        run.read_samples();
        run.read_data();
        run.read_config();
        Some(run)
    }

    /// A curve: what `value` finds in each row of a step.
    pub(crate) fn curve(&self, value: impl Fn(&StepRow) -> Option<f64>) -> Vec<Point> {
        let point = |row: &StepRow| Some((row.step as f64, value(row)?));
        self.steps.iter().filter_map(point).collect()
    }

    /// Losses of the evaluations.
    pub(crate) fn eval_curve(&self) -> Vec<Point> {
        let point = |row: &EvalRow| Some((row.step as f64, row.eval_loss?));
        self.evals.iter().filter_map(point).collect()
    }

    fn read_metrics(&mut self) {
        let rows: Vec<Value> = match self.rows(METRICS_FILE) {
            Some(rows) => rows,
            None => return self.notes.push(format!("There is no {METRICS_FILE}: no curves.")),
        };
        let mut went_back = None;
        let mut without_number = 0;
        for row in rows {
            if row.get("loss").is_some() {
                let Ok(row) = StepRow::deserialize(&row) else {
                    without_number += 1;
                    continue;
                };
                if row.loss.is_none() {
                    without_number += 1;
                }
                // A run that went on from an earlier checkpoint: what came after that is not part of it.
                if self.steps.last().is_some_and(|last| last.step >= row.step) {
                    went_back = Some(row.step);
                    self.steps.retain(|earlier| earlier.step < row.step);
                    self.evals.retain(|earlier| earlier.step < row.step);
                }
                self.steps.push(row);
            } else if row.get("eval_loss").is_some() {
                let Ok(row) = EvalRow::deserialize(&row) else {
                    without_number += 1;
                    continue;
                };
                self.evals.retain(|earlier| earlier.step < row.step);
                self.evals.push(row);
            }
        }
        if let Some(step) = went_back {
            self.notes.push(format!(
                "{METRICS_FILE} goes back to step {step}: of the rows that are there twice, the later ones are shown."
            ));
        }
        if without_number > 0 {
            self.notes.push(format!(
                "{without_number} rows of {METRICS_FILE} have no finite loss and are left out of the curves."
            ));
        }
        let mut skipped = self.steps.iter().filter(|row| row.skipped.is_some());
        if let Some(first) = skipped.next() {
            self.notes.push(format!(
                "{} steps left the weights as they were, the first is step {}.",
                1 + skipped.count(),
                first.step
            ));
        }
        if self.steps.is_empty() {
            self.notes.push(format!("{METRICS_FILE} has no row of a step."));
        }
    }

    fn read_samples(&mut self) {
        self.samples = self.rows(SAMPLES_FILE).unwrap_or_default();
    }

    fn read_data(&mut self) {
        match fs::read(self.folder.join(DATA_FILE)) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(data) => self.data = Some(data),
                Err(error) => self.notes.push(format!("{DATA_FILE} can't be read: {error}.")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.notes.push(format!("{DATA_FILE} can't be read: {error}.")),
        }
    }

    fn read_config(&mut self) {
        match fs::read_to_string(self.folder.join(CONFIG_FILE)) {
            Ok(text) => {
                match text.parse() {
                    Ok(table) => self.config = table,
                    Err(_) => self.notes.push(format!("{CONFIG_FILE} is no TOML.")),
                }
                self.config_text = Some(text);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.notes.push(format!("There is no {CONFIG_FILE}."));
            }
            Err(error) => self.notes.push(format!("{CONFIG_FILE} can't be read: {error}.")),
        }
    }

    /// The rows of a file of JSON lines that can be read; `None` if there is no such file.
    fn rows<T: for<'de> Deserialize<'de>>(&mut self, file: &str) -> Option<Vec<T>> {
        let bytes = match fs::read(self.folder.join(file)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.notes.push(format!("{file} can't be read: {error}."));
                return Some(Vec::new());
            }
        };
        let mut rows = Vec::new();
        let mut damaged = Vec::new();
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(row) => rows.push(row),
                Err(_) => damaged.push(number),
            }
        }
        match damaged[..] {
            [] => {}
            [line] => self.notes.push(format!("Line {line} of {file} can't be read.")),
            [line, ..] => self.notes.push(format!(
                "{} lines of {file} can't be read, the first is line {line}.",
                damaged.len()
            )),
        }
        Some(rows)
    }
}

/// Names by which runs can be told apart: the last part of their folders' paths, longer where that is not enough.
pub(crate) fn names(folders: &[PathBuf]) -> Vec<String> {
    let parts: Vec<Vec<String>> = folders
        .iter()
        .map(|folder| {
            let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let parts = whole.components().map(|part| part.as_os_str().to_string_lossy().into());
            parts.collect()
        })
        .collect();
    let end = |parts: &Vec<String>, n: usize| parts[parts.len().saturating_sub(n)..].join("/");
    let name = |parts: &Vec<String>, all: &[Vec<String>]| {
        let is_alone = |n: &usize| all.iter().filter(|o| end(o, *n) == end(parts, *n)).count() == 1;
        end(parts, (1..=parts.len()).find(is_alone).unwrap_or(1))
    };
    parts.iter().map(|own| name(own, &parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn what_can_be_read_is_read_and_the_rest_noted() {
        let place = folder(&[
            (
                METRICS_FILE,
                "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"lo\n{\"step\":3,\"loss\":null}\n\
                 {\"step\":4,\"loss\":1.0,\"tokens_per_s\":\"fast\"}\n\
                 {\"step\":5,\"loss\":1.5,\"new\":[],\"skipped\":\"why\"}\n\u{0}\n{\"step\":5,\"eval_loss\":1.25}\n{\"step\":6,\"lo",
            ),
            (SAMPLES_FILE, "{\"step\":1}\n{\"step\":1,\"prompt\":\"a\",\"answer\":\"b\"}\n"),
            (DATA_FILE, "[]"),
            (CONFIG_FILE, "[train\n"),
        ]);
        let run = RunData::read(place.path()).unwrap();
        let steps: Vec<u64> = run.steps.iter().map(|row| row.step).collect();
        assert_eq!(steps, [1, 3, 5]);
        assert_eq!(run.curve(|row| row.loss), [(1.0, 2.0), (5.0, 1.5)]);
        assert_eq!(run.eval_curve(), [(5.0, 1.25)]);
        assert_eq!(run.samples.len(), 1);
        assert!(run.config_text.is_some() && run.config.is_empty() && run.data.is_none());
        let notes = run.notes.join("\n");
        for note in [
            "3 lines of metrics.jsonl can't be read, the first is line 2",
            "2 rows of metrics.jsonl have no finite loss",
            "Line 1 of samples.jsonl",
            "1 steps left the weights as they were, the first is step 5.",
            "data.json can't be read",
            "config.toml is no TOML",
        ] {
            assert!(notes.contains(note), "no {note:?} in {notes}");
        }
    }

    #[test]
    fn a_run_that_went_back_shows_what_came_of_it() {
        let row = |step: u64, loss: f64| format!("{{\"step\":{step},\"loss\":{loss}}}\n");
        let text = [row(1, 4.0), row(2, 3.0), row(3, 9.0), row(2, 2.0), row(3, 1.0)].concat();
        let eval = "{\"step\":3,\"eval_loss\":9}\n";
        let text =
            text.replacen("\"step\":2,\"loss\":2}", &format!("\"step\":2,\"loss\":2}}\n{eval}"), 1);
        let place = folder(&[(METRICS_FILE, &text)]);
        let run = RunData::read(place.path()).unwrap();
        assert_eq!(run.curve(|row| row.loss), [(1.0, 4.0), (2.0, 2.0), (3.0, 1.0)]);
        assert!(run.notes.iter().any(|note| note.contains("back to step")), "{:?}", run.notes);
    }

    #[test]
    fn a_folder_without_a_run_is_none() {
        assert!(RunData::read(folder(&[("other", "")]).path()).is_none());
        assert!(RunData::read(Path::new("/nowhere/at/all")).is_none());
    }

    #[test]
    fn names_tell_runs_apart() {
        let names = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(names(&["/x1/run", "/y1/run", "/y1/other"]), ["x1/run", "y1/run", "other"]);
        assert_eq!(names(&["/x1/run", "/x1/run"]), ["run", "run"]);
    }
}
