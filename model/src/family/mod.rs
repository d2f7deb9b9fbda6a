//! Model families: how each one's `config.json` becomes a [`ModelConfig`]. A family is data; no block depends on it.
//!
//! A new family is a file with its `read` function, and its entry in `FAMILIES`.

mod llama;
mod qwen2;

use std::path::{Path, PathBuf};

use emberlm_quant::bnb::BnbConfig;
use serde_json::{Map, Value};

use crate::hf_config::{OneOrMany, Reader};
use crate::{Activation, ModelConfig};

type ReadFamily = fn(&mut Reader<'_>) -> ModelConfig;

/// Each supported `model_type`, and how to read it.
const FAMILIES: &[(&str, ReadFamily)] = &[("llama", llama::read), ("qwen2", qwen2::read)];

/// The supported `model_type`s.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Why a `config.json` can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system or the parser.
        reason: String,
    },
    /// All invalid or unsupported values.
    #[error("{path}:\n  {}", .faults.join("\n  "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Each key with its value and the expected values.
        faults: Vec<String>,
    },
}

impl ModelConfig {
    /// Reads `config.json`, as transformers 4 or 5 writes it.
    ///
    /// # Errors
    /// [`ConfigError`], which lists all faults.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Unreadable { path: path.into(), reason: e.to_string() })?;
        Self::parse(&text, path)
    }

    /// Parses the text of a `config.json`; `path` is used in messages.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let keys: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| ConfigError::Unreadable { path: path.into(), reason: e.to_string() })?;
        let config = model_config(&keys)
            .map_err(|faults| ConfigError::Invalid { path: path.into(), faults })?;
        let faults = config.faults();
        if faults.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid { path: path.into(), faults })
        }
    }
}

fn model_config(keys: &Map<String, Value>) -> Result<ModelConfig, Vec<String>> {
    let mut reader = Reader { keys, faults: Vec::new() };
    let known = || names().collect::<Vec<_>>().join(", ");
    let Some(model_type) = reader.optional::<String>("model_type") else {
        let missing = || vec![format!("`model_type` is missing, expected one of: {}", known())];
        return Err(if reader.faults.is_empty() { missing() } else { reader.faults });
    };
    let Some((_, read)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        return Err(vec![format!("`model_type` is `{model_type}`, expected one of: {}", known())]);
    };
    let config = ModelConfig { model_type, ..read(&mut reader) };
    if reader.faults.is_empty() { Ok(config) } else { Err(reader.faults) }
}

/// What the families have in common; each one overrides what differs.
fn common(reader: &mut Reader<'_>) -> ModelConfig {
    let num_attention_heads = reader.required("num_attention_heads");
    let hidden_size = reader.required("hidden_size");
    let num_hidden_layers = reader.required("num_hidden_layers");
    let max_position_embeddings = reader.optional("max_position_embeddings").unwrap_or(2048);
    let head_dim = reader.optional("head_dim").unwrap_or_else(|| {
        if num_attention_heads > 0 && !hidden_size.is_multiple_of(num_attention_heads) {
            reader.faults.push(format!(
                "`hidden_size` is {hidden_size}, expected a multiple of num_attention_heads ({num_attention_heads}) if `head_dim` is missing"
            ));
        }
        hidden_size / num_attention_heads.max(1)
    });
    let act = reader.optional::<String>("hidden_act").unwrap_or_else(|| "silu".into());
    let activation = Activation::from_name(&act).unwrap_or_else(|| {
        reader.faults.push(format!("`hidden_act` is `{act}`, expected {}", Activation::NAMES));
        Activation::Silu
    });
    let stored = reader.optional::<Value>("quantization_config");
    let quantization = stored.and_then(|value| match BnbConfig::parse(&value) {
        Ok(stored) => Some(stored),
        Err(faults) => {
            reader.faults.extend(faults);
            None
        }
    });
    ModelConfig {
        model_type: String::new(),
        vocab_size: reader.required("vocab_size"),
        hidden_size,
        intermediate_size: reader.required("intermediate_size"),
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: reader.optional("num_key_value_heads").unwrap_or(num_attention_heads),
        head_dim,
        rms_norm_eps: reader.optional("rms_norm_eps").unwrap_or(1e-6),
        rope: reader.rope(max_position_embeddings, 10_000.0),
        activation,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        tie_word_embeddings: reader.optional("tie_word_embeddings").unwrap_or(false),
        sliding_windows: vec![None; num_hidden_layers],
        max_position_embeddings,
        initializer_range: reader.optional("initializer_range").unwrap_or(0.02),
        eos_token_ids: reader.optional("eos_token_id").map(OneOrMany::into_vec).unwrap_or_default(),
        attention_soft_cap: None,
        logit_soft_cap: None,
        quantization,
    }
}
