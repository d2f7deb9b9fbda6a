//! The arguments of commands that take a run: its file, and what the command line changes in it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use super::values::choice;
use crate::base::builtin;
use crate::config::{self, Backend, Choice, Dtype, Override, RunConfig};

/// A run: its file, and what the command line changes in it.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct RunArgs {
    /// Configuration of the run; relative paths in it begin at its folder
    #[arg(value_name = "RUN.toml", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Model to start from, a Hugging Face folder [model.path]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = utf8_path())]
    model: Option<PathBuf>,
    /// File with examples to learn from; may be given several times [data.train]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = utf8_path())]
    data: Vec<PathBuf>,
    /// File with examples to evaluate on; may be given several times [data.eval]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = utf8_path())]
    eval: Vec<PathBuf>,
    /// Run folder [train.output_dir]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = utf8_path())]
    out: Option<PathBuf>,
    /// Where to compute [model.backend]
    #[arg(long, value_parser = choice::<Backend>())]
    backend: Option<Backend>,
    /// Dtype of the frozen weights, and on GPUs of activations [model.dtype]
    #[arg(long, value_parser = choice::<Dtype>())]
    dtype: Option<Dtype>,
    /// Any setting, such as `train.steps=100` or `lora.target_modules=[q_proj,v_proj]`; may be
    /// given several times
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Not typed: the day, where none is given [data.date].
    #[arg(skip)]
    date: Option<String>,
}

impl RunArgs {
    /// The settings given on the command line, in the order in which they are applied: `--set`
    /// first, then flags.
    pub(crate) fn overrides(&self) -> Vec<Override> {
        let mut overrides: Vec<Override> =
            self.set.iter().map(|text| Override::Set { text: text.clone() }).collect();
        if let Some(date) = &self.date {
            let value = date.as_str().into();
            overrides.push(Override::Default { key: "data.date", value });
        }
        let mut flag = |flag, key, value| overrides.push(Override::Flag { flag, key, value });
        if let Some(model) = &self.model {
            flag("--model", "model.path", path_value(model));
        }
        if !self.data.is_empty() {
            flag("--data", "data.train", path_values(&self.data));
        }
        if !self.eval.is_empty() {
            flag("--eval", "data.eval", path_values(&self.eval));
        }
        if let Some(out) = &self.out {
            flag("--out", "train.output_dir", path_value(out));
        }
        if let Some(backend) = self.backend {
            flag("--backend", "model.backend", backend.name().into());
        }
        if let Some(dtype) = self.dtype {
            flag("--dtype", "model.dtype", dtype.name().into());
        }
        overrides
    }

    /// The configuration's file.
    pub(crate) fn config_path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Whether a configuration, a model or training data is named: with none of them the built-in example is meant.
    pub(crate) fn names_a_run(&self) -> bool {
        self.config.is_some() || self.model.is_some() || !self.data.is_empty()
    }

    /// Whether a run folder is named by a flag.
    pub(crate) fn names_output(&self) -> bool {
        self.out.is_some()
    }

    /// The same, with `date` where none is given.
    pub(crate) fn with_date(&self, date: String) -> Self {
        Self { date: Some(date), ..self.clone() }
    }

    /// File, `--set` and flags; with nothing at all the built-in example, with flags alone LoRA at its defaults.
    pub(crate) fn configuration(&self) -> Result<RunConfig> {
        let overrides = self.overrides();
        Ok(match &self.config {
            Some(file) => config::load(Some(file), &overrides)?,
            None if !self.names_a_run() => {
                config::load_str(builtin::RUN, "built-in example.toml", &overrides)?
            }
            None => config::load_str("[lora]\n", "defaults", &overrides)?,
        })
    }
}

/// A path that TOML can hold.
fn utf8_path() -> impl TypedValueParser<Value = PathBuf> {
    NonEmptyStringValueParser::new().map(PathBuf::from)
}

/// A path from [`utf8_path`] as TOML: nothing is lost.
fn path_value(path: &Path) -> toml::Value {
    path.to_string_lossy().into_owned().into()
}

fn path_values(paths: &[PathBuf]) -> toml::Value {
    toml::Value::Array(paths.iter().map(|path| path_value(path)).collect())
}
