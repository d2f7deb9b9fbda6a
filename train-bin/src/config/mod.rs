//! The configuration of a training run: what may be set, where it is read from, and what is
//! checked.
//!
//! Three sources, the later one wins key by key: the defaults, a TOML text, the command line
//! (`--set section.key=value` and flags, both as [`Override`]s). They are merged as tables and read
//! once; every fault is reported, with its place and its remedy ([`ConfigError`]). What passes is a
//! [`RunConfig`], in which contradictory settings have no place.
//!
//! # Paths
//! A relative path in a TOML file begins at the folder of that file; in `--set`, in a flag and in a
//! text that the program carries it begins at the working directory. A checked configuration holds
//! absolute paths only, so the `config.toml` in a run folder means the same from anywhere.
//! [`shown`] makes one short again for messages.
//!
//! # Keys
//! ```toml
//! [model]                      # neither path nor config: the built-in example
//! path = "models/llama"        # Hugging Face folder to start from
//! config = "config.json"       # or: architecture of a model to train from random weights
//! tokenizer = "models/llama"   # folder; default: where path or config is
//! backend = "auto"             # auto | flex | ndarray | wgpu | cuda
//! dtype = "f32"                # f32 | bf16 | f16: frozen weights, on GPUs activations too; 16 bits need [lora]
//! quant = "none"               # none | nf4 | fp4 | int8; needs [lora]
//! double_quant = true          # quantize the scales of nf4 and fp4 too
//! quant_skip = ["down_proj"]   # linear layers that stay dense: names, or parts of them from dot to dot
//! add_tokens = ["<tool>"]      # new tokens, whose rows of embedding and head are trained
//!
//! [lora]                       # no such section: all weights are trained
//! r = 16                       # rank
//! alpha = 32.0                 # default: twice the rank
//! target_modules = "all-linear" # or a list of names, or a regular expression
//! use_rslora = false           # scale by alpha / sqrt(r) instead of alpha / r
//! init_from = "runs/a"         # or: go on with an adapter, which brings the four keys above along
//! dropout = 0.0
//!
//! [data]
//! train = ["a.jsonl"]          # a list of files or a single one; or [[data.source]], below
//! eval = ["b.jsonl"]
//! format = "auto"
//! template = "auto"            # auto | none
//! train_on = "all"             # all | last | marked: which of the assistant's turns
//! max_length = 2048            # tokens of a row
//! packing = false              # true: as many examples in a row as fit
//! group_by_length = false      # true: examples of similar length in a micro-batch
//! shuffle = true
//! date = "2026-11-29"          # the day that chat templates tell; default: today
//! prompts = ["Why is it hot?"] # asked at each evaluation, the answers kept; default: none
//! cache_dir = "cache"          # folder for tokens; default: none, tokens are held in memory
//! text_by = "file"             # file | paragraph | line: what is a document in plain text
//! on_error = "fail"            # fail | skip: what a row that can't be read does
//! max_errors = 10              # rows that may be skipped; default: false, any number
//! rejects = "rejects.jsonl"    # where skipped rows are written with their reasons; default: nowhere
//! prompt_template = "{title}: {question}"  # rows of one's own format; {name?} may be missing
//! completion_template = " {answer}"
//! system_template = "{rules}"  # optional; or, in place of the three: text_template = "{body}"
//!
//! [data.fields]                # or: names of one's own for known fields
//! prompt = "question"          # any field of a known format; also `role` and `content` of messages
//! completion = "answer.text"
//!
//! [[data.source]]              # in place of data.train: a mixture, drawn from by weights
//! path = ["a.jsonl"]           # a list of files or a single one
//! weight = 1.0
//!
//! [train]
//! output_dir = "runs/default"
//! overwrite = false            # true: replace a run that is there already
//! epochs = 3.0                 # or: steps = 1000
//! micro_batch_size = 4
//! grad_accumulation = 1
//! optimizer = "adamw"          # adamw | adamw8bit | lion | adafactor | sgd | muon
//! learning_rate = 2e-4
//! min_learning_rate = 0.0
//! schedule = "cosine"          # cosine | linear | constant | wsd | polynomial | inverse_sqrt
//! warmup_steps = 0             # or: warmup_ratio = 0.03
//! weight_decay = 0.0
//! betas = [0.9, 0.999]
//! eps = 1e-8
//! clip = "norm"                # norm | per_tensor | off
//! max_grad_norm = 1.0          # of norm; 0 or false: no clipping
//! momentum = 0.9               # of sgd and muon, with nesterov = false; docs/configuration.md has the other constants
//! recompute = "selective"      # none | selective | block
//! neftune_alpha = 5.0          # noise on the embeddings (NEFTune); default: 0, none
//! seed = 0
//! eval_every = 100             # steps; default: false, only at the end
//! save_every = 500             # steps; false: no checkpoints
//! keep_last = 2                # checkpoints; false: all of them
//! log_every = 1                # steps
//! tensorboard = false          # true: event files for TensorBoard in the run folder
//! threads = 8                  # default: all cores
//! trainable = ["mlp", "norm"]  # without [lora]: weights to train, by parts of their names; default: all
//! on_nonfinite = "stop"        # stop | skip: what a loss or gradient that isn't finite does
//! max_skipped = 3              # steps in a row that may be passed over
//! on_spike = "warn"            # off | warn | skip | stop: what a loss far above the ones before does
//! spike_threshold = 6.0        # standard deviations that are far
//! save_best = true             # a checkpoint at the best evaluation so far; it is kept
//! result = "last"              # last | best: which weights are the result
//! patience = 5                 # evaluations without improvement that end the run; default: false, never
//! min_improvement = 0.0        # by how much a loss has to be lower to be an improvement
//! debug = false                # true: show one micro-batch by token, its activations and gradients
//! ```

mod changes;
mod check;
mod choice;
mod error;
mod keys;
mod merge;
mod raw;
mod reading;
mod stages;
mod tuning;
mod watch;
mod write;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use emberlm_data::date;
use emberlm_quant::Quantization;
use serde::{Serialize, Serializer};
use toml::Table;

pub use changes::{Change, Effect, changes};
pub use choice::{
    Backend, Choice, Dtype, OnError, Quant, Recompute, Template, TrainOn, UnknownChoice,
};
pub use error::{ConfigError, Fault, FaultKind, Origin, WriteError};
pub use merge::Override;
pub use reading::Reading;
pub use stages::{Asked, Stage, load_stages};
pub use tuning::{Clip, DecayShape, DecaySpan, MuonScale, Optimizer, Schedule, Tuning};
pub use watch::{Kept, Watch};

use merge::{Layers, absolute};

/// A checked configuration. Paths are absolute. Serializes as its TOML table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunConfig {
    /// The model and how it is held.
    pub model: ModelSection,
    /// The adapters to train; `None`: all weights are trained.
    pub lora: Option<LoraSection>,
    /// The examples.
    pub data: DataSection,
    /// How they are learned.
    pub train: TrainSection,
}

/// `[model]`: the model and how it is held.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSection {
    /// Where the weights come from.
    pub source: ModelSource,
    /// Where the tensors live.
    pub backend: Backend,
    /// Dtype of frozen weights and activations.
    pub dtype: Dtype,
    /// How the frozen weights of the linear layers are stored.
    pub quant: Quant,
    /// Whether the scales of 4-bit weights are quantized too.
    pub double_quant: bool,
    /// Linear layers that stay dense: whole names, or parts of them from dot to dot. Only beside a `quant`.
    pub quant_skip: Vec<String>,
    /// Tokens that are added to the vocabulary.
    pub add_tokens: Vec<String>,
}

/// Where the weights and the tokenizer come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ModelSource {
    /// The example model in the program.
    #[default]
    Builtin,
    /// A Hugging Face folder.
    Pretrained {
        /// The folder.
        path: PathBuf,
        /// The folder of the tokenizer: by default the same.
        tokenizer: PathBuf,
    },
    /// Random weights, for pre-training from scratch.
    Scratch {
        /// A Hugging Face `config.json`.
        config: PathBuf,
        /// The folder of the tokenizer: by default the one the `config.json` lies in.
        tokenizer: PathBuf,
    },
}

/// `[lora]`: the adapters to train.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSection {
    /// Where the adapters come from.
    pub start: LoraStart,
    /// Probability with which an element of an adapter's input is dropped, 0 ≤ p < 1.
    pub dropout: f64,
}

/// Where adapters come from.
#[derive(Debug, Clone, PartialEq)]
pub enum LoraStart {
    /// New ones, whose delta is zero.
    Fresh {
        /// The rank.
        r: NonZeroUsize,
        /// The delta is scaled by `alpha / r`; greater than 0.
        alpha: f64,
        /// The linear layers that get one.
        target_modules: Targets,
        /// Scale by `alpha / sqrt(r)` instead.
        use_rslora: bool,
    },
    /// Those in a PEFT adapter folder, whose `adapter_config.json` says rank, alpha, targets and
    /// scaling.
    InitFrom(PathBuf),
}

/// The linear layers that get an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Every linear layer of the blocks: `"all-linear"`.
    AllLinear,
    /// Those whose whole path matches a regular expression.
    Regex(String),
    /// Those whose path ends in one of these names.
    List(Vec<String>),
}

/// `[data]`: the examples.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSection {
    /// The files.
    pub source: DataSource,
    /// The format of the files: `auto`, or a name that the data crate knows and checks.
    pub format: String,
    /// The chat template that is applied.
    pub template: Template,
    /// Which of the assistant's turns are trained.
    pub train_on: TrainOn,
    /// Longest row in tokens, at least 2.
    pub max_length: NonZeroUsize,
    /// How the examples stand in rows.
    pub layout: Layout,
    /// Whether the examples are drawn in random order.
    pub shuffle: bool,
    /// The day (`YYYY-MM-DD`) that chat templates tell.
    pub date: String,
    /// Questions that are asked at each evaluation.
    pub prompts: Vec<String>,
    /// The folder in which tokens are kept, and from which they are mapped; `None`: they are held in memory.
    pub cache_dir: Option<PathBuf>,
    /// How rows are read.
    pub reading: Reading,
}

/// The files with the examples.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DataSource {
    /// The example data in the program. Only beside [`ModelSource::Builtin`].
    #[default]
    Builtin,
    /// Files.
    Files {
        /// To learn from: at least one.
        train: Vec<PathBuf>,
        /// To evaluate on: may be empty.
        eval: Vec<PathBuf>,
    },
    /// Files that are drawn from by weights.
    Mixture {
        /// To learn from: at least one.
        sources: Vec<MixtureSource>,
        /// To evaluate on: may be empty.
        eval: Vec<PathBuf>,
    },
}

/// `[[data.source]]`: a part of a mixture.
#[derive(Debug, Clone, PartialEq)]
pub struct MixtureSource {
    /// Its files: at least one.
    pub paths: Vec<PathBuf>,
    /// How often it is drawn from, relative to the others; greater than 0.
    pub weight: f64,
}

/// How the examples stand in rows: `data.packing` and `data.group_by_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Each in a row of its own.
    #[default]
    OnePerRow,
    /// The same, those of similar length in one micro-batch.
    ByLength,
    /// As many in a row as fit.
    Packed,
}

/// `[train]`: how the examples are learned. All floats are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainSection {
    /// The run folder.
    pub output_dir: PathBuf,
    /// Whether a run that is in `output_dir` already may be replaced.
    pub overwrite: bool,
    /// When the run is over.
    pub duration: Duration,
    /// Rows in a micro-batch.
    pub micro_batch_size: NonZeroUsize,
    /// Micro-batches in a step.
    pub grad_accumulation: NonZeroUsize,
    /// What moves the weights.
    pub optimizer: Optimizer,
    /// The highest learning rate, greater than 0.
    pub learning_rate: f64,
    /// The learning rate at the end of the schedule, from 0 to `learning_rate`.
    pub min_learning_rate: f64,
    /// How the learning rate goes on after the warm-up.
    pub schedule: Schedule,
    /// How long the learning rate rises at first.
    pub warmup: Warmup,
    /// Weight decay, at least 0: decoupled, but for SGD.
    pub weight_decay: f64,
    /// The two decay rates of AdamW and Lion, each 0 ≤ β < 1.
    pub betas: [f64; 2],
    /// The epsilon of AdamW and Adafactor, greater than 0.
    pub eps: f64,
    /// The gradient is scaled down to this norm, greater than 0; `None`: never. Only beside [`Clip::Norm`].
    pub max_grad_norm: Option<f64>,
    /// Constants of optimizer, schedule and clipping.
    pub tuning: Tuning,
    /// What the backward pass computes again instead of keeping it.
    pub recompute: Recompute,
    /// Strength of the noise on the embeddings (NEFTune); `None`: there is none.
    pub neftune_alpha: Option<f64>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Steps between evaluations; `None`: only at the end.
    pub eval_every: Option<NonZeroU64>,
    /// Steps between checkpoints; `None`: there are none.
    pub save_every: Option<NonZeroU64>,
    /// How many checkpoints are kept; `None`: all.
    pub keep_last: Option<NonZeroUsize>,
    /// Steps between rows on the screen.
    pub log_every: NonZeroU64,
    /// Whether event files for TensorBoard are written.
    pub tensorboard: bool,
    /// CPU threads; `None`: all cores.
    pub threads: Option<NonZeroUsize>,
    /// The weights that are trained: whole names, or parts of them from dot to dot; empty: all. Only without `[lora]`.
    pub trainable: Vec<String>,
    /// How the run is watched over.
    pub watch: Watch,
}

/// When a run is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Duration {
    /// After so many passes over the data, greater than 0.
    Epochs(f64),
    /// After so many steps.
    Steps(NonZeroU64),
}

/// How long the learning rate rises at first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// So many steps; 0: not at all.
    Steps(u64),
    /// This share of all steps, 0 ≤ share < 1.
    Ratio(f64),
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            source: ModelSource::default(),
            backend: Backend::default(),
            dtype: Dtype::default(),
            quant: Quant::default(),
            double_quant: true,
            quant_skip: Vec::new(),
            add_tokens: Vec::new(),
        }
    }
}

impl LoraSection {
    /// The rank when none is given.
    pub const DEFAULT_R: NonZeroUsize = nonzero(16);

    /// alpha when none is given: twice the rank, so that the delta is scaled by 2.
    #[must_use]
    pub fn default_alpha(r: NonZeroUsize) -> f64 {
        2.0 * r.get() as f64
    }
}

impl Default for LoraSection {
    fn default() -> Self {
        let r = Self::DEFAULT_R;
        let alpha = Self::default_alpha(r);
        let start =
            LoraStart::Fresh { r, alpha, target_modules: Targets::AllLinear, use_rslora: false };
        Self { start, dropout: 0.0 }
    }
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            source: DataSource::default(),
            format: "auto".to_owned(),
            template: Template::default(),
            train_on: TrainOn::default(),
            max_length: nonzero(2048),
            layout: Layout::default(),
            shuffle: true,
            date: date::today(),
            prompts: Vec::new(),
            cache_dir: None,
            reading: Reading::default(),
        }
    }
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            output_dir: absolute(Path::new("runs/default")),
            overwrite: false,
            duration: Duration::Epochs(3.0),
            micro_batch_size: nonzero(4),
            grad_accumulation: NonZeroUsize::MIN,
            optimizer: Optimizer::default(),
            learning_rate: 2e-4,
            min_learning_rate: 0.0,
            schedule: Schedule::default(),
            warmup: Warmup::Steps(0),
            weight_decay: 0.0,
            betas: [0.9, 0.999],
            eps: 1e-8,
            max_grad_norm: Some(1.0),
            tuning: Tuning::default(),
            recompute: Recompute::default(),
            neftune_alpha: None,
            seed: 0,
            eval_every: None,
            save_every: NonZeroU64::new(500),
            keep_last: NonZeroUsize::new(2),
            log_every: NonZeroU64::MIN,
            tensorboard: false,
            threads: None,
            trainable: Vec::new(),
            watch: Watch::default(),
        }
    }
}

const fn nonzero(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

impl ModelSection {
    /// What the loader is asked to do; `None` where weights stay as they are.
    pub fn quantization(&self) -> Option<Quantization> {
        self.quant.quantization(self.double_quant, &self.quant_skip)
    }
}

impl RunConfig {
    /// Everything that was set and everything that was left to its default, as TOML. [`load`] and
    /// [`load_str`] read it back as an equal configuration.
    ///
    /// # Errors
    /// [`WriteError`] when TOML cannot hold it: a path that is not UTF-8, a number beyond
    /// `i64::MAX`.
    pub fn to_toml(&self) -> Result<String, WriteError> {
        Ok(toml::to_string(&write::to_raw(self)?)?)
    }
}

impl Serialize for RunConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = write::to_raw(self).map_err(serde::ser::Error::custom)?;
        Table::try_from(&raw).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// The configuration from a TOML file, or from nothing but the defaults, and the command line.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn load(file: Option<&Path>, overrides: &[Override]) -> Result<RunConfig, ConfigError> {
    let Some(path) = file else {
        return load_str("", "defaults", overrides);
    };
    match std::fs::read_to_string(path) {
        Ok(text) => load_layers(
            &text,
            &path.display().to_string(),
            path.parent().unwrap_or(Path::new("")),
            overrides,
        ),
        Err(error) => {
            let kind = FaultKind::Read { path: path.to_owned(), reason: error.to_string() };
            let mut faults = vec![Fault { origin: None, kind }];
            faults.extend(Layers::default().add_overrides(overrides).err().unwrap_or_default());
            Err(ConfigError { faults })
        }
    }
}

/// The configuration from a TOML text and the command line. `name` is what messages call the text;
/// its relative paths begin at the working directory.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn load_str(text: &str, name: &str, overrides: &[Override]) -> Result<RunConfig, ConfigError> {
    load_layers(text, name, Path::new(""), overrides)
}

/// The configuration from a table; its relative paths begin at the working directory.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn from_table(table: Table) -> Result<RunConfig, ConfigError> {
    let mut layers = Layers::default();
    layers.add_table(table, Path::new(""), &|_| None);
    check::check(layers)
}

fn load_layers(
    text: &str,
    name: &str,
    folder: &Path,
    overrides: &[Override],
) -> Result<RunConfig, ConfigError> {
    let mut layers = Layers::default();
    layers.add_defaults(overrides);
    let in_text = layers.add_text(name, text, folder);
    let in_overrides = layers.add_overrides(overrides);
    let checked = match (&in_text, &in_overrides) {
        (Ok(()), Ok(())) => return check::check(layers),
        // Keys are judged as far as they are known; what is missing may stand in the argument that
        // was not understood.
        (Ok(()), Err(_)) => {
            check::check(layers).err().map(|error| error.faults).unwrap_or_default()
        }
        (Err(_), _) => Vec::new(),
    };
    let is_certain = |fault: &Fault| !matches!(fault.kind, FaultKind::Missing { .. });
    let mut faults: Vec<Fault> =
        [in_text, in_overrides].into_iter().filter_map(Result::err).flatten().collect();
    faults.extend(checked.into_iter().filter(is_certain));
    Err(ConfigError { faults })
}

/// `path` as short as it can be said here: from the working directory on, if it lies below it.
#[must_use]
pub fn shown(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    match here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned)) {
        Some(below) if below.as_os_str().is_empty() => PathBuf::from("."),
        Some(below) => below,
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests;
