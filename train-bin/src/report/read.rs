//! Reading a run folder for a report. Missing and damaged files are noted, and the rest is used.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use toml::Table;

use super::thin::Point;
use crate::run::dataset_stats::DatasetStatsFile;
use crate::run::files::{CONFIG_FILE, DATA_FILE, METRICS_FILE, SAMPLES_FILE};

/// The files of a run, as far as they can be read.
#[derive(Debug, Default)]
pub(crate) struct RunData {
    /// Its name in the report.
    pub(crate) name: String,
    /// Its path.
    pub(crate) folder: PathBuf,
    /// Rows of steps, in ascending order.
    pub(crate) steps: Vec<MetricsRow>,
    /// Rows of evaluations, likewise.
    pub(crate) evals: Vec<MetricsRow>,
    /// Prompts and answers, in the file's order.
    pub(crate) samples: Vec<SampleRow>,
    /// `data.json`.
    pub(crate) data: Option<DatasetStatsFile>,
    /// The text of `config.toml`.
    pub(crate) config_text: Option<String>,
    /// The parsed `config.toml`; empty if it is not valid TOML.
    pub(crate) config: Table,
    /// Notes on missing and damaged files.
    pub(crate) notes: Vec<String>,
}

/// A row of `metrics.jsonl`, of a step or of an evaluation.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricsRow {
    pub(crate) step: u64,
    /// Its finite numbers by name.
    values: BTreeMap<String, f64>,
    /// Whether the step left the weights unchanged.
    is_skipped: bool,
}

impl MetricsRow {
    /// From the JSON object.
    pub(crate) fn new(row: &Map<String, Value>) -> Self {
        let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
        Self {
            step: row.get("step").and_then(Value::as_u64).unwrap_or(0),
            values: row.iter().filter_map(number).collect(),
            is_skipped: row.contains_key("skipped"),
        }
    }

    /// A value by its name; `None` if it is missing or not a finite number.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }
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
        let files = [METRICS_FILE, CONFIG_FILE, SAMPLES_FILE, DATA_FILE];
        if !files.iter().any(|file| folder.join(file).exists()) {
            return None;
        }
        run.read_metrics();
        run.read_samples();
        run.read_data();
        run.read_config();
        Some(run)
    }

    /// A metric of the steps, by its name.
    pub(crate) fn curve(&self, name: &str) -> Vec<Point> {
        points(&self.steps, name)
    }

    /// The losses of the evaluations.
    pub(crate) fn eval_curve(&self) -> Vec<Point> {
        points(&self.evals, "eval_loss")
    }

    fn read_metrics(&mut self) {
        let rows: Vec<Map<String, Value>> = match self.rows(METRICS_FILE) {
            Some(rows) => rows,
            None => return self.notes.push(format!("{METRICS_FILE} is missing: no curves.")),
        };
        let mut went_back = None;
        let mut without_loss = 0;
        for row in rows {
            let (is_step, is_eval) = (row.contains_key("loss"), row.contains_key("eval_loss"));
            let row = MetricsRow::new(&row);
            if is_step {
                without_loss += usize::from(row.get("loss").is_none());
                // A resumed run repeats steps after its checkpoint; the earlier rows of these steps are obsolete.
                if self.steps.last().is_some_and(|last| last.step >= row.step) {
                    went_back = Some(row.step);
                    self.steps.retain(|earlier| earlier.step < row.step);
                    self.evals.retain(|earlier| earlier.step < row.step);
                }
                self.steps.push(row);
            } else if is_eval {
                self.evals.retain(|earlier| earlier.step < row.step);
                self.evals.push(row);
            }
        }
        if let Some(step) = went_back {
            self.notes.push(format!(
                "{METRICS_FILE} repeats steps from step {step} on; the later rows are shown."
            ));
        }
        if without_loss > 0 {
            self.notes.push(format!(
                "{without_loss} rows of {METRICS_FILE} have no finite loss and are left out of the curves."
            ));
        }
        let mut skipped = self.steps.iter().filter(|row| row.is_skipped);
        if let Some(first) = skipped.next() {
            self.notes.push(format!(
                "{} steps were skipped and left the weights unchanged; the first is step {}.",
                1 + skipped.count(),
                first.step
            ));
        }
        if self.steps.is_empty() {
            self.notes.push(format!("{METRICS_FILE} has no steps."));
        }
    }

    fn read_samples(&mut self) {
        self.samples = self.rows(SAMPLES_FILE).unwrap_or_default();
    }

    fn read_data(&mut self) {
        match fs::read(self.folder.join(DATA_FILE)) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(data) => self.data = Some(data),
                Err(error) => self.notes.push(format!("{DATA_FILE} cannot be read: {error}.")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.notes.push(format!("{DATA_FILE} cannot be read: {error}.")),
        }
    }

    fn read_config(&mut self) {
        match fs::read_to_string(self.folder.join(CONFIG_FILE)) {
            Ok(text) => {
                match text.parse() {
                    Ok(table) => self.config = table,
                    Err(_) => self.notes.push(format!("{CONFIG_FILE} is not valid TOML.")),
                }
                self.config_text = Some(text);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.notes.push(format!("{CONFIG_FILE} is missing."));
            }
            Err(error) => self.notes.push(format!("{CONFIG_FILE} cannot be read: {error}.")),
        }
    }

    /// The readable rows of a file of JSON lines; `None` if the file is missing.
    fn rows<T: for<'de> Deserialize<'de>>(&mut self, file: &str) -> Option<Vec<T>> {
        let bytes = match fs::read(self.folder.join(file)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.notes.push(format!("{file} cannot be read: {error}."));
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
            [line] => self.notes.push(format!("Line {line} of {file} cannot be read.")),
            [line, ..] => self.notes.push(format!(
                "{} lines of {file} cannot be read; the first is line {line}.",
                damaged.len()
            )),
        }
        Some(rows)
    }
}

fn points(rows: &[MetricsRow], name: &str) -> Vec<Point> {
    rows.iter().filter_map(|row| Some((row.step as f64, row.get(name)?))).collect()
}

/// Distinct names of runs: the last component of their folders' paths, and more components where it is ambiguous.
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
    fn unreadable_parts_are_noted_and_the_rest_is_read() {
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
        assert_eq!(steps, [1, 3, 4, 5]);
        assert_eq!(run.curve("loss"), [(1.0, 2.0), (4.0, 1.0), (5.0, 1.5)]);
        assert!(run.curve("tokens_per_s").is_empty());
        assert_eq!(run.eval_curve(), [(5.0, 1.25)]);
        assert_eq!(run.samples.len(), 1);
        assert!(run.config_text.is_some() && run.config.is_empty() && run.data.is_none());
        let notes = run.notes.join("\n");
        for note in [
            "3 lines of metrics.jsonl cannot be read; the first is line 2",
            "1 rows of metrics.jsonl have no finite loss",
            "Line 1 of samples.jsonl",
            "1 steps were skipped and left the weights unchanged; the first is step 5.",
            "data.json cannot be read",
            "config.toml is not valid TOML",
        ] {
            assert!(notes.contains(note), "no {note:?} in {notes}");
        }
    }

    #[test]
    fn of_repeated_steps_the_later_rows_are_used() {
        let row = |step: u64, loss: f64| format!("{{\"step\":{step},\"loss\":{loss}}}\n");
        let text = [row(1, 4.0), row(2, 3.0), row(3, 9.0), row(2, 2.0), row(3, 1.0)].concat();
        let eval = "{\"step\":3,\"eval_loss\":9}\n";
        let text =
            text.replacen("\"step\":2,\"loss\":2}", &format!("\"step\":2,\"loss\":2}}\n{eval}"), 1);
        let place = folder(&[(METRICS_FILE, &text)]);
        let run = RunData::read(place.path()).unwrap();
        assert_eq!(run.curve("loss"), [(1.0, 4.0), (2.0, 2.0), (3.0, 1.0)]);
        assert!(run.notes.iter().any(|note| note.contains("repeats steps")), "{:?}", run.notes);
    }

    #[test]
    fn a_folder_without_a_run_is_refused() {
        assert!(RunData::read(folder(&[("other", "")]).path()).is_none());
        assert!(RunData::read(Path::new("/nowhere/at/all")).is_none());
    }

    #[test]
    fn names_of_runs_are_distinct() {
        let names = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(names(&["/x1/run", "/y1/run", "/y1/other"]), ["x1/run", "y1/run", "other"]);
        assert_eq!(names(&["/x1/run", "/x1/run"]), ["run", "run"]);
    }
}
