//! `emberlm data …`: what can be typed. The doc comments are the help texts.

mod cache;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

pub use cache::CacheArgs;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueHint};
use emberlm_data::{EntityKind, FailOn, MixSource, Part, TextBy};

use super::{choice, number};
use crate::config::{OnError, Reading, Template, TrainOn};

/// Look at data sets, clean, split and mix them, train tokenizers. Files, folders and patterns are read: JSON Lines,
/// JSON, CSV, TSV and text, each also compressed with gzip or zstd, and Parquet.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct DataArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// What can be done with data.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum DataCommand {
    /// Count what would be trained, and what is wrong with it
    #[command(after_help = "\
Exit code: 1 if a finding of --fail-on is there, else 0. By default unreadable, unusable, all-masked, without-end-mark
and doubled-bos fail from one row on; `--fail-on none` fails never.")]
    Check(CheckArgs),
    /// Keep the rows that meet rules and are no duplicates
    #[command(after_help = "\
Always: unreadable rows and rows with an empty message, prompt or completion go, then exact and near duplicates (the
first of them stays). The same input gives the same output.")]
    Clean(CleanArgs),
    /// Part rows into those to learn from and those to evaluate on, and look for leaks
    Split(SplitArgs),
    /// Find rows to evaluate on that are, nearly, among those to learn from
    #[command(after_help = "Exit code: 1 if more than --allow rows leaked, else 0.")]
    Leak(LeakArgs),
    /// Write an evaluation set of texts that stop before a number, a date or a name
    Mask(MaskArgs),
    /// Draw rows from several files by weights into one
    #[command(after_help = "\
Example: emberlm data mix domain.jsonl=7 general.jsonl=3 --rows 10000 --out mixed.jsonl
Each file gives its rows in a shuffled order, none twice before all have come. Rows are copied as they stand. To mix while
training instead: [[data.source]].")]
    Mix(MixArgs),
    /// Train a byte-level BPE tokenizer, which transformers loads too
    Tokenizer(TokenizerArgs),
    /// Show or remove the token files of data.cache_dir
    Cache(CacheArgs),
}

/// The rows to read.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct RowsArgs {
    /// Files, folders, or patterns in quotes such as 'data/*.jsonl'
    #[arg(required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// How rows are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
}

/// How rows are read.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ReadingArgs {
    /// Format of the rows: auto, messages, sharegpt, alpaca, dolly, prompt, question, query or text
    #[arg(long, default_value = "auto", value_parser = NonEmptyStringValueParser::new())]
    pub format: String,
    /// Name of a known field in these rows, such as prompt=question or completion=answer.text; may be given several
    /// times
    #[arg(long, value_name = "KNOWN=NAME", value_parser = pair)]
    pub field: Vec<(String, String)>,
    /// Prompt of one's own format, such as '{title}: {question}'
    #[arg(long, value_name = "TEXT", requires = "completion_template")]
    pub prompt_template: Option<String>,
    /// What follows the prompt, such as ' {answer}'
    #[arg(long, value_name = "TEXT", requires = "prompt_template")]
    pub completion_template: Option<String>,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", requires = "prompt_template")]
    pub system_template: Option<String>,
    /// Plain text of one's own format, such as '{title}\n\n{body}'
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_template")]
    pub text_template: Option<String>,
    /// What is one document in a file of plain text
    #[arg(long, default_value = "file", value_parser = choice::<TextBy>())]
    pub text_by: TextBy,
}

/// What rows at fault do.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct FaultArgs {
    /// What a row that can't be read does
    #[arg(long, default_value = "fail", value_parser = choice::<OnError>())]
    pub on_error: OnError,
    /// Rows that may be skipped; default: any number
    #[arg(long, value_name = "N")]
    pub max_errors: Option<usize>,
    /// Write skipped rows with their reasons
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub rejects: Option<PathBuf>,
}

impl ReadingArgs {
    /// The arguments as a configuration has them.
    pub fn reading(&self, faults: Option<&FaultArgs>) -> Reading {
        Reading {
            fields: self.field.iter().cloned().collect(),
            prompt_template: self.prompt_template.clone(),
            completion_template: self.completion_template.clone(),
            system_template: self.system_template.clone(),
            text_template: self.text_template.clone(),
            text_by: self.text_by,
            on_error: faults.map(|faults| faults.on_error).unwrap_or_default(),
            max_errors: faults.and_then(|faults| faults.max_errors),
            rejects: faults.and_then(|faults| faults.rejects.clone()),
        }
    }
}

/// Arguments of `emberlm data check`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct CheckArgs {
    /// The rows.
    #[command(flatten)]
    pub rows: RowsArgs,
    /// Model whose tokenizer and chat template write the rows: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: PathBuf,
    /// Chat template: the one that comes with the tokenizer, or none
    #[arg(long, default_value_t, value_parser = choice::<Template>())]
    pub template: Template,
    /// Which of the assistant's turns are trained
    #[arg(long, default_value_t, value_parser = choice::<TrainOn>())]
    pub train_on: TrainOn,
    /// Longest example in tokens
    #[arg(long, value_name = "N", default_value = "2048")]
    pub max_length: NonZeroUsize,
    /// Fewer trained tokens are too short
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub min_supervised: usize,
    /// Similarity from which rows count as near-duplicates
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub near: f64,
    /// Don't look for near-duplicates
    #[arg(long, conflicts_with = "near")]
    pub no_near: bool,
    /// Examples that are shown, their trained part marked
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub show: usize,
    /// Findings that fail, with commas: `truncated` (one row), `html=10` (more than ten), `near-duplicate=5%` (more than
    /// 5 %); `default` stands for those of the default, `none` for nothing
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "default")]
    pub fail_on: Vec<FailOnArg>,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// An element of `--fail-on`.
#[derive(Debug, Clone, PartialEq)]
pub enum FailOnArg {
    /// Those of the default.
    Default,
    /// Nothing.
    None,
    /// A finding and how much of it is allowed.
    One(FailOn),
}

impl FromStr for FailOnArg {
    type Err = emberlm_data::DataError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "default" => Self::Default,
            "none" => Self::None,
            text => Self::One(text.parse()?),
        })
    }
}

impl CheckArgs {
    /// The limits, a later one of the same finding in place of an earlier.
    pub fn limits(&self) -> Vec<FailOn> {
        let mut limits: Vec<FailOn> = Vec::new();
        for argument in &self.fail_on {
            let more = match argument {
                FailOnArg::Default => FailOn::DEFAULT.to_vec(),
                FailOnArg::None => Vec::new(),
                FailOnArg::One(limit) => vec![*limit],
            };
            limits.retain(|known| more.iter().all(|new| new.finding != known.finding));
            limits.extend(more);
        }
        limits
    }
}

/// Arguments of `emberlm data clean`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct CleanArgs {
    /// The rows.
    #[command(flatten)]
    pub rows: RowsArgs,
    /// File for the rows that are kept, JSON Lines (compressed as .gz or .zst)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// File for the others, with rule and reason; default: beside --out, named .rejects.jsonl
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub rejects: Option<PathBuf>,
    /// File for the report as JSON; default: beside --out, named .report.json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Fewest characters of a row
    #[arg(long, value_name = "N")]
    pub min_chars: Option<usize>,
    /// Most characters of a row
    #[arg(long, value_name = "N")]
    pub max_chars: Option<usize>,
    /// Fewest characters of the answer
    #[arg(long, value_name = "N")]
    pub min_answer_chars: Option<usize>,
    /// Fewest tokens of an example
    #[arg(long, value_name = "N", requires = "model")]
    pub min_tokens: Option<usize>,
    /// Most tokens of an example
    #[arg(long, value_name = "N", requires = "model")]
    pub max_tokens: Option<usize>,
    /// Model whose tokenizer counts: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: Option<PathBuf>,
    /// Rows in which this regular expression matches go; may be given several times
    #[arg(long, value_name = "REGEX")]
    pub drop: Vec<String>,
    /// Rows in which this regular expression matches nothing go; may be given several times
    #[arg(long, value_name = "REGEX")]
    pub keep: Vec<String>,
    /// Rows with HTML outside of code go
    #[arg(long)]
    pub html: bool,
    /// Rows that are heaps of addresses go
    #[arg(long)]
    pub urls: bool,
    /// Rows read in a wrong encoding, or of characters that are no text, go
    #[arg(long)]
    pub garbage: bool,
    /// Rows whose answer breaks off in mid-sentence go
    #[arg(long)]
    pub cut_off: bool,
    /// Rows of which a larger share of three-word sequences is repeated go
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub repetition: Option<f64>,
    /// Rows in other languages go; with commas, ISO 639-3 (eng,deu) or common 639-1 codes
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub language: Vec<String>,
    /// Share of a row's letters in these languages at least
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub language_share: f64,
    /// All of --html --urls --garbage --cut-off and --repetition 0.6
    #[arg(long)]
    pub strict: bool,
    /// Keep exact duplicates
    #[arg(long)]
    pub keep_exact: bool,
    /// Similarity from which rows count as near-duplicates
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub near: f64,
    /// Keep near-duplicates
    #[arg(long)]
    pub keep_near: bool,
    /// Words of the sequences by which rows are compared
    #[arg(long, value_name = "N", default_value = "3")]
    pub ngram: NonZeroUsize,
    /// Part of the rows that is compared
    #[arg(long, value_name = "PART", default_value = "row", value_enum)]
    pub by: Part,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `emberlm data split`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SplitArgs {
    /// The rows.
    #[command(flatten)]
    pub rows: RowsArgs,
    /// What rows at fault do.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Folder for train.jsonl and eval.jsonl (and leaks.jsonl)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Rows to evaluate on: a share such as 0.05 or 5%, or a whole number of rows
    #[arg(long, value_name = "SIZE", default_value = "5%", value_parser = size)]
    pub eval: Size,
    /// Seed of the choice
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Hold out the latest rows, by a field with a date, a time or seconds since 1970
    #[arg(long, value_name = "FIELD", conflicts_with = "group")]
    pub time: Option<String>,
    /// Hold out the rows from this time on
    #[arg(long, value_name = "DATE", requires = "time", conflicts_with = "eval")]
    pub from: Option<String>,
    /// Keep rows with the same value of a field together
    #[arg(long, value_name = "FIELD")]
    pub group: Option<String>,
    /// How leaks are looked for.
    #[command(flatten)]
    pub leak: LeakSearchArgs,
    /// Don't look for leaks
    #[arg(long)]
    pub no_leak_check: bool,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A mixture of files.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct MixArgs {
    /// JSON Lines files with their weights, 1 if none is given
    #[arg(required = true, value_name = "FILE=WEIGHT", value_parser = weighted, value_hint = ValueHint::FilePath)]
    pub sources: Vec<MixSource>,
    /// File to write
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Rows to draw; default: as many as there are in all files together
    #[arg(long, value_name = "N")]
    pub rows: Option<NonZeroUsize>,
    /// Seed of the order
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `FILE=WEIGHT`, or a file alone.
fn weighted(text: &str) -> Result<MixSource, String> {
    let Some((path, weight)) = text.rsplit_once('=') else {
        return Ok(MixSource { path: text.into(), weight: 1.0 });
    };
    let number: f64 = weight.trim().parse().unwrap_or(f64::NAN);
    if path.is_empty() || !number.is_finite() || number <= 0.0 {
        return Err("expected FILE=WEIGHT with a weight greater than 0, such as a.jsonl=7".into());
    }
    Ok(MixSource { path: path.into(), weight: number })
}

/// How many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// A share of all.
    Share(f64),
    /// So many.
    Rows(NonZeroU64),
}

/// How leaks are looked for.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct LeakSearchArgs {
    /// Cosine of n-gram counts from which a row counts as leaked
    #[arg(long, value_name = "COSINE", default_value_t = 0.8, value_parser = share)]
    pub threshold: f64,
    /// Words of the sequences that are counted
    #[arg(long, value_name = "N", default_value = "3")]
    pub ngram: NonZeroUsize,
    /// Part of the rows that is compared
    #[arg(long, value_name = "PART", default_value = "row", value_enum)]
    pub by: Part,
}

/// Arguments of `emberlm data leak`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct LeakArgs {
    /// Rows to learn from; may be given several times
    #[arg(long, required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub train: Vec<PathBuf>,
    /// Rows to evaluate on; may be given several times
    #[arg(long, required = true, value_name = "FILES", value_hint = ValueHint::AnyPath)]
    pub eval: Vec<PathBuf>,
    /// How rows are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// What rows at fault do.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// How leaks are looked for.
    #[command(flatten)]
    pub leak: LeakSearchArgs,
    /// File for all pairs, JSON Lines of `eval`, `train` and `cosine`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    /// Rows that may leak without failing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub allow: u64,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `emberlm data mask`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct MaskArgs {
    /// The rows.
    #[command(flatten)]
    pub rows: RowsArgs,
    /// What rows at fault do.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// File for the questions, JSON Lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Kinds of entities to find by rules, separated by commas; default: all, or none with --list
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    pub kinds: Option<Vec<EntityKind>>,
    /// File with entities of one's own, one a line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub list: Option<PathBuf>,
    /// Questions of a row at most
    #[arg(long, value_name = "N", default_value = "1")]
    pub per_row: NonZeroUsize,
    /// Characters of the answer that stand before an entity at least
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub context: usize,
    /// Seed of the choice among a row's entities
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `emberlm data tokenizer`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct TokenizerArgs {
    /// The rows.
    #[command(flatten)]
    pub rows: RowsArgs,
    /// What rows at fault do.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Folder for tokenizer.json, tokenizer_config.json and chat_template.jinja
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Tokens in all
    #[arg(long, value_name = "N", default_value_t = 32_000)]
    pub vocab_size: usize,
    /// A pair that occurs less often is not merged
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub min_frequency: u64,
    /// Special token beside <|endoftext|>, <|im_start|> and <|im_end|>; may be given several times
    #[arg(long, value_name = "TOKEN", value_parser = NonEmptyStringValueParser::new())]
    pub special: Vec<String>,
    /// Longest text in tokens that the configuration names
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub model_max_length: usize,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (known, name) = text.split_once('=').ok_or("expected KNOWN=NAME, as in prompt=question")?;
    Ok((known.trim().to_owned(), name.trim().to_owned()))
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a number greater than 0, at most 1", |x| x > 0.0 && x <= 1.0)
}

fn size(text: &str) -> Result<Size, String> {
    if let Ok(rows) = text.parse() {
        return Ok(Size::Rows(rows));
    }
    let expected = "a share such as 0.05 or 5%, or a whole number of rows from 1 on";
    let (text, whole) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let share = number(text, expected, |x| x > 0.0)? / whole;
    if share < 1.0 { Ok(Size::Share(share)) } else { Err(format!("expected {expected}")) }
}

#[cfg(test)]
mod tests;
