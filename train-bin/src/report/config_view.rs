//! A run's configuration in one line, and the differences between several.

use serde::Serialize;
use toml::{Table, Value};

use crate::config::flatten;

/// A setting in which runs differ.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// `section.key`.
    pub(crate) key: String,
    /// Its value in each run; `None` if a run lacks it.
    pub(crate) values: Vec<Option<String>>,
}

/// Settings that always differ and do not influence training.
const IGNORED: [&str; 3] = ["train.output_dir", "train.overwrite", "data.date"];

/// The settings in which configurations differ, in the first one's order.
pub(crate) fn differences(configs: &[&Table]) -> Vec<Difference> {
    let flat: Vec<Vec<(String, String)>> = configs.iter().map(|config| settings(config)).collect();
    let mut keys: Vec<&String> = Vec::new();
    for (key, _) in flat.iter().flatten() {
        if !keys.contains(&key) && !IGNORED.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    let value_in = |config: &Vec<(String, String)>, key: &String| {
        config.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone())
    };
    let row = |key: &String| {
        let values: Vec<_> = flat.iter().map(|config| value_in(config, key)).collect();
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        differ.then(|| Difference { key: key.clone(), values })
    };
    keys.into_iter().filter_map(row).collect()
}

fn settings(config: &Table) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    flatten(config).map(|(key, value)| (key, text(value))).collect()
}

/// Model, method, optimizer, learning rate and batch, as far as they are set.
pub(crate) fn in_a_line(config: &Table) -> Vec<String> {
    let at = |section: &str, key: &str| config.get(section)?.get(key);
    let text = |section, key| {
        at(section, key).map(|value| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        })
    };
    let last_part = |path: String| {
        path.trim_end_matches('/').rsplit('/').next().map(str::to_owned).unwrap_or(path)
    };
    let mut line = Vec::new();
    if config.contains_key("model") {
        let model = text("model", "path").or_else(|| text("model", "config")).map(last_part);
        line.push(model.unwrap_or_else(|| "built-in example".to_owned()));
        line.extend(text("model", "quant").filter(|quant| quant != "none"));
    }
    match (config.get("lora"), text("lora", "r")) {
        (Some(_), Some(r)) => line.push(format!("LoRA, rank {r}")),
        (Some(_), None) => line.push("LoRA".to_owned()),
        (None, _) if config.contains_key("model") => line.push("all weights".to_owned()),
        (None, _) => {}
    }
    line.extend(text("train", "optimizer"));
    if let Some(rate) = at("train", "learning_rate").and_then(Value::as_float) {
        let schedule = text("train", "schedule").unwrap_or_default();
        line.push(format!("lr {} {schedule}", super::scale::rate(rate)).trim_end().to_owned());
    }
    if let (Some(micro), Some(accumulation)) =
        (text("train", "micro_batch_size"), text("train", "grad_accumulation"))
    {
        line.push(format!("{micro} × {accumulation} rows per step"));
    }
    line.extend(text("model", "backend").filter(|backend| backend != "auto"));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_differs_is_listed() {
        let a =
            table("[model]\npath = \"m\"\n[train]\nseed = 1\noutput_dir = \"a\"\n[lora]\nr = 8\n");
        let b = table("[model]\npath = \"m\"\n[train]\nseed = 2\noutput_dir = \"b\"\n");
        let row = |key: &str, values: [Option<&str>; 2]| Difference {
            key: key.to_owned(),
            values: values.map(|value| value.map(str::to_owned)).to_vec(),
        };
        let mut found = differences(&[&a, &b]);
        found.sort_by(|a, b| a.key.cmp(&b.key));
        let expected =
            [row("lora.r", [Some("8"), None]), row("train.seed", [Some("1"), Some("2")])];
        assert_eq!(found, expected);
        assert!(differences(&[&a, &a]).is_empty());
        assert!(differences(&[&a]).is_empty());
    }

    #[test]
    fn a_line_lists_the_settings_that_are_set() {
        let config = table(
            "[model]\npath = \"/m/SmolLM2-135M/\"\nquant = \"nf4\"\n[lora]\nr = 16\n[train]\nlearning_rate = 2e-4\n\
             schedule = \"cosine\"\nmicro_batch_size = 4\ngrad_accumulation = 2\noptimizer = \"adamw\"\n",
        );
        assert_eq!(
            in_a_line(&config).join(" · "),
            "SmolLM2-135M · nf4 · LoRA, rank 16 · adamw · lr 2e-4 cosine · 4 × 2 rows per step"
        );
        assert!(in_a_line(&Table::new()).is_empty());
        assert_eq!(in_a_line(&table("model = 3\nlora = false\ntrain = []\n")).len(), 2);
    }
}
