//! Saving a model as a Hugging Face folder.

use std::fs;
use std::io::Write;
use std::path::Path;

use burn::module::Param;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::walk::{ParamVisitor, for_each_param};
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::bnb::{self, BnbConfig};
use emberlm_quant::tensor_file::{FloatDtype, NamedTensor, StoredTensor, write_stored};
use serde_json::{Value, json};

use crate::weights::{INDEX_FILE, LoadError, WEIGHTS_FILE};
use crate::{CausalLm, ConfigError};

/// Writes a model without adapters as a Hugging Face folder: safetensors in shards of at most 5 GB, and the base's
/// `config.json` with the new dtype. Quantized layers are written in bitsandbytes' layout, everything else in `dtype`.
/// The caller writes the tokenizer's files.
///
/// # Errors
/// [`LoadError::Io`], [`LoadError::Tensors`], [`LoadError::Config`].
pub fn save<B: Backend>(
    folder: &Path,
    model: &CausalLm<B>,
    base_config: &str,
    dtype: FloatDtype,
) -> Result<(), LoadError> {
    fs::create_dir_all(folder).map_err(|cause| LoadError::Io { path: folder.into(), cause })?;
    struct Collect<'a>(Vec<StoredTensor<'a>>, FloatDtype);
    impl<B: Backend> ParamVisitor<B> for Collect<'_> {
        fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            let shape = tensor.dims().to_vec();
            let values = Box::new(move || tensor.to_data().iter::<f32>().collect());
            let tensor = NamedTensor { name: name.into(), shape, values };
            self.0.push(StoredTensor::float(tensor, self.1));
        }
    }
    let mut tensors = Collect(Vec::new(), dtype);
    for_each_param(model, &mut tensors);
    let mut tensors = tensors.0;
    for (name, weight) in model.quantized() {
        tensors.extend(bnb::tensors_to_write(&format!("{name}.weight"), &weight.to_host(), dtype));
    }
    write_shards(folder, tensors)?;
    write_config(&folder.join("config.json"), base_config, dtype, quantization_of(model))
}

/// Hugging Face's usual limit for one file.
const SHARD_BYTES: usize = 5_000_000_000;

/// The `quantization_config` of a model; `None` if it is dense.
fn quantization_of<B: Backend>(model: &CausalLm<B>) -> Option<BnbConfig> {
    let linears = model.linears();
    let layers = linears.iter().map(|(name, linear)| (name.as_str(), &linear.weight));
    let mut config = BnbConfig::of_layers(layers)?;
    // transformers skips the head by default only if there is no list.
    if model.lm_head.is_none() {
        config.skip_modules.push("lm_head".into());
    }
    Some(config)
}

fn write_shards(folder: &Path, tensors: Vec<StoredTensor<'_>>) -> Result<(), LoadError> {
    let total: usize = tensors.iter().map(StoredTensor::size).sum();
    if total <= SHARD_BYTES {
        return Ok(write_stored(&folder.join(WEIGHTS_FILE), &tensors)?);
    }
    let mut shards: Vec<(usize, Vec<StoredTensor<'_>>)> = vec![(0, Vec::new())];
    for tensor in tensors {
        let size = tensor.size();
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
        write_stored(&folder.join(&name), shard)?;
        weight_map.extend(shard.iter().map(|t| (t.name.clone(), Value::from(name.clone()))));
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    write_json(&folder.join(INDEX_FILE), &index)
}

fn write_config(
    path: &Path,
    base: &str,
    dtype: FloatDtype,
    quantization: Option<BnbConfig>,
) -> Result<(), LoadError> {
    let unreadable =
        |e: serde_json::Error| ConfigError::Unreadable { path: path.into(), reason: e.to_string() };
    let mut config: Value = serde_json::from_str(base).map_err(unreadable)?;
    if let Value::Object(keys) = &mut config {
        // transformers 5 writes `dtype`, older versions `torch_dtype`; the base's spelling is kept.
        let key = if keys.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        keys.insert(key.into(), dtype.torch_name().into());
        // The base's entry, if any, describes the base's files.
        keys.shift_remove("quantization_config");
        if let Some(quantization) = quantization {
            keys.insert("quantization_config".into(), quantization.to_json(dtype));
        }
    }
    write_json(path, &config)
}

fn write_json(path: &Path, value: &Value) -> Result<(), LoadError> {
    let text = format!("{value:#}\n");
    write_atomically(path, |out| out.write_all(text.as_bytes()))
        .map_err(|cause| LoadError::Io { path: path.into(), cause })
}
