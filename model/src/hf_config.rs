//! Reading `config.json`, in the spelling of transformers 4 and of transformers 5.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{RopeConfig, RopeKind};

/// A token, or a list of tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a token id or a list of token ids")]
pub(crate) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Collects faults while a family reads its keys, so that all are reported at once. Keys that no family asks for are
/// ignored.
pub(crate) struct Reader<'a> {
    pub(crate) keys: &'a Map<String, Value>,
    pub(crate) faults: Vec<String>,
}

impl Reader<'_> {
    /// The value of a key; `None` if it is missing, null, or invalid, which is noted.
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let value = self.keys.get(key).filter(|value| !value.is_null())?;
        match T::deserialize(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.faults.push(format!("`{key}`: {error}"));
                None
            }
        }
    }

    /// A size without a default.
    pub(crate) fn required(&mut self, key: &str) -> usize {
        if self.keys.get(key).is_none_or(Value::is_null) {
            self.faults.push(format!("`{key}` is missing"));
        }
        self.optional(key).unwrap_or(1)
    }

    /// Rotary positions, in the old spelling (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`).
    pub(crate) fn rope(&mut self, max_positions: usize, default_theta: f64) -> RopeConfig {
        let default_theta = self.optional("rope_theta").unwrap_or(default_theta);
        let (name, parameters) = match self.optional::<Map<String, Value>>("rope_parameters") {
            Some(parameters) => ("rope_parameters", parameters),
            None => ("rope_scaling", self.optional("rope_scaling").unwrap_or_default()),
        };
        let mut reader = RopeReader { name, parameters: &parameters, faults: &mut self.faults };
        let theta = reader.optional("rope_theta").unwrap_or(default_theta);
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
