//! The configuration of a training run: its settings, each declared once, in the function that reads its section.
//!
//! Three sources, the later one wins key by key: the defaults, a TOML text, the command line (`--set section.key=value` and
//! flags, both as [`Override`]s). They are merged as tables and read once; all faults are reported together, each with its place
//! and its remedy ([`ConfigError`]). The result is a [`RunConfig`], which cannot express contradictory settings.
//!
//! A relative path in a TOML file is relative to the folder of that file; in `--set`, in a flag and in a configuration embedded
//! in the program it is relative to the working directory. A [`RunConfig`] holds absolute paths only, so the `config.toml` in a run folder means the
//! same from anywhere. Every key, with its default: `docs/configuration.md`, which is written from [`declared`].

mod changes;
mod data;
mod lora;
mod model;
mod monitoring;
mod reading;
mod stages;
mod train;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::OnceLock;

use serde::{Serialize, Serializer};
use toml::Table;

pub use changes::{Change, changes, flatten};
pub use data::{DataSection, DataSource, MixtureSource};
pub use lora::{LoraSection, LoraStart};
pub use model::ModelSection;
pub use monitoring::{Monitoring, ResultWeights};
pub use reading::Reading;
pub use stages::{RunFile, Stage, load_run_file};
pub use train::{Duration, TrainSection};

pub use crate::settings::{
    ConfigError, Effect, Fault, FaultKind, Origin, Override, absolute, shown,
};
use crate::settings::{Declared, Layers, Reader, reference};

/// A checked configuration. Paths are absolute. Serializes as its TOML table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunConfig {
    /// The model and how it is held.
    pub model: ModelSection,
    /// The adapters to train; `None`: full fine-tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSection>,
    /// The examples.
    pub data: DataSection,
    /// The training.
    pub train: TrainSection,
}

impl RunConfig {
    fn read(s: &mut Reader) -> Self {
        let has_lora = s.has_section("lora");
        let model = s.section("model", "Base model", |s| ModelSection::read(s, has_lora));
        let lora = s.optional_section(
            "lora",
            "LoRA adapters. Without this section, all weights are trained (full fine-tuning)",
            LoraSection::read,
        );
        let data = s.section("data", "Training and evaluation data", |s| {
            DataSection::read(s, &model.source)
        });
        let train = s.section("train", "Training", |s| TrainSection::read(s, has_lora));
        Self { model, lora, data, train }
    }

    /// The configuration as TOML, every setting in it: the `config.toml` of a run folder. [`load`] and [`load_str`] read it back
    /// as an equal configuration.
    ///
    /// # Errors
    /// [`WriteError`] when TOML cannot hold it: a path that is not UTF-8, a number beyond `i64::MAX`.
    pub fn to_toml(&self) -> Result<String, WriteError> {
        // A table has fewer numbers than the text could show.
        Table::try_from(self)?;
        Ok(toml::to_string(self)?)
    }
}

impl Default for RunConfig {
    fn default() -> Self {
        Self::read(&mut Reader::new(Layers::default()))
    }
}

/// A configuration that cannot be written as TOML, such as one with a path that is not UTF-8.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the configuration as TOML")]
pub struct WriteError(#[from] toml::ser::Error);

/// Every section and setting.
pub fn declared() -> &'static Declared {
    static DECLARED: OnceLock<Declared> = OnceLock::new();
    DECLARED.get_or_init(|| {
        let mut reader = Reader::new(Layers::default());
        RunConfig::read(&mut reader);
        reader.declared()
    })
}

/// The JSON Schema of a configuration file, by which editors complete and check it.
pub fn schema() -> serde_json::Value {
    let plain = reference::json_schema(declared(), serde_json::Map::new());
    let mut stage = plain["properties"].clone();
    stage["name"] = serde_json::json!({ "type": "string", "description": "Name of the stage and of its folder" });
    stage["lora"] = serde_json::json!({ "anyOf": [stage["lora"], { "const": false }] });
    let stages = serde_json::json!({
        "type": "array",
        "description": "Several runs in one file, each starting from the result of the previous one",
        "items": { "type": "object", "additionalProperties": false, "properties": stage },
    });
    reference::json_schema(declared(), [("stage".to_owned(), stages)].into_iter().collect())
}

/// A commented file to start from: every setting with its meaning and default.
pub fn starting_file() -> String {
    let given = [
        ("model.path", "\"models/SmolLM2-135M-Instruct\""),
        ("lora.r", "16"),
        ("data.train", "[\"train.jsonl\"]"),
        ("train.output_dir", "\"runs/first\""),
        ("train.epochs", "3.0"),
    ];
    let mut text = String::from(
        "# Training run: emberlm train FILE. All settings; those commented out have their default.\n\n",
    );
    text += &reference::starting_file(declared(), &given);
    text
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
        Ok(text) => {
            let folder = path.parent().unwrap_or(Path::new(""));
            load_layers(&text, &path.display().to_string(), folder, overrides)
        }
        Err(error) => {
            let kind = FaultKind::Read { path: path.to_owned(), reason: error.to_string() };
            let mut faults = vec![Fault { origin: None, kind }];
            faults.extend(Layers::default().add_overrides(overrides).err().unwrap_or_default());
            Err(ConfigError { faults })
        }
    }
}

/// The configuration from a TOML text and the command line. `name` is what messages call the text; its relative paths are relative to
/// the working directory.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn load_str(text: &str, name: &str, overrides: &[Override]) -> Result<RunConfig, ConfigError> {
    load_layers(text, name, Path::new(""), overrides)
}

/// The configuration from a table; its relative paths are relative to the working directory.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn from_table(table: Table) -> Result<RunConfig, ConfigError> {
    let mut layers = Layers::default();
    layers.add_table(table, Path::new(""), &|_| None);
    read(layers)
}

fn read(layers: Layers) -> Result<RunConfig, ConfigError> {
    let mut reader = Reader::new(layers);
    let config = RunConfig::read(&mut reader);
    reader.finish(config)
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
    let in_settings = match (&in_text, &in_overrides) {
        (Ok(()), Ok(())) => return read(layers),
        // Keys are checked as far as they are known; what is missing may be in the argument that was not understood.
        (Ok(()), Err(_)) => read(layers).err().map(|error| error.faults).unwrap_or_default(),
        (Err(_), _) => Vec::new(),
    };
    let is_certain = |fault: &Fault| !matches!(fault.kind, FaultKind::Missing { .. });
    let mut faults: Vec<Fault> =
        [in_text, in_overrides].into_iter().filter_map(Result::err).flatten().collect();
    faults.extend(in_settings.into_iter().filter(is_certain));
    Err(ConfigError { faults })
}

const fn nonzero(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

const fn nonzero_u64(n: u64) -> NonZeroU64 {
    match NonZeroU64::new(n) {
        Some(n) => n,
        None => NonZeroU64::MIN,
    }
}

/// A setting that can be off is written as `false` where it is.
fn or_false<T: Serialize, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => false.serialize(serializer),
    }
}

#[cfg(test)]
mod tests;
