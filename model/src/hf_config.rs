//! `config.json` as Hugging Face writes it, in the spelling of transformers 4 and of transformers 5.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{RopeConfig, RopeKind};

/// The keys that the supported families use; what isn't read has no say in the computation.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HfConfig {
    pub(crate) model_type: Option<String>,
    pub(crate) vocab_size: Option<usize>,
    pub(crate) hidden_size: Option<usize>,
    pub(crate) intermediate_size: Option<usize>,
    pub(crate) num_hidden_layers: Option<usize>,
    pub(crate) num_attention_heads: Option<usize>,
    pub(crate) num_key_value_heads: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) hidden_act: Option<String>,
    pub(crate) max_position_embeddings: Option<usize>,
    pub(crate) rms_norm_eps: Option<f64>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) rope_scaling: Option<Map<String, Value>>,
    pub(crate) rope_parameters: Option<Map<String, Value>>,
    pub(crate) tie_word_embeddings: Option<bool>,
    pub(crate) attention_bias: Option<bool>,
    pub(crate) mlp_bias: Option<bool>,
    pub(crate) eos_token_id: Option<OneOrMany>,
    pub(crate) use_sliding_window: Option<bool>,
    pub(crate) sliding_window: Option<usize>,
    pub(crate) max_window_layers: Option<usize>,
    pub(crate) layer_types: Option<Vec<String>>,
    pub(crate) initializer_range: Option<f64>,
    pub(crate) quantization_config: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(crate) fn to_vec(&self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![*id],
            Self::Many(ids) => ids.clone(),
        }
    }
}

/// Collects faults while a family reads its keys, so that all are reported at once.
pub(crate) struct Reader<'a> {
    pub(crate) hf: &'a HfConfig,
    pub(crate) faults: Vec<String>,
}

impl Reader<'_> {
    /// A size that must be there.
    pub(crate) fn required(&mut self, key: &str, value: Option<usize>) -> usize {
        value.unwrap_or_else(|| {
            self.faults.push(format!("`{key}` is missing"));
            1
        })
    }

    /// Positions, in the old spelling (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`).
    pub(crate) fn rope(&mut self, max_positions: usize, default_theta: f64) -> RopeConfig {
        let (name, parameters) = match (&self.hf.rope_parameters, &self.hf.rope_scaling) {
            (Some(parameters), _) => ("rope_parameters", parameters.clone()),
            (None, Some(parameters)) => ("rope_scaling", parameters.clone()),
            (None, None) => ("rope_scaling", Map::new()),
        };
        let mut reader = RopeReader { name, parameters: &parameters, faults: &mut self.faults };
        let theta = reader.optional("rope_theta").or(self.hf.rope_theta).unwrap_or(default_theta);
        if reader.optional("partial_rotary_factor").is_some_and(|share| share != 1.0) {
            reader.fault("partial_rotary_factor", "1.0 for this family");
        }
        RopeConfig { theta, kind: reader.kind(max_positions) }
    }
}

struct RopeReader<'a> {
    name: &'static str,
    parameters: &'a Map<String, Value>,
    faults: &'a mut Vec<String>,
}

impl RopeReader<'_> {
    fn kind(&mut self, max_positions: usize) -> RopeKind {
        let kind = self.parameters.get("rope_type").or_else(|| self.parameters.get("type"));
        let kind = kind.and_then(Value::as_str).unwrap_or("default").to_string();
        match kind.as_str() {
            "default" => RopeKind::Default,
            "linear" => RopeKind::Linear { factor: self.factor() },
            "dynamic" => RopeKind::Dynamic {
                factor: self.factor(),
                original_max: self.original_max(max_positions),
            },
            "yarn" => self.yarn(max_positions),
            "longrope" | "su" => self.longrope(max_positions),
            "llama3" => RopeKind::Llama3 {
                factor: self.factor(),
                low_freq_factor: self.number("low_freq_factor"),
                high_freq_factor: self.number("high_freq_factor"),
                original_max: self.original_max(max_positions),
            },
            _ => {
                self.faults.push(format!(
                    "`{}.rope_type` is `{kind}`, expected default, linear, dynamic, yarn, longrope or llama3",
                    self.name
                ));
                RopeKind::Default
            }
        }
    }

    fn yarn(&mut self, max_positions: usize) -> RopeKind {
        let factor = self.factor();
        // The temperature of YaRN's attention, folded into cosines and sines.
        let temperature =
            |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let attention_factor = self.optional("attention_factor").unwrap_or_else(|| {
            match (self.optional("mscale"), self.optional("mscale_all_dim")) {
                (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => {
                    temperature(scale) / temperature(all)
                }
                _ => temperature(1.0),
            }
        });
        RopeKind::Yarn {
            factor,
            original_max: self.original_max(max_positions),
            beta_fast: self.optional("beta_fast").unwrap_or(32.0),
            beta_slow: self.optional("beta_slow").unwrap_or(1.0),
            attention_factor,
            truncate: self.parameters.get("truncate").and_then(Value::as_bool).unwrap_or(true),
        }
    }

    fn longrope(&mut self, max_positions: usize) -> RopeKind {
        let original_max = self.original_max(max_positions);
        let factor = self
            .optional("factor")
            .unwrap_or_else(|| max_positions as f64 / original_max.max(1) as f64);
        let attention_factor = self.optional("attention_factor").unwrap_or_else(|| {
            if factor <= 1.0 {
                1.0
            } else {
                (1.0 + factor.ln() / (original_max as f64).ln()).sqrt()
            }
        });
        RopeKind::LongRope {
            short_factor: self.numbers("short_factor"),
            long_factor: self.numbers("long_factor"),
            original_max,
            attention_factor,
        }
    }

    fn factor(&mut self) -> f64 {
        self.number("factor")
    }

    fn original_max(&mut self, max_positions: usize) -> usize {
        match self.optional("original_max_position_embeddings") {
            Some(length) if length >= 1.0 => length as usize,
            Some(_) => {
                self.fault("original_max_position_embeddings", "at least 1");
                1
            }
            None => max_positions,
        }
    }

    fn optional(&mut self, key: &str) -> Option<f64> {
        let value = self.parameters.get(key).filter(|value| !value.is_null())?;
        let number = value.as_f64().filter(|number| number.is_finite());
        if number.is_none() {
            self.fault(key, "a number");
        }
        number
    }

    fn number(&mut self, key: &str) -> f64 {
        match self.parameters.get(key) {
            Some(_) => self.optional(key).unwrap_or(1.0),
            None => {
                self.fault(key, "a number");
                1.0
            }
        }
    }

    fn numbers(&mut self, key: &str) -> Vec<f64> {
        let list = self.parameters.get(key).and_then(Value::as_array);
        let numbers: Option<Vec<f64>> =
            list.and_then(|items| items.iter().map(Value::as_f64).collect());
        numbers.unwrap_or_else(|| {
            self.fault(key, "a list of numbers");
            Vec::new()
        })
    }

    fn fault(&mut self, key: &str, expected: &str) {
        let found = match self.parameters.get(key) {
            Some(value) => format!("is {value}"),
            None => "is missing".into(),
        };
        self.faults.push(format!("`{}.{key}` {found}, expected {expected}", self.name));
    }
}
