//! `[data]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use emberlm_data::{TemplateChoice, TrainOn, date};
use serde::Serialize;

use super::{Reading, nonzero};
use crate::base::ModelSource;
use crate::settings::{FaultKind, Reader};

/// `[data]`: the examples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataSection {
    /// The files.
    #[serde(flatten)]
    pub source: DataSource,
    /// The format of the files: `auto`, or a name that the data crate knows and checks.
    pub format: String,
    /// The chat template that is applied.
    pub template: TemplateChoice,
    /// Which assistant turns are trained.
    pub train_on: TrainOn,
    /// Longest row in tokens, at least 2.
    pub max_length: NonZeroUsize,
    /// Whether as many examples as fit share a row. Not with `group_by_length`.
    pub packing: bool,
    /// Whether examples of similar length share a micro-batch.
    pub group_by_length: bool,
    /// Whether the examples are drawn in random order.
    pub shuffle: bool,
    /// The day (`YYYY-MM-DD`) that chat templates see as today.
    pub date: String,
    /// Prompts that are answered at each evaluation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<String>,
    /// The folder of the token cache; `None`: tokens are held in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// How rows are read.
    #[serde(flatten)]
    pub reading: Reading,
}

/// The files with the examples.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(untagged)]
pub enum DataSource {
    /// The example data in the program. Only with [`ModelSource::Builtin`].
    #[default]
    Builtin,
    /// Files.
    Files {
        /// Training data: at least one file.
        train: Vec<PathBuf>,
        /// Evaluation data: may be empty.
        eval: Vec<PathBuf>,
    },
    /// Files that are drawn from by weights.
    Mixture {
        /// Training data: at least one source.
        source: Vec<MixtureSource>,
        /// Evaluation data: may be empty.
        eval: Vec<PathBuf>,
    },
}

/// `[[data.source]]`: a part of a mixture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixtureSource {
    /// Its files: at least one.
    pub path: Vec<PathBuf>,
    /// How often it is drawn from, relative to the others; greater than 0.
    pub weight: f64,
}

impl DataSection {
    pub(super) fn read(s: &mut Reader, model: &ModelSource) -> Self {
        let source = source(s, model);
        let format = s
            .string(
                "format",
                "Format of the rows: auto, messages, sharegpt, alpaca, dolly, prompt, question, query or text",
            )
            .changes_nothing()
            .or("auto".to_owned());
        if format.is_empty() {
            s.refuse(
                "format",
                "the name of a format",
                "\"\"",
                "change it, or remove it for the default, auto",
            );
        }
        let template = s
            .choice::<TemplateChoice>("template", "Chat template for conversations")
            .changes_nothing()
            .or_default();
        let train_on = s
            .choice::<TrainOn>("train_on", "Assistant turns to train on")
            .changes_nothing()
            .or_default();
        let max_length = s
            .whole::<NonZeroUsize>(
                "max_length",
                "Maximum tokens of a row; longer examples are truncated, plain text is split",
            )
            .at_least(2.0)
            .also_called(&["max_seq_length", "sequence_len", "cutoff_len", "max_seq_len"])
            .changes_nothing()
            .or(nonzero(2048));
        let (packing, group_by_length, shuffle) = layout(s);
        Self {
            source,
            template,
            train_on,
            max_length,
            packing,
            group_by_length,
            shuffle,
            date: day(s),
            prompts: s
                .setting::<Vec<String>>(
                    "prompts",
                    "Prompts to answer at each evaluation; the answers are written to samples.jsonl",
                )
                .example("[\"Why is the sky blue?\"]")
                .changes_nothing()
                .or_default(),
            cache_dir: s
                .path("cache_dir", "Folder for the token cache, which is memory-mapped")
                .example("\"cache\"")
                .changes_nothing()
                .optional("none: tokens are held in memory"),
            reading: Reading::read(s, &format),
            format,
        }
    }

    /// The files of the evaluation data.
    pub fn eval_files(&self) -> &[PathBuf] {
        match &self.source {
            DataSource::Builtin => &[],
            DataSource::Files { eval, .. } | DataSource::Mixture { eval, .. } => eval,
        }
    }
}

fn layout(s: &mut Reader) -> (bool, bool, bool) {
    let packing = s
        .boolean(
            "packing",
            "Pack as many examples into a row as fit; attention stays within each example",
        )
        .also_called(&["sample_packing", "pack"])
        .or(false);
    let group = s
        .boolean(
            "group_by_length",
            "Put examples of similar length into one micro-batch, for less padding",
        )
        .or(false);
    let shuffle = s.boolean("shuffle", "Shuffle the examples in each epoch").or(true);
    if packing && group {
        let reason = "packed rows are full, so grouping has no benefit";
        s.contradiction(["packing", "group_by_length"], reason, "remove one of them");
    }
    if group && !shuffle {
        let reason = "grouping by length reorders the examples";
        s.contradiction(["group_by_length", "shuffle"], reason, "remove one of them");
    }
    (packing, group, shuffle)
}

fn source(s: &mut Reader, model: &ModelSource) -> DataSource {
    s.at_most_one(["train", "source"], "both name the training data");
    let train = s
        .paths("train", "Training data: files, folders or patterns")
        .flag("data")
        .example("[\"train.jsonl\"]")
        .changes_nothing()
        .optional("the built-in example, with the built-in model");
    let is_mixture = s.is_given("source");
    let doc =
        "Part of a mixture, instead of `data.train`; examples are drawn from the sources by weight";
    let sources =
        s.sections("source", doc, "[{ path = [\"a.jsonl\"], weight = 1.0 }]", |s| MixtureSource {
            path: source_files(s),
            weight: s
                .number("weight", "Weight of this source, relative to the others")
                .above(0.0)
                .changes_nothing()
                .or(1.0),
        });
    let eval = s
        .paths("eval", "Evaluation data: files, folders or patterns")
        .flag("eval")
        .example("[\"test.jsonl\"]")
        .changes_nothing()
        .optional("none")
        .unwrap_or_default();
    let train = train.unwrap_or_default();
    let because = match (model, eval.is_empty()) {
        _ if s.is_given("train") && train.is_empty() && s.fault_count() > 0 => None,
        _ if is_mixture || !train.is_empty() => None,
        (_, false) => Some(format!("data.eval is given{}", s.origin_of("eval"))),
        (ModelSource::Builtin, true) => None,
        (_, true) => Some("the built-in data is for the built-in model only".to_owned()),
    };
    if let Some(because) = because {
        let kind = FaultKind::Missing {
            key: "data.train".to_owned(),
            expected: "a file of training data, or a list of files",
            because,
            remedy: "set data.train in the file, or give --data FILE".to_owned(),
        };
        s.fault("train", kind);
    }
    match sources {
        Some(source) => DataSource::Mixture { source, eval },
        None if train.is_empty() => DataSource::Builtin,
        None => DataSource::Files { train, eval },
    }
}

fn source_files(s: &mut Reader) -> Vec<PathBuf> {
    let is_given = s.is_given("path");
    let paths = s
        .paths("path", "Files, folders or patterns of this source")
        .also_called(&["train", "files"])
        .example("[\"a.jsonl\"]")
        .changes_nothing()
        .optional("required");
    match &paths {
        None if !is_given => {
            let kind = FaultKind::Missing {
                key: s.key("path"),
                expected: "a file of training data, or a list of files",
                because: "a source needs files".to_owned(),
                remedy: "set it, or remove the source".to_owned(),
            };
            s.fault("path", kind);
        }
        Some(paths) if paths.is_empty() => {
            s.refuse("path", "at least one file", "[]", "name a file, or remove the source");
        }
        _ => {}
    }
    paths.unwrap_or_default()
}

fn day(s: &mut Reader) -> String {
    let day = s
        .string("date", "Date that chat templates see as today, YYYY-MM-DD")
        .example("\"2026-01-31\"")
        .changes_nothing()
        .or_else("today", date::today);
    if !date::is_date(&day) {
        let remedy = "change it, or remove it for the default, today";
        s.refuse("date", "a date as YYYY-MM-DD", &format!("{day:?}"), remedy);
    }
    day
}
