//! Llama 1 to 3, SmolLM, TinyLlama.

use super::common;
use crate::ModelConfig;
use crate::hf_config::Reader;

pub(super) fn read(reader: &mut Reader<'_>) -> ModelConfig {
    let attention_bias = reader.optional("attention_bias").unwrap_or(false);
    ModelConfig {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: reader.optional("mlp_bias").unwrap_or(false),
        ..common(reader)
    }
}
