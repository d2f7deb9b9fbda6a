//! Adapter folders in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::bnb::BnbConfig;
use emberlm_quant::tensor_file::{
    FloatDtype, NamedTensor, StoredTensor, TensorFile, write_stored_with,
};
use emberlm_quant::{Quantization, TensorFileError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::walk::{ParamVisitor, for_each_param};
use crate::{
    Adapter, AdapterParam, InjectError, LoraConfig, LoraConfigError, NamedLinear, NamedTokenRows,
    Targets, TokenRows, inject,
};

/// The weights' file in an adapter folder.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// The configuration's file in an adapter folder.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The table that PEFT assumes for tokens without a table name.
const EMBEDDING: &str = "embed_tokens";
/// The end of the key of a table's trained token rows. The name is PEFT's; the values are rows, not differences.
const TOKEN_ROWS: &str = "token_adapter.trainable_tokens_delta";
/// The metadata entry with the `quantization_config` of the base model in training. It is not in `adapter_config.json`,
/// because PEFT warns about unknown keys.
const BASE_QUANTIZATION: &str = "base_quantization_config";

/// Why an adapter folder can't be read, applied or written.
#[derive(Debug, thiserror::Error)]
pub enum PeftError {
    /// A file system error.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Not an adapter folder.
    #[error(
        "{folder}: {missing} not found; an adapter folder contains {CONFIG_FILE} and {WEIGHTS_FILE}"
    )]
    NotAnAdapter {
        /// The folder.
        folder: PathBuf,
        /// The missing file.
        missing: &'static str,
    },
    /// An invalid `adapter_config.json`.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Settings that change the computation and are not supported.
    #[error(
        "{path}: not supported: {}. Convert the adapter to plain LoRA with PEFT first",
        .settings.join(", ")
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The settings, as `key = value`.
        settings: Vec<String>,
    },
    /// The weights' file.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    /// The target layers.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// Tensors that don't match the layers.
    #[error("{path} does not match the model and {CONFIG_FILE}:\n  {}", .faults.join("\n  "))]
    DoesNotBind {
        /// The file.
        path: PathBuf,
        /// Each missing or unexpected tensor and each wrong shape.
        faults: Vec<String>,
    },
}

/// The keys of `adapter_config.json` that emberlm uses.
#[derive(Debug, Serialize, Deserialize)]
struct ConfigFile {
    // Alphabetical, as PEFT sorts the keys.
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default = "no_bias")]
    bias: String,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    #[serde(default = "yes")]
    init_lora_weights: Value,
    #[serde(default)]
    layers_to_transform: Option<OneOrMany>,
    #[serde(default = "eight_f64")]
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    peft_type: String,
    #[serde(default = "eight")]
    r: usize,
    #[serde(default)]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    target_modules: Option<OneOrManyNames>,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    trainable_token_indices: Option<TokenIndices>,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(usize),
    Many(Vec<usize>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrManyNames {
    One(String),
    Many(Vec<String>),
}

/// Tokens with trained rows: of the embedding (and a tied head), or of each table by name.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum TokenIndices {
    OfEmbedding(Vec<usize>),
    ByTable(BTreeMap<String, Vec<usize>>),
}

fn no_bias() -> String {
    "none".into()
}
fn yes() -> Value {
    Value::Bool(true)
}
fn eight() -> usize {
    8
}
fn eight_f64() -> f64 {
    8.0
}

/// Keys of newer PEFT versions that don't change what a loaded adapter computes.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "layers_pattern",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

impl ConfigFile {
    fn unsupported(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.peft_type != "LORA" {
            found.push(format!("peft_type = {:?}", self.peft_type));
        }
        if self.bias != "none" {
            found.push(format!("bias = {:?}", self.bias));
        }
        if self.fan_in_fan_out {
            found.push("fan_in_fan_out = true".into());
        }
        if self.use_dora {
            found.push("use_dora = true".into());
        }
        if self.modules_to_save.as_ref().is_some_and(|modules| !modules.is_empty()) {
            found.push(format!("modules_to_save = {:?}", self.modules_to_save));
        }
        for (key, value) in &self.others {
            let is_off = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(items) => items.is_empty(),
                _ => false,
            };
            if !is_off && !HARMLESS.contains(&key.as_str()) {
                found.push(format!("{key} = {value}"));
            }
        }
        found
    }
}

/// An open adapter folder.
pub struct AdapterFolder {
    /// The adapter's configuration.
    pub config: LoraConfig,
    /// The base model named in the folder.
    pub base_model: Option<String>,
    /// The tokens with trained rows, by table (last part of its name): `embed_tokens`, `lm_head`.
    pub tokens: BTreeMap<String, Vec<usize>>,
    /// The base's quantization in training, if known: emberlm saves it.
    pub trained_on: Option<Quantization>,
    weights: TensorFile,
}

impl AdapterFolder {
    /// Reads the configuration and opens the weights.
    ///
    /// # Errors
    /// Any [`PeftError`] but [`PeftError::DoesNotBind`]; unsupported settings that change the computation are listed.
    pub fn open(folder: &Path) -> Result<Self, PeftError> {
        for missing in [CONFIG_FILE, WEIGHTS_FILE] {
            if !folder.join(missing).is_file() {
                return Err(PeftError::NotAnAdapter { folder: folder.into(), missing });
            }
        }
        let path = folder.join(CONFIG_FILE);
        let text = fs::read_to_string(&path)
            .map_err(|cause| PeftError::Io { path: path.clone(), cause })?;
        let file: ConfigFile = serde_json::from_str(&text)
            .map_err(|e| PeftError::Json { path: path.clone(), reason: e.to_string() })?;
        let settings = file.unsupported();
        if !settings.is_empty() {
            return Err(PeftError::Unsupported { path, settings });
        }
        let targets = match file.target_modules {
            Some(OneOrManyNames::One(name)) if name == "all-linear" => Targets::AllLinear,
            Some(OneOrManyNames::One(pattern)) => Targets::Regex(pattern),
            Some(OneOrManyNames::Many(names)) => Targets::Names(names),
            None => {
                let reason =
                    "`target_modules` is missing, expected the names of the adapted layers".into();
                return Err(PeftError::Json { path, reason });
            }
        };
        let config = LoraConfig {
            r: file.r,
            alpha: file.lora_alpha,
            dropout: file.lora_dropout,
            targets,
            use_rslora: file.use_rslora,
            rank_pattern: file.rank_pattern,
            alpha_pattern: file.alpha_pattern,
            layers_to_transform: file.layers_to_transform.map(|blocks| match blocks {
                OneOrMany::One(block) => vec![block],
                OneOrMany::Many(blocks) => blocks,
            }),
        };
        config
            .check()
            .map_err(|e: LoraConfigError| PeftError::Json { path, reason: e.to_string() })?;
        let tokens = match file.trainable_token_indices {
            None => BTreeMap::new(),
            Some(TokenIndices::OfEmbedding(ids)) => BTreeMap::from([(EMBEDDING.to_owned(), ids)]),
            Some(TokenIndices::ByTable(tables)) => {
                let last = |name: String| name.rsplit('.').next().unwrap_or(&name).to_owned();
                tables.into_iter().map(|(name, ids)| (last(name), ids)).collect()
            }
        };
        let weights = TensorFile::open(&folder.join(WEIGHTS_FILE))?;
        let trained_on = weights.metadata(BASE_QUANTIZATION).and_then(|text| {
            let value = serde_json::from_str(text).ok()?;
            Some(BnbConfig::parse(&value).ok()?.into())
        });
        Ok(Self { config, base_model: file.base_model_name_or_path, tokens, trained_on, weights })
    }

    /// Applies the adapter to a model's layers. Every tensor of the file must match a target layer, and every target
    /// layer must have its tensors.
    ///
    /// # Errors
    /// [`PeftError::Inject`], [`PeftError::Tensors`], [`PeftError::DoesNotBind`] which lists all faults.
    pub fn apply<B: Backend>(
        &self,
        mut linears: Vec<NamedLinear<'_, B>>,
        device: &B::Device,
    ) -> Result<Vec<String>, PeftError> {
        let borrowed = linears.iter_mut().map(|l| NamedLinear {
            name: l.name.clone(),
            is_head: l.is_head,
            linear: &mut *l.linear,
        });
        let injected = inject(borrowed.collect(), &self.config, 0, device)?;
        let tokens = self.tokens.keys().map(|table| self.token_key(table));
        let tokens: BTreeSet<&str> = tokens.flatten().collect();
        let keys = self.weights.entries().keys().map(String::as_str);
        let mut left: BTreeSet<&str> = keys.filter(|key| !tokens.contains(key)).collect();
        let mut faults = Vec::new();
        for NamedLinear { name, linear, .. } in &mut linears {
            let Some(adapter) = linear.adapter.as_mut() else { continue };
            let shape = adapter.shape();
            let mut values = Vec::new();
            for param in shape.params() {
                let (key, expected) = (key(name, param), param.shape(&shape));
                left.remove(key.as_str());
                match self.weights.entries().get(&key) {
                    None => faults.push(format!("missing: {key} {expected:?}")),
                    Some(entry) if entry.shape != expected => faults.push(format!(
                        "shape of {key}: expected {expected:?}, found {:?}",
                        entry.shape
                    )),
                    Some(_) => values.push(self.weights.read_f32(&key)?),
                }
            }
            if values.len() == shape.params().len() {
                *adapter = Adapter::from_values(name, shape, values, device);
            }
        }
        faults.extend(left.iter().map(|key| format!("no layer for: {key}")));
        if faults.is_empty() {
            Ok(injected)
        } else {
            Err(PeftError::DoesNotBind { path: self.weights.path().into(), faults })
        }
    }

    /// The minimum vocabulary size: one more than the largest token id with a trained row, 0 without any.
    pub fn least_vocabulary(&self) -> usize {
        self.tokens.values().flatten().map(|id| id + 1).max().unwrap_or(0)
    }

    /// The trainable rows for a table (`embed_tokens`, `lm_head`) of this width; `None` if there are none.
    ///
    /// # Errors
    /// [`PeftError::Tensors`], [`PeftError::DoesNotBind`].
    pub fn token_rows<B: Backend>(
        &self,
        table: &str,
        width: usize,
        device: &B::Device,
    ) -> Result<Option<TokenRows<B>>, PeftError> {
        let Some(ids) = self.tokens.get(table).filter(|ids| !ids.is_empty()) else {
            return Ok(None);
        };
        let fault = |fault: String| PeftError::DoesNotBind {
            path: self.weights.path().into(),
            faults: vec![fault],
        };
        let Some(key) = self.token_key(table) else {
            return Err(fault(format!(
                "missing: the rows of {} added tokens of {table}",
                ids.len()
            )));
        };
        let (expected, found) = ([ids.len(), width], &self.weights.entries()[key].shape);
        if *found != expected {
            return Err(fault(format!("shape of {key}: expected {expected:?}, found {found:?}")));
        }
        let values = self.weights.read_f32(key)?;
        // Sorted by token: PEFT keeps the order of the user's list.
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&place| ids[place]);
        let sorted: Vec<usize> = order.iter().map(|&place| ids[place]).collect();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(fault(format!("duplicate token ids for {table}")));
        }
        let row = |place: usize| &values[place * width..(place + 1) * width];
        let values = order.iter().flat_map(|&place| row(place)).copied().collect();
        Ok(Some(TokenRows::from_values(sorted, width, values, device)))
    }

    /// The key of a table's rows.
    fn token_key(&self, table: &str) -> Option<&str> {
        let end = format!(".{table}.{TOKEN_ROWS}");
        self.weights.entries().keys().map(String::as_str).find(|key| key.ends_with(&end))
    }
}

fn key(layer: &str, param: &AdapterParam) -> String {
    format!("base_model.model.{layer}.{}", param.peft_name)
}

/// Writes an adapter folder that PEFT, vLLM and llama.cpp load. Each file is written atomically, the weights first, so
/// that a folder with a configuration also has its weights.
///
/// # Errors
/// [`PeftError::Io`], [`PeftError::Tensors`].
pub fn save<B: Backend>(
    folder: &Path,
    linears: &[NamedLinear<'_, B>],
    config: &LoraConfig,
    base_model: Option<&str>,
) -> Result<(), PeftError> {
    save_with_tokens(folder, linears, &[], config, base_model)
}

/// As [`save`], with trained token rows in addition to the adapters.
///
/// # Errors
/// As [`save`].
pub fn save_with_tokens<B: Backend>(
    folder: &Path,
    linears: &[NamedLinear<'_, B>],
    tokens: &[NamedTokenRows<'_, B>],
    config: &LoraConfig,
    base_model: Option<&str>,
) -> Result<(), PeftError> {
    fs::create_dir_all(folder).map_err(|cause| PeftError::Io { path: folder.into(), cause })?;
    let mut tensors = Vec::new();
    for NamedLinear { name, linear, .. } in linears {
        let Some(adapter) = &linear.adapter else { continue };
        for_each_param(adapter, &mut AdapterTensors { layer: name, tensors: &mut tensors });
    }
    for NamedTokenRows { name, rows } in tokens {
        let shape = rows.rows.dims().to_vec();
        let values = || rows.rows.val().into_data().iter::<f32>().collect();
        let name = format!("base_model.model.{name}.{TOKEN_ROWS}");
        let tensor = NamedTensor { name, shape, values: Box::new(values) };
        tensors.push(StoredTensor::float(tensor, FloatDtype::F32));
    }
    let layers = linears.iter().map(|named| (named.name.as_str(), &named.linear.weight));
    let trained_on = BnbConfig::of_layers(layers)
        .map(|config| (BASE_QUANTIZATION, config.to_json(FloatDtype::F32).to_string()));
    write_stored_with(&folder.join(WEIGHTS_FILE), &tensors, trained_on)?;
    let file = ConfigFile {
        alpha_pattern: config.alpha_pattern.clone(),
        base_model_name_or_path: base_model.map(Into::into),
        bias: no_bias(),
        fan_in_fan_out: false,
        inference_mode: true,
        init_lora_weights: yes(),
        layers_to_transform: config.layers_to_transform.clone().map(OneOrMany::Many),
        lora_alpha: config.alpha,
        lora_dropout: config.dropout,
        modules_to_save: None,
        peft_type: "LORA".into(),
        r: config.r,
        rank_pattern: config.rank_pattern.clone(),
        target_modules: Some(match &config.targets {
            Targets::AllLinear => OneOrManyNames::Many(layer_kinds(linears)),
            Targets::Names(names) => OneOrManyNames::Many(names.clone()),
            Targets::Regex(pattern) => OneOrManyNames::One(pattern.clone()),
        }),
        task_type: Some("CAUSAL_LM".into()),
        trainable_token_indices: token_indices(tokens),
        use_dora: false,
        use_rslora: config.use_rslora,
        others: Map::new(),
    };
    let path = folder.join(CONFIG_FILE);
    let text = serde_json::to_string_pretty(&file)
        .map_err(|e| PeftError::Json { path: path.clone(), reason: e.to_string() })?;
    write_atomically(&path, |out| out.write_all(text.as_bytes()))
        .map_err(|cause| PeftError::Io { path, cause })
}

/// Collects the parameters of a layer's adapter under their keys in PEFT's file.
struct AdapterTensors<'a, 'b> {
    layer: &'a str,
    tensors: &'a mut Vec<StoredTensor<'b>>,
}

impl<B: Backend> ParamVisitor<B> for AdapterTensors<'_, '_> {
    fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>) {
        let listed = AdapterParam::at_path(name).expect("every parameter of an adapter is listed");
        let (name, shape) = (key(self.layer, listed), param.dims().to_vec());
        let tensor = param.val();
        let values = Box::new(move || tensor.clone().into_data().iter::<f32>().collect());
        let tensor = NamedTensor { name, shape, values };
        self.tensors.push(StoredTensor::float(tensor, FloatDtype::F32));
    }
}

/// PEFT handles tied tables itself if only the embedding's tokens are named.
fn token_indices<B: Backend>(tokens: &[NamedTokenRows<'_, B>]) -> Option<TokenIndices> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    match tokens {
        [] => None,
        [only] if last(&only.name) == EMBEDDING => {
            Some(TokenIndices::OfEmbedding(only.rows.ids.clone()))
        }
        several => {
            let tables = several.iter().map(|named| (last(&named.name), named.rows.ids.clone()));
            Some(TokenIndices::ByTable(tables.collect()))
        }
    }
}

/// The last parts of the adapted layers' names: vLLM and llama.cpp support lists of names, not `all-linear`.
fn layer_kinds<B: Backend>(linears: &[NamedLinear<'_, B>]) -> Vec<String> {
    let adapted = linears.iter().filter(|l| l.linear.adapter.is_some());
    let kinds: BTreeSet<&str> =
        adapted.map(|l| l.name.rsplit('.').next().unwrap_or(&l.name)).collect();
    kinds.into_iter().map(Into::into).collect()
}
