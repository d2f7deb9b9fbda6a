//! The configuration as it is read: every key may be absent or hold something of the wrong type,
//! unknown keys are kept. So one pass of serde finds all faults, where `deny_unknown_fields` would
//! stop at the first.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Field<T> {
    /// The key is not there.
    #[default]
    Absent,
    /// A value of the right type.
    Given(T),
    /// A value of another type.
    Wrong(toml::Value),
}

impl<T> Field<T> {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<T> From<Option<T>> for Field<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Given)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        Ok(T::deserialize(value.clone()).map_or_else(|_| Self::Wrong(value), Self::Given))
    }
}

impl<T: Serialize> Serialize for Field<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_none(),
            Self::Given(value) => serializer.serialize_some(value),
            Self::Wrong(value) => serializer.serialize_some(value),
        }
    }
}

/// How messages call the type of a setting.
pub(super) trait Expected {
    /// "expected …".
    const EXPECTED: &'static str;
}

impl Expected for bool {
    const EXPECTED: &'static str = "true or false";
}

impl Expected for i64 {
    const EXPECTED: &'static str = "a whole number";
}

impl Expected for f64 {
    const EXPECTED: &'static str = "a number";
}

impl Expected for Vec<String> {
    const EXPECTED: &'static str = "a list of names (strings)";
}

impl Expected for [f64; 2] {
    const EXPECTED: &'static str = "a list of two numbers";
}

impl Expected for String {
    const EXPECTED: &'static str = "a string";
}

impl Expected for PathBuf {
    const EXPECTED: &'static str = "a path (a string)";
}

/// One path or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Paths {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

impl Expected for Paths {
    const EXPECTED: &'static str = "a path or a list of paths (strings)";
}

/// An element of `[[data.source]]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawSource {
    pub(super) path: Field<Paths>,
    pub(super) weight: Field<f64>,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

impl Expected for Vec<RawSource> {
    const EXPECTED: &'static str = "a list of sections [[data.source]]";
}

/// A name, a pattern or several names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum RawTargets {
    Text(String),
    Names(Vec<String>),
}

impl Expected for RawTargets {
    const EXPECTED: &'static str =
        "\"all-linear\", a regular expression (a string) or a list of names";
}

/// A number, or `false` for off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum OrOff<T> {
    Off(Off),
    On(T),
}

impl Expected for OrOff<i64> {
    const EXPECTED: &'static str = "a whole number or false (off)";
}

impl Expected for OrOff<f64> {
    const EXPECTED: &'static str = "a number or false (off)";
}

/// `false`, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Off;

impl<'de> Deserialize<'de> for Off {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match bool::deserialize(deserializer)? {
            false => Ok(Self),
            true => Err(serde::de::Error::custom("expected false")),
        }
    }
}

impl Serialize for Off {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(false)
    }
}

impl Expected for RawModel {
    const EXPECTED: &'static str = "a section of keys";
}

impl Expected for RawLora {
    const EXPECTED: &'static str =
        "a section of keys (to train all weights instead, leave [lora] out)";
}

impl Expected for RawData {
    const EXPECTED: &'static str = "a section of keys";
}

impl Expected for RawTrain {
    const EXPECTED: &'static str = "a section of keys";
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    pub(super) model: Field<RawModel>,
    pub(super) lora: Field<RawLora>,
    pub(super) data: Field<RawData>,
    pub(super) train: Field<RawTrain>,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawModel {
    pub(super) path: Field<PathBuf>,
    pub(super) config: Field<PathBuf>,
    pub(super) tokenizer: Field<PathBuf>,
    pub(super) backend: Field<String>,
    pub(super) dtype: Field<String>,
    pub(super) quant: Field<String>,
    pub(super) double_quant: Field<bool>,
    pub(super) quant_skip: Field<Vec<String>>,
    pub(super) add_tokens: Field<Vec<String>>,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

/// `[lora]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawLora {
    pub(super) init_from: Field<PathBuf>,
    pub(super) r: Field<i64>,
    pub(super) alpha: Field<f64>,
    pub(super) target_modules: Field<RawTargets>,
    pub(super) use_rslora: Field<bool>,
    pub(super) dropout: Field<f64>,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

/// `[data]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawData {
    pub(super) train: Field<Paths>,
    pub(super) source: Field<Vec<RawSource>>,
    pub(super) eval: Field<Paths>,
    pub(super) format: Field<String>,
    pub(super) template: Field<String>,
    pub(super) max_length: Field<i64>,
    pub(super) train_on: Field<String>,
    pub(super) packing: Field<bool>,
    pub(super) group_by_length: Field<bool>,
    pub(super) cache_dir: Field<PathBuf>,
    pub(super) shuffle: Field<bool>,
    pub(super) date: Field<String>,
    pub(super) prompts: Field<Vec<String>>,
    #[serde(flatten)]
    pub(super) reading: RawReading,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

/// The keys of `[data]` that say how rows are read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawReading {
    pub(super) prompt_template: Field<String>,
    pub(super) completion_template: Field<String>,
    pub(super) system_template: Field<String>,
    pub(super) text_template: Field<String>,
    pub(super) text_by: Field<String>,
    pub(super) on_error: Field<String>,
    pub(super) max_errors: Field<OrOff<i64>>,
    pub(super) rejects: Field<PathBuf>,
    pub(super) fields: Field<BTreeMap<String, String>>,
}

impl Expected for BTreeMap<String, String> {
    const EXPECTED: &'static str = "a section of names (strings), as in prompt = \"question\"";
}

/// `[train]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawTrain {
    pub(super) output_dir: Field<PathBuf>,
    pub(super) overwrite: Field<bool>,
    pub(super) epochs: Field<f64>,
    pub(super) steps: Field<i64>,
    pub(super) micro_batch_size: Field<i64>,
    pub(super) grad_accumulation: Field<i64>,
    pub(super) optimizer: Field<String>,
    pub(super) learning_rate: Field<f64>,
    pub(super) min_learning_rate: Field<f64>,
    pub(super) schedule: Field<String>,
    pub(super) warmup_steps: Field<i64>,
    pub(super) warmup_ratio: Field<f64>,
    pub(super) weight_decay: Field<f64>,
    pub(super) betas: Field<[f64; 2]>,
    pub(super) eps: Field<f64>,
    pub(super) max_grad_norm: Field<OrOff<f64>>,
    pub(super) recompute: Field<String>,
    pub(super) neftune_alpha: Field<f64>,
    pub(super) seed: Field<i64>,
    pub(super) eval_every: Field<OrOff<i64>>,
    pub(super) save_every: Field<OrOff<i64>>,
    pub(super) keep_last: Field<OrOff<i64>>,
    pub(super) log_every: Field<i64>,
    pub(super) tensorboard: Field<bool>,
    pub(super) threads: Field<i64>,
    pub(super) trainable: Field<Vec<String>>,
    #[serde(flatten)]
    pub(super) watch: RawWatch,
    #[serde(flatten)]
    pub(super) tuning: RawTuning,
    #[serde(flatten)]
    pub(super) unknown: toml::Table,
}

/// The keys of `[train]` that say how a run is watched over.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawWatch {
    pub(super) on_nonfinite: Field<String>,
    pub(super) max_skipped: Field<i64>,
    pub(super) on_spike: Field<String>,
    pub(super) spike_threshold: Field<f64>,
    pub(super) save_best: Field<bool>,
    pub(super) result: Field<String>,
    pub(super) patience: Field<OrOff<i64>>,
    pub(super) min_improvement: Field<f64>,
    pub(super) debug: Field<bool>,
}

/// The keys of `[train]` that are constants of optimizers, schedules and clipping.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RawTuning {
    pub(super) momentum: Field<f64>,
    pub(super) nesterov: Field<bool>,
    pub(super) clip_threshold: Field<f64>,
    pub(super) muon_scale: Field<String>,
    pub(super) lora_plus_ratio: Field<f64>,
    pub(super) calibrate_ab: Field<OrOff<i64>>,
    pub(super) embedding_learning_rate: Field<f64>,
    pub(super) decay_norms_and_biases: Field<bool>,
    pub(super) decay_steps: Field<i64>,
    pub(super) decay_ratio: Field<f64>,
    pub(super) decay_shape: Field<String>,
    pub(super) power: Field<f64>,
    pub(super) clip: Field<String>,
    pub(super) clip_factor: Field<f64>,
    pub(super) clip_decay: Field<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::{KEYS, SECTIONS};

    #[test]
    fn the_list_of_keys_is_the_list_of_fields() {
        let raw = RawConfig {
            model: Field::Given(RawModel::default()),
            lora: Field::Given(RawLora::default()),
            data: Field::Given(RawData::default()),
            train: Field::Given(RawTrain::default()),
            unknown: toml::Table::new(),
        };
        let json = serde_json::to_value(&raw).unwrap();
        let sections = json.as_object().unwrap();
        let mut fields: Vec<String> = sections
            .iter()
            .flat_map(|(section, keys)| {
                keys.as_object().unwrap().keys().map(move |key| format!("{section}.{key}"))
            })
            .collect();
        let mut keys = KEYS.to_vec();
        keys.sort_unstable();
        fields.sort_unstable();
        assert_eq!(fields, keys);
        assert_eq!(sections.len(), SECTIONS.len());
        assert!(SECTIONS.iter().all(|section| sections.contains_key(*section)));
    }
}
