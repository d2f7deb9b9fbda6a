//! Qwen2 and Qwen2.5: biases on q, k and v, none on o; optionally a sliding window in the upper blocks.

use super::common;
use crate::ModelConfig;
use crate::hf_config::Reader;

pub(super) fn read(reader: &mut Reader<'_>) -> ModelConfig {
    let config = common(reader);
    ModelConfig {
        qkv_bias: true,
        sliding_windows: windows(reader, config.num_hidden_layers),
        ..config
    }
}

fn windows(reader: &mut Reader<'_>, layers: usize) -> Vec<Option<usize>> {
    if !reader.optional("use_sliding_window").unwrap_or(false) {
        return vec![None; layers];
    }
    let window = Some(reader.required("sliding_window"));
    match reader.optional::<Vec<String>>("layer_types") {
        Some(types) if types.len() == layers => {
            types.iter().map(|kind| window.filter(|_| kind == "sliding_attention")).collect()
        }
        Some(types) => {
            reader.faults.push(format!(
                "`layer_types` has {} entries, expected one a block ({layers})",
                types.len()
            ));
            vec![None; layers]
        }
        None => {
            let first = reader.optional("max_window_layers").unwrap_or(28);
            (0..layers).map(|layer| window.filter(|_| layer >= first)).collect()
        }
    }
}
