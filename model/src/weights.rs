//! Weights: loaded from a Hugging Face folder, or random. [`save`](crate::save) writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Tensor};
use emberlm_lora::Linear;
use emberlm_lora::random::{generator, normal};
use emberlm_quant::bnb::{self, StoredMatrix};
use emberlm_quant::host::{float_tensor_in, float_type};
use emberlm_quant::portable::in_type;
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{
    QuantBackend, QuantFormat, Quantization, Quantized, QuantizedMatrix, TensorFile,
    TensorFileError, Weight,
};
use serde::Deserialize;

use crate::linears::in_block;
use crate::{
    Attention, BlockLinear, CausalLm, ConfigError, Decoder, DecoderLayer, Embedding, LinearRole,
    Mlp, ModelConfig, RmsNorm,
};

/// A single-file checkpoint.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why a model folder can't be loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A safetensors file.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    /// The folder has no safetensors checkpoint.
    #[error("{folder}: neither {WEIGHTS_FILE} nor {INDEX_FILE} found. {hint}")]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// What the folder contains, and the remedy.
        hint: String,
    },
    /// The index of a sharded checkpoint can't be read.
    #[error("{path}: {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Shards listed in the index but missing in the folder.
    #[error("{path} lists shards that are missing: {}. Download them again", .missing.join(", "))]
    MissingShards {
        /// The index.
        path: PathBuf,
        /// The files.
        missing: Vec<String>,
    },
    /// Tensors that don't match the model.
    #[error("{folder}: the weights don't match config.json:\n  {}", .faults.join("\n  "))]
    DoesNotFit {
        /// The folder.
        folder: PathBuf,
        /// Each tensor that is missing, unexpected or of another shape or dtype.
        faults: Vec<String>,
    },
    /// A quantized checkpoint, requested in another format.
    #[error(
        "the checkpoint's layers are stored as {stored}, but {asked} was requested. Use the stored format, or quantize the original dense model"
    )]
    StoredOtherwise {
        /// The format in the files.
        stored: QuantFormat,
        /// The requested format.
        asked: QuantFormat,
    },
    /// A float type that the device doesn't support.
    #[error("dtype {dtype} is not supported by this backend or device. {instead}")]
    NoFloatType {
        /// The type.
        dtype: &'static str,
        /// Supported alternatives.
        instead: &'static str,
    },
    /// A file system error.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}

/// How the weights of a model are stored in memory.
#[derive(Debug, Clone, Copy)]
pub struct WeightForm<'a> {
    /// The float type of dense weights. Activations have it too, unless the backend computes in a wider one
    /// ([`QuantBackend::activation_type`]); adapters are f32 always.
    pub dtype: FloatDtype,
    /// How to quantize the linear layers of the blocks; `None`: as in the checkpoint.
    pub quantization: Option<&'a Quantization>,
}

impl Default for WeightForm<'_> {
    /// f32; linear layers as in the checkpoint.
    fn default() -> Self {
        Self { dtype: FloatDtype::F32, quantization: None }
    }
}

impl WeightForm<'_> {
    /// Refuses a float type that the device doesn't support.
    ///
    /// # Errors
    /// [`LoadError::NoFloatType`].
    pub fn check<B: QuantBackend>(&self, device: &B::Device) -> Result<(), LoadError> {
        let has = |dtype| B::has_float_type(dtype, device);
        if has(self.dtype) {
            return Ok(());
        }
        let instead = match self.dtype {
            FloatDtype::Bf16 if has(FloatDtype::F16) => "Use f16, or f32",
            FloatDtype::F16 if has(FloatDtype::Bf16) => "Use bf16, or f32",
            _ => "Use f32, or a backend with this type: flex, or a GPU",
        };
        Err(LoadError::NoFloatType { dtype: self.dtype.name(), instead })
    }
}

/// An open checkpoint that matches a configuration. Its tensors are read one by one.
pub struct Checkpoint {
    files: Vec<TensorFile>,
    /// Which file holds each tensor.
    places: BTreeMap<String, usize>,
    /// The quantized weights.
    quantized: BTreeMap<String, StoredMatrix>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the safetensors files of a model folder and checks every key and shape against `config`.
    ///
    /// # Errors
    /// [`LoadError`]; all missing and unexpected tensors and wrong shapes are listed.
    pub fn open(folder: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        let index = folder.join(INDEX_FILE);
        let single = folder.join(WEIGHTS_FILE);
        if single.is_file() {
            Self::from_files(vec![TensorFile::open(&single)?], config, folder)
        } else if index.is_file() {
            let files = open_shards(folder, &index)?;
            Self::from_files(files, config, folder)
        } else {
            Err(LoadError::NoWeights { folder: folder.into(), hint: folder_hint(folder) })
        }
    }

    /// Its files, in the order of opening.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(TensorFile::path)
    }

    /// A checkpoint from files that are already open; `name` is used in messages.
    ///
    /// # Errors
    /// [`LoadError::DoesNotFit`].
    pub fn from_files(
        files: Vec<TensorFile>,
        config: &ModelConfig,
        name: &Path,
    ) -> Result<Self, LoadError> {
        let mut places = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            places.extend(file.entries().keys().map(|key| (key.clone(), i)));
        }
        let mut checkpoint = Self { files, places, quantized: BTreeMap::new() };
        let faults = checkpoint.faults(config);
        if faults.is_empty() {
            Ok(checkpoint)
        } else {
            Err(LoadError::DoesNotFit { folder: name.into(), faults })
        }
    }

    fn faults(&mut self, config: &ModelConfig) -> Vec<String> {
        let mut faults = Vec::new();
        let expected: BTreeMap<String, Vec<usize>> = config.tensors().into_iter().collect();
        let mut companions = BTreeSet::new();
        let mut quantized = BTreeMap::new();
        let file_of = |key: &str| self.file_of(key);
        for (key, shape) in &expected {
            if let (Some(_), &[d_out, d_in]) = (&config.quantization, &shape[..])
                && is_block_linear(key)
                && bnb::is_quantized(&file_of, key)
            {
                companions.extend(bnb::companions(key));
                if let Some(matrix) = StoredMatrix::find(&file_of, key, [d_out, d_in], &mut faults)
                {
                    quantized.insert(key.clone(), matrix);
                }
                continue;
            }
            let Some(file) = file_of(key) else {
                faults.push(format!("missing: {key} {shape:?}"));
                continue;
            };
            let entry = &file.entries()[key];
            if &entry.shape != shape {
                faults.push(format!("shape of {key}: expected {shape:?}, found {:?}", entry.shape));
            }
            if FloatDtype::of_entry(entry.dtype).is_none() {
                faults.push(format!(
                    "dtype of {key}: expected F32, F16 or BF16, found {:?}{}",
                    entry.dtype,
                    if config.quantization.is_none() && is_block_linear(key) {
                        " (quantized, but config.json has no quantization_config)"
                    } else {
                        ""
                    }
                ));
            }
        }
        for key in self.places.keys() {
            let is_known = expected.contains_key(key) || companions.contains(key);
            if !is_known && !is_derived(key, config) {
                faults.push(format!("unexpected: {key}"));
            }
        }
        self.quantized = quantized;
        faults
    }

    fn file_of(&self, key: &str) -> Option<&TensorFile> {
        self.places.get(key).map(|&file| &self.files[file])
    }

    /// The format of the stored linear layers, if quantized.
    pub fn format(&self) -> Option<QuantFormat> {
        self.quantized.values().map(StoredMatrix::format).next()
    }

    /// The float type of the checkpoint's dense tensors, taken from the embedding.
    pub fn dtype(&self) -> FloatDtype {
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let entry = self.file_of(EMBEDDING).and_then(|file| file.entries().get(EMBEDDING));
        entry.and_then(|entry| FloatDtype::of_entry(entry.dtype)).unwrap_or(FloatDtype::F32)
    }

    fn read(&self, key: &str) -> Result<Values, TensorFileError> {
        match self.quantized.get(key) {
            Some(matrix) => Ok(Values::Quantized(matrix.read(&|key| self.file_of(key), key)?)),
            // `from_files` has checked that every expected key exists.
            None => Ok(Values::Dense(self.files[self.places[key]].read_f32(key)?)),
        }
    }
}

/// The values of one tensor on the host.
enum Values {
    Dense(Vec<f32>),
    Quantized(QuantizedMatrix),
}

/// Whether a tensor is the weight of a linear layer of a block. Only these are quantized: not the head, not the
/// embedding.
pub fn is_block_linear(key: &str) -> bool {
    key.strip_suffix(".weight").is_some_and(|path| LinearRole::at_path(path).is_some())
}

/// Redundant tensors that older versions of transformers stored.
fn is_derived(key: &str, config: &ModelConfig) -> bool {
    key.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && key == "lm_head.weight")
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<TensorFile>, LoadError> {
    let fault = |reason: String| LoadError::Index { path: index.into(), reason };
    let text = fs::read_to_string(index).map_err(|e| fault(e.to_string()))?;
    let parsed: Index = serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?;
    let mut shards: Vec<String> = parsed.weight_map.into_values().collect();
    shards.sort_unstable();
    shards.dedup();
    let (there, missing): (Vec<_>, Vec<_>) =
        shards.into_iter().partition(|shard| folder.join(shard).is_file());
    if !missing.is_empty() {
        return Err(LoadError::MissingShards { path: index.into(), missing });
    }
    there.iter().map(|shard| Ok(TensorFile::open(&folder.join(shard))?)).collect()
}

fn folder_hint(folder: &Path) -> String {
    let Ok(entries) = fs::read_dir(folder) else {
        return "The folder doesn't exist or can't be read".into();
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    if names.iter().any(|name| name.ends_with(".bin") || name.ends_with(".pt")) {
        return "It contains PyTorch pickles: convert them with transformers' `save_pretrained(safe_serialization=True)`".into();
    }
    names.truncate(12);
    format!(
        "The folder contains: {}",
        if names.is_empty() { "no files".into() } else { names.join(", ") }
    )
}

/// Loads a Hugging Face folder: configuration and weights, all frozen.
///
/// # Errors
/// [`LoadError`].
pub fn load<B: QuantBackend>(
    folder: &Path,
    device: &B::Device,
) -> Result<(ModelConfig, CausalLm<B>), LoadError> {
    let config = ModelConfig::read(&folder.join("config.json"))?;
    let checkpoint = Checkpoint::open(folder, &config)?;
    let model = from_checkpoint(&config, &checkpoint, WeightForm::default(), device)?;
    Ok((config, model))
}

/// Builds a model from an open checkpoint, tensor by tensor. With a quantization, each linear layer's weight is
/// quantized as soon as it is read, so that at most one of them is dense at a time; other tensors are rounded to the
/// form's float type.
///
/// A quantized checkpoint keeps its stored format.
///
/// # Errors
/// [`LoadError::Tensors`], for example for a NaN in a weight; [`LoadError::StoredOtherwise`];
/// [`LoadError::NoFloatType`].
pub fn from_checkpoint<B: QuantBackend>(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    form: WeightForm<'_>,
    device: &B::Device,
) -> Result<CausalLm<B>, LoadError> {
    form.check::<B>(device)?;
    let WeightForm { dtype, quantization } = form;
    if let (Some(stored), Some(asked)) = (checkpoint.format(), quantization.map(|q| q.format))
        && stored != asked
    {
        return Err(LoadError::StoredOtherwise { stored, asked });
    }
    let wanted = |key: &str| {
        let module = key.strip_suffix(".weight").unwrap_or(key);
        quantization.filter(|quantization| is_block_linear(key) && !quantization.skips(module))
    };
    let mut values = |key: &str, shape: &[usize]| {
        Ok(match (checkpoint.read(key)?, wanted(key), shape) {
            (Values::Dense(values), Some(quantization), &[d_out, d_in]) => {
                Values::Quantized(QuantizedMatrix::quantize(&values, [d_out, d_in], quantization))
            }
            (values, ..) => values,
        })
    };
    build(config, dtype, device, &mut values)
}

/// A model with random weights, for pre-training: matrices from a normal distribution with the configuration's standard
/// deviation, biases 0, norms 1.
///
/// Each tensor depends only on `seed` and its own key.
pub fn random<B: QuantBackend>(config: &ModelConfig, seed: u64, device: &B::Device) -> CausalLm<B> {
    random_in(config, FloatDtype::F32, seed, device)
}

/// As [`random`], rounded to and stored in a float type.
///
/// # Panics
/// On some backends, if the type is not supported ([`QuantBackend::has_float_type`]).
pub fn random_in<B: QuantBackend>(
    config: &ModelConfig,
    dtype: FloatDtype,
    seed: u64,
    device: &B::Device,
) -> CausalLm<B> {
    let deviation = config.initializer_range as f32;
    let built = build(config, dtype, device, &mut |key, shape| {
        let n = shape.iter().product();
        let values = match shape {
            [_] if key.ends_with("bias") => vec![0.0; n],
            [_] => vec![1.0; n],
            _ => normal(&mut generator(seed, key, &[]), n, deviation),
        };
        Ok::<_, std::convert::Infallible>(Values::Dense(values))
    });
    match built {
        Ok(model) => model,
        Err(never) => match never {},
    }
}

/// Returns the values of the tensor with this key and shape.
type ValuesOf<'a, E> = &'a mut dyn FnMut(&str, &[usize]) -> Result<Values, E>;

/// Builds a model from the values of each tensor.
fn build<B: QuantBackend, E>(
    config: &ModelConfig,
    dtype: FloatDtype,
    device: &B::Device,
    values: ValuesOf<'_, E>,
) -> Result<CausalLm<B>, E> {
    let mut builder = Builder::<B, E> { config, held: float_type::<B>(dtype), device, values };
    let embedding = builder.embedding()?;
    let layers =
        (0..config.num_hidden_layers).map(|i| builder.block(i)).collect::<Result<_, E>>()?;
    let norm = builder.norm("model.norm")?;
    let head = [config.vocab_size, config.hidden_size];
    let lm_head = (!config.tie_word_embeddings)
        .then(|| builder.linear("lm_head", head, false))
        .transpose()?;
    Ok(CausalLm {
        model: Decoder { embed_tokens: embedding, layers, norm },
        lm_head,
        head_tokens: None,
        soft_cap: config.logit_soft_cap,
    })
}

/// Builds the parts of a model. It requests exactly the tensors of [`ModelConfig::tensors`].
struct Builder<'a, B: QuantBackend, E> {
    config: &'a ModelConfig,
    /// The type of dense weights.
    held: DType,
    device: &'a B::Device,
    values: ValuesOf<'a, E>,
}

impl<B: QuantBackend, E> Builder<'_, B, E> {
    fn dense(&mut self, key: &str, shape: &[usize]) -> Result<Vec<f32>, E> {
        Ok(match (self.values)(key, shape)? {
            Values::Dense(values) => values,
            Values::Quantized(matrix) => matrix.dequantize(),
        })
    }

    fn vector(&mut self, key: &str, n: usize) -> Result<Tensor<B, 1>, E> {
        let values = float_tensor_in(self.dense(key, &[n])?, [n], self.held, self.device);
        // Norms and biases are combined with activations, and are small.
        Ok(in_type(values, B::activation_type(self.held)))
    }

    fn embedding(&mut self) -> Result<Embedding<B>, E> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let values = self.dense("model.embed_tokens.weight", &shape)?;
        let weight = float_tensor_in(values, shape, self.held, self.device);
        Ok(Embedding { weight: Param::initialized(ParamId::new(), weight), tokens: None })
    }

    fn linear(&mut self, path: &str, shape: [usize; 2], bias: bool) -> Result<Linear<B>, E> {
        let weight = match (self.values)(&format!("{path}.weight"), &shape)? {
            Values::Dense(values) => {
                Weight::dense(float_tensor_in(values, shape, self.held, self.device))
            }
            Values::Quantized(matrix) => Weight::Quantized(Quantized::new(matrix, self.device)),
        };
        let [d_out, _] = shape;
        let bias = bias.then(|| self.vector(&format!("{path}.bias"), d_out)).transpose()?;
        Ok(Linear::new(weight, bias))
    }

    fn norm(&mut self, path: &str) -> Result<RmsNorm<B>, E> {
        let weight = self.vector(&format!("{path}.weight"), self.config.hidden_size)?;
        Ok(RmsNorm::new(weight, self.config.rms_norm_eps))
    }

    fn block(&mut self, block: usize) -> Result<DecoderLayer<B>, E> {
        let config = self.config;
        let [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj] =
            config.block_linears().map(|BlockLinear { role, d_out, d_in, bias }| {
                self.linear(&role.path_in(block), [d_out, d_in], bias)
            });
        Ok(DecoderLayer {
            self_attn: Attention {
                q_proj: q_proj?,
                k_proj: k_proj?,
                v_proj: v_proj?,
                o_proj: o_proj?,
                head_dim: config.head_dim,
                window: config.sliding_windows[block],
                scoring: config.scoring(),
            },
            mlp: Mlp {
                gate_proj: gate_proj?,
                up_proj: up_proj?,
                down_proj: down_proj?,
                activation: config.activation,
            },
            input_layernorm: self.norm(&in_block(block, "input_layernorm"))?,
            post_attention_layernorm: self.norm(&in_block(block, "post_attention_layernorm"))?,
        })
    }
}
