//! What differs between the configuration that a run was started with and the one it is resumed with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

use super::{Effect, RunConfig, WriteError, declared};

/// A key with another value.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The key, in full.
    pub key: String,
    /// The old value; `None`: not given.
    pub was: Option<Value>,
    /// The new value; `None`: not given.
    pub now: Option<Value>,
    /// What that means for a resumed run.
    pub effect: Effect,
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

/// Every key with another value, by name.
///
/// # Errors
/// [`WriteError`] when one of the configurations can't be written as TOML.
pub fn changes(was: &RunConfig, now: &RunConfig) -> Result<Vec<Change>, WriteError> {
    let (was, now) = (flat(was)?, flat(now)?);
    let keys: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let differs = |key: &&&String| was.get(**key) != now.get(**key);
    let change = |key: &String| Change {
        key: key.clone(),
        was: was.get(key).cloned(),
        now: now.get(key).cloned(),
        // The section itself, [lora]: other weights are trained.
        effect: declared().get(key).map_or(Effect::OnWeights, |setting| setting.effect),
    };
    Ok(keys.iter().filter(differs).map(|key| change(key)).collect())
}

/// The settings of a configuration by their full keys, `section.key`.
pub fn flatten(config: &Table) -> impl Iterator<Item = (String, &Value)> {
    let sections = config.iter().filter_map(|(section, value)| Some((section, value.as_table()?)));
    sections.flat_map(|(section, keys)| {
        keys.iter().map(move |(key, value)| (format!("{section}.{key}"), value))
    })
}

/// The settings by their full keys; whether there is a section `[lora]` counts as a setting of its own.
fn flat(config: &RunConfig) -> Result<BTreeMap<String, Value>, WriteError> {
    let table = Table::try_from(config)?;
    let mut all: BTreeMap<String, Value> =
        flatten(&table).map(|(key, value)| (key, value.clone())).collect();
    if table.contains_key("lora") {
        all.insert("lora".to_owned(), Value::Boolean(true));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::load_str;
    use super::*;

    #[test]
    fn changes_are_listed_by_key_with_their_effect() {
        let read = |text: &str| load_str(text, "a", &[]).unwrap();
        let was = read("[lora]\nr = 8\n[train]\nlearning_rate = 1e-3\nlog_every = 5");
        assert_eq!(changes(&was, &was).unwrap(), []);
        let now = read(
            "[lora]\nr = 4\n[data]\nshuffle = false\nmax_length = 99\n[train]\nlearning_rate = 2e-3",
        );
        let found: Vec<(String, Effect)> = changes(&was, &now)
            .unwrap()
            .iter()
            .map(|change| (change.to_string(), change.effect))
            .collect();
        let expected = [
            ("data.max_length: 2048 → 99", Effect::None),
            ("data.shuffle: true → false", Effect::OnSteps),
            ("lora.alpha: 16.0 → 8.0", Effect::OnWeights),
            ("lora.r: 8 → 4", Effect::OnWeights),
            ("train.learning_rate: 0.001 → 0.002", Effect::OnSteps),
            ("train.log_every: 5 → 1", Effect::None),
        ];
        assert_eq!(found, expected.map(|(text, effect)| (text.to_owned(), effect)));
        let whole = changes(&was, &read("")).unwrap();
        assert!(whole.iter().any(|c| c.key == "lora" && c.effect == Effect::OnWeights));
    }
}
