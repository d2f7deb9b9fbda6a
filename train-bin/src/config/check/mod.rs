//! From the raw configuration to the checked one.

mod data;
mod fields;
mod lora;
mod model;
mod reading;
mod train;
mod tuning;
mod watch;

use std::collections::BTreeMap;

use toml::Value;

use super::RunConfig;
use super::error::{ConfigError, Fault, FaultKind, Origin};
use super::merge::Layers;
use super::raw::RawConfig;

/// The checked configuration, or everything that is wrong with it.
pub(super) fn check(layers: Layers) -> Result<RunConfig, ConfigError> {
    let Layers { table, origins } = layers;
    // No field and no map of the raw configuration refuses anything, so this reads every table.
    let raw: RawConfig = Value::Table(table).try_into().map_err(|error: toml::de::Error| {
        let kind = FaultKind::Syntax { message: error.message().to_owned(), line: String::new() };
        ConfigError { faults: vec![Fault { origin: None, kind }] }
    })?;
    let mut check = Check { origins, faults: Vec::new() };
    check.unknown_sections(&raw.unknown);
    let model = check.given("model", raw.model).unwrap_or_default();
    let lora = check.given("lora", raw.lora);
    let data = check.given("data", raw.data).unwrap_or_default();
    let train = check.given("train", raw.train).unwrap_or_default();
    let model = check.model(model, lora.is_some());
    let has_lora = lora.is_some();
    let lora = lora.map(|lora| check.lora(lora));
    let data = check.data(data, &model.source);
    let train = check.train(train, has_lora);
    if check.faults.is_empty() {
        Ok(RunConfig { model, lora, data, train })
    } else {
        Err(ConfigError { faults: check.faults })
    }
}

/// The faults so far. Every method reports what is wrong and goes on as if the default had been
/// given.
struct Check {
    origins: BTreeMap<String, Origin>,
    faults: Vec<Fault>,
}
