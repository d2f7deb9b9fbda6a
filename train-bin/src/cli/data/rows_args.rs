//! The arguments of commands that read rows.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_data::{OnError, ReadOptions, Rejects, TextBy, TextTokenizer, data_files};

use crate::Base;
use crate::cli::usage::WrongUsage;
use crate::config::Reading;

/// The rows to read.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct RowsArgs {
    /// Files, folders, or quoted patterns such as 'data/*.jsonl'
    #[arg(required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<PathBuf>,
    /// Format of the rows.
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Format of the rows.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct ReadingArgs {
    /// Format of the rows: auto, messages, sharegpt, alpaca, dolly, prompt, question, query or text
    #[arg(long, default_value = "auto", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) format: String,
    /// Map a known field to its name in these rows, such as prompt=question or completion=answer.text; repeatable
    #[arg(long, value_name = "KNOWN=NAME", value_parser = pair)]
    pub(crate) field: Vec<(String, String)>,
    /// Prompt template for a custom format, such as '{title}: {question}'
    #[arg(long, value_name = "TEXT", requires = "completion_template")]
    pub(crate) prompt_template: Option<String>,
    /// Completion template, such as ' {answer}'
    #[arg(long, value_name = "TEXT", requires = "prompt_template")]
    pub(crate) completion_template: Option<String>,
    /// Template of the system message
    #[arg(long, value_name = "TEXT", requires = "prompt_template")]
    pub(crate) system_template: Option<String>,
    /// Text template for a custom format, such as '{title}\n\n{body}'
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_template")]
    pub(crate) text_template: Option<String>,
    /// Unit of a document in a plain-text file
    #[arg(long, value_name = "UNIT", value_enum, default_value_t)]
    pub(crate) text_by: TextBy,
}

/// Handling of invalid rows.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct FaultArgs {
    /// What to do with invalid rows
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) on_error: OnError,
    /// Maximum number of skipped rows; default: no limit
    #[arg(long, value_name = "N")]
    pub(crate) max_errors: Option<usize>,
    /// File for skipped rows and their errors
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rejects: Option<PathBuf>,
}

impl ReadingArgs {
    /// The arguments as a configuration has them.
    pub(crate) fn reading(&self, faults: Option<&FaultArgs>) -> Reading {
        Reading {
            fields: self.field.iter().cloned().collect(),
            prompt_template: self.prompt_template.clone(),
            completion_template: self.completion_template.clone(),
            system_template: self.system_template.clone(),
            text_template: self.text_template.clone(),
            text_by: self.text_by,
            on_error: faults.map(FaultArgs::on_error).unwrap_or_default(),
            rejects: faults.and_then(|faults| faults.rejects.clone()),
        }
    }

    pub(crate) fn options(&self) -> Result<ReadOptions> {
        Ok(self.reading(None).options(&self.format)?)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (known, name) = text.split_once('=').ok_or("expected KNOWN=NAME, as in prompt=question")?;
    Ok((known.trim().to_owned(), name.trim().to_owned()))
}

impl RowsArgs {
    /// The files and how to read them.
    pub(crate) fn read(&self) -> Result<(Vec<PathBuf>, ReadOptions)> {
        Ok((data_files(&self.files)?, self.reading.options()?))
    }
}

impl FaultArgs {
    fn on_error(&self) -> OnError {
        match self.on_error {
            OnError::Fail => OnError::Fail,
            OnError::Skip { .. } => OnError::Skip { limit: self.max_errors },
        }
    }

    pub(crate) fn rejects(&self, reading: &ReadingArgs) -> Result<Rejects> {
        if self.on_error == OnError::Fail && (self.max_errors.is_some() || self.rejects.is_some()) {
            bail!(WrongUsage("--max-errors and --rejects are for --on-error skip".into()));
        }
        Ok(reading.reading(Some(self)).rejects()?)
    }
}

/// The tokenizer of a model; a tokenizer alone is enough.
pub(crate) fn tokenizer_of(model: &Path) -> Result<TextTokenizer> {
    if model.join("tokenizer.json").is_file() {
        return Ok(TextTokenizer::from_dir(model)?);
    }
    Ok(Base::open_path(model)?.tokenizer)
}

/// `12.34 %`
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
