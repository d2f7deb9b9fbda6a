//! The command line: what can be typed, and no more. The doc comments are the help texts.

pub mod data;
mod seeing;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};

use emberlm_model::WeightForm;
use emberlm_quant::{QuantFormat, Quantization};

pub use seeing::{LrFindArgs, ReportArgs};

use crate::config::{
    Backend, Choice, Dtype, Override, Quant, Recompute, Template, TrainOn, UnknownChoice,
};

/// Fine-tune large language models: LoRA, QLoRA, full fine-tuning and continued pre-training.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "emberlm",
    version,
    max_term_width = 100,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Examples:
  emberlm train                                       the built-in example, with no file at all
  emberlm train run.toml --set train.learning_rate=1e-4
  emberlm eval --model models/llama --adapter runs/a --data test.jsonl
  emberlm generate --model models/llama --adapter runs/a --prompt 'Why is the sky blue?'
  emberlm data check 'data/*.jsonl' --model models/llama
  emberlm merge --model models/llama --adapter runs/a --out models/merged
  emberlm report runs/a runs/b

Exit codes: 0 done, 1 failed, 2 wrong usage.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program does.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum Command {
    /// Train adapters, or all weights, on examples
    ///
    /// Settings come from the file, then from --set, then from the other flags; the later one wins.
    /// Without a section `[lora]` all weights are trained. With no file at all, the built-in
    /// example is trained.
    Train(TrainArgs),
    /// Make a run again from its run.json, and compare what it comes to
    ///
    /// Checks first that program, base model, tokenizer and data are as they were.
    Reproduce(ReproduceArgs),
    /// How much memory a run will need, and what to change if that is more than there is
    ///
    /// Reads configuration and data, and no weights. Fails if the run doesn't fit.
    Plan(PlanArgs),
    /// Loss and perplexity of a model, with or without an adapter, on examples
    Eval(EvalArgs),
    /// Continue one prompt
    Generate(GenerateArgs),
    /// Talk with a model in the terminal
    Chat(ChatArgs),
    /// Fold an adapter into its base model: a plain Hugging Face folder
    Merge(MergeArgs),
    /// Quantize a model's linear layers: a folder that transformers and bitsandbytes load
    Quantize(QuantizeArgs),
    /// Look at data sets, clean, split and mask them; train tokenizers
    Data(Box<data::DataArgs>),
    /// Time whole training steps on synthetic tokens
    Bench(BenchArgs),
    /// A page about one run or several: curves, answers, configuration
    ///
    /// The page is one file and needs no network.
    Report(ReportArgs),
    /// Look for a learning rate: a short sweep, from a low rate to one that is too high
    ///
    /// Model, data, batches and optimizer are those of the run; nothing of it is saved. The
    /// proposal is a tenth of the rate at which the running mean of the loss was least.
    LrFind(LrFindArgs),
}

/// Time whole training steps on synthetic tokens.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct BenchArgs {
    /// Model, a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: PathBuf,
    /// Rows of a batch
    #[arg(long, value_name = "N", default_value = "4")]
    pub batch: NonZeroUsize,
    /// Tokens a row
    #[arg(long, value_name = "N", default_value = "512")]
    pub seq: NonZeroUsize,
    /// Rank of adapters on all linear layers
    #[arg(long, value_name = "N", default_value = "16")]
    pub rank: NonZeroUsize,
    /// Share of each row, from its end, that is supervised
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = probability)]
    pub supervised: f64,
    /// What is kept for backward
    #[arg(long, default_value_t, value_parser = choice::<Recompute>())]
    pub recompute: Recompute,
    /// How the weights of the linear layers are held; none: as they are stored
    #[arg(long, default_value_t, value_parser = choice::<Quant>())]
    pub quant: Quant,
    /// Dtype of the frozen weights, and on GPUs of activations
    #[arg(long, default_value_t, value_parser = choice::<Dtype>())]
    pub dtype: Dtype,
    /// Steps that are timed, after one that is not
    #[arg(long, value_name = "N", default_value = "5")]
    pub steps: NonZeroUsize,
    /// Where to compute
    #[arg(long, default_value_t, value_parser = choice::<Backend>())]
    pub backend: Backend,
    /// Report of another tool: print how many times its speed and memory
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub compare_json: Option<PathBuf>,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A run: its file, and what the command line changes in it.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct RunArgs {
    /// Configuration of the run; relative paths in it begin at its folder
    #[arg(value_name = "RUN.toml", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Model to start from, a Hugging Face folder [model.path]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = utf8_path())]
    pub model: Option<PathBuf>,
    /// File with examples to learn from; may be given several times [data.train]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = utf8_path())]
    pub data: Vec<PathBuf>,
    /// File with examples to evaluate on; may be given several times [data.eval]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = utf8_path())]
    pub eval: Vec<PathBuf>,
    /// Run folder [train.output_dir]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = utf8_path())]
    pub out: Option<PathBuf>,
    /// Where to compute [model.backend]
    #[arg(long, value_parser = choice::<Backend>())]
    pub backend: Option<Backend>,
    /// Dtype of the frozen weights, and on GPUs of activations [model.dtype]
    #[arg(long, value_parser = choice::<Dtype>())]
    pub dtype: Option<Dtype>,
    /// Any setting, such as `train.steps=100` or `lora.target_modules=[q_proj,v_proj]`; may be
    /// given several times
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Not typed: the day, where none is given [data.date].
    #[arg(skip)]
    pub date: Option<String>,
}

/// Arguments of `emberlm train`.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct TrainArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Go on with an interrupted run: from the newest checkpoint in its folder, or from PATH, a
    /// checkpoint or a run folder. Without a configuration that of the checkpoint is taken
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, value_hint = ValueHint::DirPath)]
    pub resume: Option<Option<PathBuf>>,
    /// Go on also where the configuration differs in what the steps compute
    #[arg(long, requires = "resume")]
    pub allow_changes: bool,
    /// Check configuration, model and data, say what would be done, and stop
    #[arg(long)]
    pub dry_run: bool,
    /// No progress on the screen; warnings and errors only
    #[arg(long, short)]
    pub quiet: bool,
    /// Show the run on a dashboard that fills the terminal
    #[arg(long, conflicts_with_all = ["quiet", "dry_run"])]
    pub tui: bool,
}

/// Arguments of `emberlm reproduce`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ReproduceArgs {
    /// Run folder, or the run.json in it
    #[arg(value_name = "RUN", value_hint = ValueHint::AnyPath)]
    pub run: PathBuf,
    /// Folder for the new run; default: beside the old one, with `-again` after its name
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Run it also where something isn't as it was
    #[arg(long)]
    pub anyway: bool,
    /// Only check whether everything is as it was
    #[arg(long)]
    pub check: bool,
    /// No progress on the screen; warnings and errors only
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `emberlm plan`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct PlanArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Memory that there is, such as 8GiB or 500MiB; default: what this machine has free
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub memory: Option<u64>,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// The settings given on the command line, in the order in which they are applied: `--set`
    /// first, then flags.
    #[must_use]
    pub fn overrides(&self) -> Vec<Override> {
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
}

/// The model that a command uses, and how it is held.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ModelArgs {
    /// Model, a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: PathBuf,
    /// LoRA adapter for it, a PEFT folder such as a run folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub adapter: Option<PathBuf>,
    /// Where to compute
    #[arg(long, default_value_t, value_parser = choice::<Backend>())]
    pub backend: Backend,
    /// Dtype of the weights, and on GPUs of activations
    #[arg(long, default_value_t, value_parser = choice::<Dtype>())]
    pub dtype: Dtype,
    /// How the weights of the linear layers are held; none: as they are stored
    #[arg(long, default_value_t, value_parser = choice::<Quant>())]
    pub quant: Quant,
    /// With nf4 and fp4, hold the scales in f32 instead of quantizing them too
    #[arg(long)]
    pub no_double_quant: bool,
    /// Linear layer that stays dense, such as `down_proj` or `layers.0`; may be given several times
    #[arg(long, value_name = "NAME", requires = "quant", value_parser = NonEmptyStringValueParser::new())]
    pub quant_skip: Vec<String>,
}

impl ModelArgs {
    /// What the loader is asked to do.
    pub fn quantization(&self) -> Option<Quantization> {
        self.quant.quantization(!self.no_double_quant, &self.quant_skip)
    }

    /// How the weights are to be held, with what [`quantization`](Self::quantization) gave.
    pub fn form<'a>(&self, quantization: Option<&'a Quantization>) -> WeightForm<'a> {
        WeightForm { dtype: self.dtype.float(), quantization }
    }
}

/// Loss and perplexity of a model on examples, over the supervised tokens.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct EvalArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// File with examples; may be given several times
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub data: Vec<PathBuf>,
    /// Format of the examples
    #[arg(long, default_value = "auto", value_parser = NonEmptyStringValueParser::new())]
    pub format: String,
    /// Chat template: the one that comes with the tokenizer, or none
    #[arg(long, default_value_t, value_parser = choice::<Template>())]
    pub template: Template,
    /// Which of the assistant's turns count
    #[arg(long, default_value_t, value_parser = choice::<TrainOn>())]
    pub train_on: TrainOn,
    /// Longest example in tokens; longer ones are cut, but plain text is split
    #[arg(long, value_name = "N", default_value = "2048")]
    pub max_length: NonZeroUsize,
    /// Examples computed together; the result does not depend on it
    #[arg(long, value_name = "N", default_value = "4")]
    pub batch_size: NonZeroUsize,
    /// Only the first N examples
    #[arg(long, value_name = "N")]
    pub limit: Option<NonZeroUsize>,
    /// Write ids and logits of the first rows, to compare with other tools
    #[arg(long, value_name = "FILE.safetensors", value_hint = ValueHint::FilePath)]
    pub logits: Option<PathBuf>,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SamplingArgs {
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value = "256")]
    pub max_new_tokens: NonZeroUsize,
    /// 0: always the likeliest token; 1: as the model says; higher: more varied
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    pub temperature: f64,
    /// Only the likeliest tokens that together have this probability; 1: all
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    pub top_p: f64,
    /// Only the K likeliest tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Logits of tokens that have occurred are divided by it if positive, else multiplied; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = penalty)]
    pub repetition_penalty: f64,
    /// Seed of the choice
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

/// Continue one prompt.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct GenerateArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt; by default standard input
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// The prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// How the next token is chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Talk with a model in the terminal.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ChatArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// How the next token is chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Fold an adapter into its base model. The result is compared with base and adapter before it is
/// called done.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct MergeArgs {
    /// Base model, a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: PathBuf,
    /// LoRA adapter for it, a PEFT folder such as a run folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub adapter: PathBuf,
    /// Folder for the merged model
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Dtype of the merged files; auto: as the base's files
    #[arg(long, default_value_t, value_parser = choice::<MergeDtype>())]
    pub dtype: MergeDtype,
    /// Quantize the merged layers again as the base's are, and say what is left of the adapter
    #[arg(long)]
    pub requantize: bool,
    /// Text on which models are compared where merging changes what they compute; by default a built-in one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub sample: Option<PathBuf>,
    /// Where to compute
    #[arg(long, default_value_t, value_parser = choice::<Backend>())]
    pub backend: Backend,
    /// Replace what is in the folder already
    #[arg(long)]
    pub force: bool,
    /// Print exactly one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Quantize a model's linear layers. Head, embeddings and norms stay dense, in the dtype they are stored in.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct QuantizeArgs {
    /// Model, a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub model: PathBuf,
    /// Folder for the quantized model
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// The form of the weights
    #[arg(long = "type", value_name = "TYPE", default_value = "nf4", value_parser = quant_format)]
    pub format: QuantFormat,
    /// With nf4 and fp4, store the scales in f32 instead of quantizing them too
    #[arg(long)]
    pub no_double_quant: bool,
    /// Layer that stays dense, such as `down_proj` or `layers.0`; may be given several times
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub skip: Vec<String>,
    /// Replace what is in the folder already
    #[arg(long)]
    pub force: bool,
}

fn quant_format(text: &str) -> Result<QuantFormat, String> {
    let found = QuantFormat::ALL.into_iter().find(|format| format.name() == text);
    found.ok_or_else(|| "expected nf4, fp4 or int8".into())
}

/// The dtype of merged files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergeDtype {
    /// Each tensor as in the base's files.
    #[default]
    Auto,
    /// All tensors in this one.
    All(Dtype),
}

impl Choice for MergeDtype {
    const WHAT: &'static str = "dtype";
    const ALL: &'static [Self] =
        &[Self::Auto, Self::All(Dtype::F32), Self::All(Dtype::Bf16), Self::All(Dtype::F16)];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::All(dtype) => dtype.name(),
        }
    }
}

impl FromStr for MergeDtype {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl std::fmt::Display for MergeDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// One of a few names, which the help lists.
fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::names()).try_map(|name| T::from_name(&name))
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

fn temperature(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 on", |x| x >= 0.0)
}

fn probability(text: &str) -> Result<f64, String> {
    number(text, "a number greater than 0, at most 1", |x| x > 0.0 && x <= 1.0)
}

fn penalty(text: &str) -> Result<f64, String> {
    number(text, "a number greater than 0", |x| x > 0.0)
}

fn number(text: &str, expected: &str, is_allowed: fn(f64) -> bool) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && is_allowed(number) => Ok(number),
        _ => Err(format!("expected {expected}")),
    }
}

/// Bytes, from a number with a unit.
fn memory_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 6] = [
        ("gib", (1u64 << 30) as f64),
        ("mib", (1u64 << 20) as f64),
        ("gb", 1e9),
        ("mb", 1e6),
        ("g", (1u64 << 30) as f64),
        ("m", (1u64 << 20) as f64),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let parsed = UNITS.iter().find_map(|(unit, bytes)| {
        let number: f64 = lower.strip_suffix(unit)?.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some((number * bytes) as u64)
    });
    parsed.ok_or_else(|| "expected a size with its unit, such as 8GiB or 500MiB".into())
}

#[cfg(test)]
mod tests;
