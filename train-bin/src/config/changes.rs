//! What differs between the configuration that a run was begun with and the one it is to go on with.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use super::RunConfig;
use super::error::WriteError;

/// A key whose value is another.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The key, in full.
    pub key: String,
    /// What it was; `None`: not given.
    pub was: Option<Value>,
    /// What it is; `None`: not given.
    pub now: Option<Value>,
    /// What that means for a run which goes on.
    pub effect: Effect,
}

/// What a change means for a run which goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Every step computes what it would have computed (on other hardware or in another order of operations: to rounding).
    None,
    /// The steps that are left compute something else.
    OnSteps,
    /// What is in the checkpoint doesn't belong to it any more.
    OnWeights,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<Value>| match value {
            Some(value) => value.to_string(),
            None => "not given".into(),
        };
        write!(f, "{}: {} → {}", self.key, shown(&self.was), shown(&self.now))
    }
}

/// Keys that change nothing of what a step computes. What the rows are is judged by the rows, and the base by its files.
const WITHOUT_EFFECT: &[&str] = &[
    "model.path",
    "model.config",
    "model.tokenizer",
    "model.backend",
    "lora.init_from",
    "train.output_dir",
    "train.overwrite",
    "train.recompute",
    "train.eval_every",
    "train.save_every",
    "train.keep_last",
    "train.log_every",
    "train.threads",
    "train.on_nonfinite",
    "train.max_skipped",
    "train.on_spike",
    "train.spike_threshold",
    "train.save_best",
    "train.result",
    "train.patience",
    "train.min_improvement",
    "train.debug",
];

/// Keys of `[data]` that say how the rows are put together, not what they are.
const OF_LAYOUT: &[&str] = &["data.packing", "data.group_by_length", "data.shuffle"];

/// Keys that say what the trained weights are.
const OF_WEIGHTS: &[&str] = &[
    "lora",
    "lora.r",
    "lora.alpha",
    "lora.target_modules",
    "lora.use_rslora",
    "model.add_tokens",
    "train.trainable",
];

fn effect(key: &str) -> Effect {
    let is_data = key.starts_with("data.") && !OF_LAYOUT.contains(&key);
    if WITHOUT_EFFECT.contains(&key) || is_data {
        Effect::None
    } else if OF_WEIGHTS.contains(&key) {
        Effect::OnWeights
    } else {
        Effect::OnSteps
    }
}

/// Every key whose value is another, by name.
///
/// # Errors
/// [`WriteError`] when one of the configurations can't be told as TOML.
pub fn changes(was: &RunConfig, now: &RunConfig) -> Result<Vec<Change>, WriteError> {
    let (was, now) = (flat(was)?, flat(now)?);
    let keys: std::collections::BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let differs = |key: &&&String| was.get(**key) != now.get(**key);
    let change = |key: &String| Change {
        key: key.clone(),
        was: was.get(key).cloned(),
        now: now.get(key).cloned(),
        effect: effect(key),
    };
    Ok(keys.iter().filter(differs).map(|key| change(key)).collect())
}

/// The settings by their full keys; whether there is a section `[lora]` counts as a setting of its own.
fn flat(config: &RunConfig) -> Result<BTreeMap<String, Value>, WriteError> {
    let table: Table = Table::try_from(config)?;
    let mut all = BTreeMap::new();
    for (section, value) in table {
        if section == "lora" {
            all.insert("lora".to_owned(), Value::Boolean(true));
        }
        let Value::Table(keys) = value else { continue };
        for (key, value) in keys {
            all.insert(format!("{section}.{key}"), value);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::super::load_str;
    use super::*;

    #[test]
    fn changes_are_told_by_key_with_what_they_do() {
        let read = |text: &str| load_str(text, "a", &[]).unwrap();
        let was = read("[lora]\nr = 8\n[train]\nlearning_rate = 1e-3\nlog_every = 5");
        assert_eq!(changes(&was, &was).unwrap(), []);
        let now = read(
            "[lora]\nr = 4\n[data]\nshuffle = false\nmax_length = 99\n[train]\nlearning_rate = 2e-3",
        );
        let changes = changes(&was, &now).unwrap();
        let told: Vec<(String, Effect)> =
            changes.iter().map(|change| (change.to_string(), change.effect)).collect();
        let expected = [
            ("data.max_length: 2048 → 99", Effect::None),
            ("data.shuffle: true → false", Effect::OnSteps),
            ("lora.alpha: 16.0 → 8.0", Effect::OnWeights),
            ("lora.r: 8 → 4", Effect::OnWeights),
            ("train.learning_rate: 0.001 → 0.002", Effect::OnSteps),
            ("train.log_every: 5 → 1", Effect::None),
        ];
        assert_eq!(told, expected.map(|(text, effect)| (text.to_owned(), effect)));
        let whole = super::changes(&was, &read("")).unwrap();
        assert!(whole.iter().any(|c| c.key == "lora" && c.effect == Effect::OnWeights));
    }

    #[test]
    fn the_keys_that_are_listed_exist() {
        for key in WITHOUT_EFFECT.iter().chain(OF_LAYOUT).chain(&OF_WEIGHTS[1..]) {
            assert!(KEYS.contains(key), "{key}");
        }
    }
}
