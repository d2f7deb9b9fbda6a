//! Model families: how each one's `config.json` is read. A family is data; the blocks know none of them.

mod llama;
mod qwen2;

use emberlm_quant::bnb::BnbConfig;

use crate::hf_config::{HfConfig, Reader};
use crate::{Activation, ModelConfig};

type ReadFamily = fn(&mut Reader<'_>) -> ModelConfig;

/// `model_type` and how to read it.
const FAMILIES: &[(&str, ReadFamily)] = &[("llama", llama::read), ("qwen2", qwen2::read)];

/// The `model_type`s that emberlm knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

pub(crate) fn model_config(hf: &HfConfig) -> Result<ModelConfig, Vec<String>> {
    let known = || names().collect::<Vec<_>>().join(", ");
    let Some(model_type) = &hf.model_type else {
        return Err(vec![format!("`model_type` is missing, expected one of: {}", known())]);
    };
    let Some((_, read)) = FAMILIES.iter().find(|(name, _)| name == model_type) else {
        return Err(vec![format!("`model_type` is `{model_type}`, expected one of: {}", known())]);
    };
    let mut reader = Reader { hf, faults: Vec::new() };
    let config = read(&mut reader);
    if reader.faults.is_empty() { Ok(config) } else { Err(reader.faults) }
}

/// What the families have in common; each then sets its own.
fn common(reader: &mut Reader<'_>) -> ModelConfig {
    let hf = reader.hf;
    let num_attention_heads = reader.required("num_attention_heads", hf.num_attention_heads);
    let hidden_size = reader.required("hidden_size", hf.hidden_size);
    let num_hidden_layers = reader.required("num_hidden_layers", hf.num_hidden_layers);
    let max_position_embeddings = hf.max_position_embeddings.unwrap_or(2048);
    let head_dim = hf.head_dim.unwrap_or_else(|| {
        if num_attention_heads > 0 && !hidden_size.is_multiple_of(num_attention_heads) {
            reader.faults.push(format!(
                "`hidden_size` is {hidden_size}, expected a multiple of num_attention_heads ({num_attention_heads}) where there is no `head_dim`"
            ));
        }
        hidden_size / num_attention_heads.max(1)
    });
    let act = hf.hidden_act.as_deref().unwrap_or("silu");
    let activation = Activation::from_name(act).unwrap_or_else(|| {
        reader.faults.push(format!("`hidden_act` is `{act}`, expected {}", Activation::NAMES));
        Activation::Silu
    });
    let stored = hf.quantization_config.as_ref().filter(|value| !value.is_null());
    let quantization = stored.and_then(|value| match BnbConfig::parse(value) {
        Ok(stored) => Some(stored),
        Err(faults) => {
            reader.faults.extend(faults);
            None
        }
    });
    ModelConfig {
        model_type: hf.model_type.clone().unwrap_or_default(),
        vocab_size: reader.required("vocab_size", hf.vocab_size),
        hidden_size,
        intermediate_size: reader.required("intermediate_size", hf.intermediate_size),
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: hf.num_key_value_heads.unwrap_or(num_attention_heads),
        head_dim,
        rms_norm_eps: hf.rms_norm_eps.unwrap_or(1e-6),
        rope: reader.rope(max_position_embeddings, 10_000.0),
        activation,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        tie_word_embeddings: hf.tie_word_embeddings.unwrap_or(false),
        sliding_windows: vec![None; num_hidden_layers],
        max_position_embeddings,
        initializer_range: hf.initializer_range.unwrap_or(0.02),
        eos_token_ids: hf.eos_token_id.as_ref().map(|ids| ids.to_vec()).unwrap_or_default(),
        attention_soft_cap: None,
        logit_soft_cap: None,
        quantization,
    }
}
