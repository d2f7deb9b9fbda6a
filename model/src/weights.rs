//! Weights: from a Hugging Face folder, from random numbers, and back to a folder.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::Linear;
use emberlm_lora::random::{generator, normal};
use emberlm_lora::walk::{OnParam, for_each_param};
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::host::float_tensor;
use emberlm_quant::tensor_file::{FloatDtype, NamedTensor, write_tensors};
use emberlm_quant::{TensorFile, TensorFileError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Attention, CausalLm, ConfigError, Decoder, DecoderLayer, Embedding, Mlp, ModelConfig, RmsNorm,
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
    /// The folder holds no checkpoint in safetensors form.
    #[error("{folder}: no {WEIGHTS_FILE} and no {INDEX_FILE} there. {hint}")]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// What is there, and what to do.
        hint: String,
    },
    /// The index of a sharded checkpoint can't be read.
    #[error("{path}: {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Shards that the index names and the folder lacks.
    #[error("{path} names shards that are not there: {}. Fetch them again", .missing.join(", "))]
    MissingShards {
        /// The index.
        path: PathBuf,
        /// The files.
        missing: Vec<String>,
    },
    /// Tensors and model don't pair off.
    #[error("{folder}: the weights don't fit config.json:\n  {}", .faults.join("\n  "))]
    DoesNotFit {
        /// The folder.
        folder: PathBuf,
        /// Each tensor that is missing, unexpected or of another shape or dtype.
        faults: Vec<String>,
    },
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A checkpoint that has been opened, and found to fit a configuration. Its tensors are read one by one.
pub struct Checkpoint {
    files: Vec<TensorFile>,
    /// Which file holds each tensor.
    places: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the safetensors files of a model folder and checks every key and shape against `config`.
    ///
    /// # Errors
    /// [`LoadError`]; missing, unexpected and misshapen tensors are listed together.
    pub fn open(folder: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        let index = folder.join(INDEX_FILE);
        let single = folder.join(WEIGHTS_FILE);
        if single.is_file() {
            Self::from_files(vec![TensorFile::open(&single)?], config, folder)
        } else if index.is_file() {
            let files = open_shards(folder, &index)?;
            Self::from_files(files, config, folder)
        } else {
            Err(LoadError::NoWeights { folder: folder.into(), hint: what_is_there(folder) })
        }
    }

    /// A checkpoint of files that are already open; `name` is for messages.
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
        let checkpoint = Self { files, places };
        let faults = checkpoint.faults(config);
        if faults.is_empty() {
            Ok(checkpoint)
        } else {
            Err(LoadError::DoesNotFit { folder: name.into(), faults })
        }
    }

    fn faults(&self, config: &ModelConfig) -> Vec<String> {
        let mut faults = Vec::new();
        let expected: BTreeMap<String, Vec<usize>> = config.tensors().into_iter().collect();
        for (key, shape) in &expected {
            let Some(&file) = self.places.get(key) else {
                faults.push(format!("missing: {key} {shape:?}"));
                continue;
            };
            let entry = &self.files[file].entries()[key];
            if &entry.shape != shape {
                faults.push(format!("shape of {key}: expected {shape:?}, found {:?}", entry.shape));
            }
            if FloatDtype::of_entry(entry.dtype).is_none() {
                faults.push(format!(
                    "dtype of {key}: expected F32, F16 or BF16, found {:?}",
                    entry.dtype
                ));
            }
        }
        for key in self.places.keys() {
            if !expected.contains_key(key) && !is_derived(key, config) {
                faults.push(format!("unexpected: {key}"));
            }
        }
        faults
    }

    /// The float type that most of the checkpoint is stored in: that of its first matrix.
    pub fn dtype(&self) -> FloatDtype {
        let first = self.files.iter().flat_map(|file| file.entries().values()).next();
        first.and_then(|entry| FloatDtype::of_entry(entry.dtype)).unwrap_or(FloatDtype::F32)
    }

    fn read(&self, key: &str) -> Result<Vec<f32>, TensorFileError> {
        // Every expected key has a place: `from_files` has checked it.
        self.files[self.places[key]].read_f32(key)
    }
}

/// Tensors that older versions stored although they follow from others.
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

fn what_is_there(folder: &Path) -> String {
    let Ok(entries) = fs::read_dir(folder) else {
        return "The folder doesn't exist or can't be read".into();
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    if names.iter().any(|name| name.ends_with(".bin") || name.ends_with(".pt")) {
        return "There are PyTorch pickles: convert them with transformers' `save_pretrained(safe_serialization=True)`".into();
    }
    names.truncate(12);
    format!("There are: {}", if names.is_empty() { "no files".into() } else { names.join(", ") })
}

/// Loads a Hugging Face folder: configuration and weights, all frozen.
///
/// # Errors
/// [`LoadError`].
pub fn load<B: Backend>(
    folder: &Path,
    device: &B::Device,
) -> Result<(ModelConfig, CausalLm<B>), LoadError> {
    let config = ModelConfig::read(&folder.join("config.json"))?;
    let checkpoint = Checkpoint::open(folder, &config)?;
    let model = from_checkpoint(&config, &checkpoint, device)?;
    Ok((config, model))
}

/// Builds a model from an open checkpoint, tensor by tensor.
///
/// # Errors
/// [`LoadError::Tensors`], among them a NaN in a weight.
pub fn from_checkpoint<B: Backend>(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    device: &B::Device,
) -> Result<CausalLm<B>, LoadError> {
    Ok(build(config, device, &mut |key, _| checkpoint.read(key))?)
}

/// A model with random weights, for pre-training: matrices normal with the configuration's deviation, biases 0, norms 1.
///
/// Each tensor depends on `seed` and its own key alone.
pub fn random<B: Backend>(config: &ModelConfig, seed: u64, device: &B::Device) -> CausalLm<B> {
    let deviation = config.initializer_range as f32;
    let built = build(config, device, &mut |key, shape| {
        let n = shape.iter().product();
        let values = match shape {
            [_] if key.ends_with("bias") => vec![0.0; n],
            [_] => vec![1.0; n],
            _ => normal(&mut generator(seed, key, &[]), n, deviation),
        };
        Ok::<_, std::convert::Infallible>(values)
    });
    match built {
        Ok(model) => model,
        Err(never) => match never {},
    }
}

/// Gives the values of a tensor by key and shape.
type Values<'a, E> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, E> + 'a;

/// Puts a model together from the values that `values(key, shape)` gives for each tensor.
fn build<B: Backend, E>(
    config: &ModelConfig,
    device: &B::Device,
    values: &mut Values<'_, E>,
) -> Result<CausalLm<B>, E> {
    let shapes: BTreeMap<String, Vec<usize>> = config.tensors().into_iter().collect();
    // Shared by the closures below, which are called one after another.
    let values = RefCell::new(values);
    let vector = |key: String| -> Result<Option<Tensor<B, 1>>, E> {
        let Some(shape @ &[n]) = shapes.get(&key).map(Vec::as_slice) else { return Ok(None) };
        Ok(Some(float_tensor((values.borrow_mut())(&key, shape)?, [n], device)))
    };
    let matrix = |key: String| -> Result<Option<Tensor<B, 2>>, E> {
        let Some(shape @ &[rows, columns]) = shapes.get(&key).map(Vec::as_slice) else {
            return Ok(None);
        };
        Ok(Some(float_tensor((values.borrow_mut())(&key, shape)?, [rows, columns], device)))
    };
    const LISTED: &str = "`ModelConfig::tensors` lists it";
    let linear = |key: String| -> Result<Option<Linear<B>>, E> {
        let weight = matrix(format!("{key}.weight"))?;
        let bias = vector(format!("{key}.bias"))?;
        Ok(weight.map(|weight| Linear::new(weight, bias)))
    };
    let norm = |key: String| -> Result<RmsNorm<B>, E> {
        let weight = vector(format!("{key}.weight"))?.expect(LISTED);
        Ok(RmsNorm::new(weight, config.rms_norm_eps))
    };
    let embedding = matrix("model.embed_tokens.weight".into())?.expect(LISTED);
    let layer = |i: usize| -> Result<DecoderLayer<B>, E> {
        let key = |name: &str| format!("model.layers.{i}.{name}");
        let proj = |name: &str| Ok(linear(key(name))?.expect(LISTED));
        Ok(DecoderLayer {
            self_attn: Attention {
                q_proj: proj("self_attn.q_proj")?,
                k_proj: proj("self_attn.k_proj")?,
                v_proj: proj("self_attn.v_proj")?,
                o_proj: proj("self_attn.o_proj")?,
                head_dim: config.head_dim,
                window: config.sliding_windows[i],
            },
            mlp: Mlp {
                gate_proj: proj("mlp.gate_proj")?,
                up_proj: proj("mlp.up_proj")?,
                down_proj: proj("mlp.down_proj")?,
                activation: config.activation,
            },
            input_layernorm: norm(key("input_layernorm"))?,
            post_attention_layernorm: norm(key("post_attention_layernorm"))?,
        })
    };
    let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<_, E>>()?;
    Ok(CausalLm {
        model: Decoder {
            embed_tokens: Embedding { weight: Param::initialized(ParamId::new(), embedding) },
            layers,
            norm: norm("model.norm".into())?,
        },
        lm_head: linear("lm_head".into())?,
    })
}

/// Writes a model without adapters as a Hugging Face folder: safetensors in shards of at most 5 GB, and the base's
/// `config.json` with the new dtype. Tokenizer files are the caller's.
///
/// # Errors
/// [`LoadError::Io`], [`LoadError::Tensors`], [`LoadError::Config`].
pub fn save<B: Backend>(
    folder: &Path,
    model: &CausalLm<B>,
    base_config: &str,
    dtype: FloatDtype,
) -> Result<(), LoadError> {
    fs::create_dir_all(folder).map_err(|source| LoadError::Io { path: folder.into(), source })?;
    struct Collect<'a>(Vec<NamedTensor<'a>>);
    impl<B: Backend> OnParam<B> for Collect<'_> {
        fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            let shape = tensor.dims().to_vec();
            let values = move || tensor.to_data().iter::<f32>().collect();
            self.0.push(NamedTensor { name: name.into(), shape, values: Box::new(values) });
        }
    }
    let mut tensors = Collect(Vec::new());
    for_each_param(model, &mut tensors);
    write_shards(folder, tensors.0, dtype)?;
    write_config(&folder.join("config.json"), base_config, dtype)
}

/// Hugging Face's usual limit for one file.
const SHARD_BYTES: usize = 5_000_000_000;

fn write_shards(
    folder: &Path,
    tensors: Vec<NamedTensor<'_>>,
    dtype: FloatDtype,
) -> Result<(), LoadError> {
    let bytes = |t: &NamedTensor<'_>| t.shape.iter().product::<usize>() * dtype.bytes();
    let total: usize = tensors.iter().map(bytes).sum();
    if total <= SHARD_BYTES {
        return Ok(write_tensors(&folder.join(WEIGHTS_FILE), &tensors, dtype)?);
    }
    let mut shards: Vec<(usize, Vec<NamedTensor<'_>>)> = vec![(0, Vec::new())];
    for tensor in tensors {
        let size = bytes(&tensor);
        match shards.last_mut() {
            Some((filled, shard)) if shard.is_empty() || *filled + size <= SHARD_BYTES => {
                *filled += size;
                shard.push(tensor);
            }
            _ => shards.push((size, vec![tensor])),
        }
    }
    let mut weight_map = serde_json::Map::new();
    let count = shards.len();
    for (i, (_, shard)) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        write_tensors(&folder.join(&name), shard, dtype)?;
        weight_map.extend(shard.iter().map(|t| (t.name.clone(), Value::from(name.clone()))));
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    write_json(&folder.join(INDEX_FILE), &index)
}

fn write_config(path: &Path, base: &str, dtype: FloatDtype) -> Result<(), LoadError> {
    let unreadable =
        |e: serde_json::Error| ConfigError::Unreadable { path: path.into(), reason: e.to_string() };
    let mut config: Value = serde_json::from_str(base).map_err(unreadable)?;
    if let Value::Object(keys) = &mut config {
        // transformers 5 writes `dtype`, older versions `torch_dtype`; the base's spelling is kept.
        let key = if keys.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        keys.insert(key.into(), dtype.torch_name().into());
    }
    write_json(path, &config)
}

fn write_json(path: &Path, value: &Value) -> Result<(), LoadError> {
    let text = format!("{value:#}\n");
    write_atomically(path, |out| out.write_all(text.as_bytes()))
        .map_err(|source| LoadError::Io { path: path.into(), source })
}
