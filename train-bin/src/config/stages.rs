//! Several runs in one file, each going on with what the one before came to: `[[stage]]`.
//!
//! A stage holds sections of its own, `[stage.train]` and so on, whose keys go before those of the file; `lora = false`
//! takes the section away. Its run folder lies in that of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

use super::error::{ConfigError, Fault, FaultKind};
use super::merge::{Layers, Override};
use super::{RunConfig, check};

/// A run among others in one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// What it is called.
    pub name: String,
    /// Its configuration; its model is that of the file, to be replaced by what the stage before came to.
    pub config: RunConfig,
}

const KEY: &str = "stage";

/// What a TOML file asks for: one run, or several stages.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// One.
    Run(Box<RunConfig>),
    /// Several, one after another.
    Stages(Vec<Stage>),
}

/// As [`load`](super::load), for files that may hold stages. The command line goes before file and stages.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn load_stages(file: &Path, overrides: &[Override]) -> Result<Asked, ConfigError> {
    let Ok(text) = std::fs::read_to_string(file) else {
        return super::load(Some(file), overrides).map(|config| Asked::Run(Box::new(config)));
    };
    let (name, folder) = (file.display().to_string(), file.parent().unwrap_or(Path::new("")));
    load_stages_str(&text, &name, folder, overrides)
}

fn load_stages_str(
    text: &str,
    name: &str,
    folder: &Path,
    overrides: &[Override],
) -> Result<Asked, ConfigError> {
    let mut base = Layers::default();
    base.add_defaults(overrides);
    let is_read = base.add_text(name, text, folder).is_ok();
    let Some(stages) = base.table.remove(KEY).filter(|_| is_read) else {
        let config = super::load_layers(text, name, folder, overrides)?;
        return Ok(Asked::Run(Box::new(config)));
    };
    let fault = |message: String| {
        let kind = FaultKind::Refused { message };
        Fault { origin: base.origins.get(KEY).cloned(), kind }
    };
    let tables = match stages {
        Value::Array(stages) if !stages.is_empty() => stages,
        other => {
            let message = format!("stage: expected [[stage]] sections, found {other}");
            return Err(ConfigError { faults: vec![fault(message)] });
        }
    };
    let mut faults = Vec::new();
    let mut found: Vec<Stage> = Vec::new();
    let mut names = BTreeSet::new();
    for (number, stage) in tables.into_iter().enumerate() {
        let number = number + 1;
        let Value::Table(mut stage) = stage else {
            faults.push(fault(format!("stage {number}: expected a section, found {stage}")));
            continue;
        };
        let stage_name = match stage.remove("name") {
            None => number.to_string(),
            Some(Value::String(name)) if is_plain(&name) => name,
            Some(other) => {
                faults.push(fault(format!(
                    "stage {number}: its name is that of a folder too: expected letters, digits, - and _, found {other}"
                )));
                continue;
            }
        };
        if !names.insert(stage_name.clone()) {
            faults.push(fault(format!("stage {number}: there is another one called {stage_name}")));
        }
        match configuration(&base, stage, folder, overrides) {
            Ok(mut config) => {
                let place = format!("{number}-{stage_name}");
                config.train.output_dir = config.train.output_dir.join(place);
                found.push(Stage { name: stage_name, config });
            }
            Err(error) => faults.extend(error.faults.into_iter().map(|fault| Fault {
                kind: FaultKind::Refused { message: format!("stage {stage_name}: {}", fault.kind) },
                origin: fault.origin,
            })),
        }
    }
    if faults.is_empty() { Ok(Asked::Stages(found)) } else { Err(ConfigError { faults }) }
}

fn configuration(
    base: &Layers,
    mut stage: Table,
    folder: &Path,
    overrides: &[Override],
) -> Result<RunConfig, ConfigError> {
    let mut layers = base.clone();
    if stage.get("lora") == Some(&Value::Boolean(false)) {
        stage.remove("lora");
        layers.table.remove("lora");
        layers.origins.retain(|key, _| key != "lora" && !key.starts_with("lora."));
    }
    replace_excluded(&mut layers.table, &mut layers.origins, &stage);
    let origin = base.origins.get(KEY).cloned();
    layers.add_table(stage, folder, &|_| origin.clone());
    layers.add_overrides(overrides).map_err(|faults| ConfigError { faults })?;
    check::check(layers)
}

/// A stage's `train.steps` takes the place of the file's `train.epochs`, and the like.
fn replace_excluded(
    table: &mut Table,
    origins: &mut BTreeMap<String, super::Origin>,
    stage: &Table,
) {
    for (section, keys) in stage {
        let Value::Table(keys) = keys else { continue };
        for key in keys.keys() {
            let Some(excluded) = super::keys::excluded_by(&format!("{section}.{key}")) else {
                continue;
            };
            origins.remove(excluded);
            let name = excluded.rsplit('.').next().unwrap_or(excluded);
            if let Some(Value::Table(section)) = table.get_mut(section) {
                section.remove(name);
            }
        }
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::super::Duration;
    use super::*;

    fn read(text: &str) -> Result<Asked, ConfigError> {
        load_stages_str(text, "run.toml", Path::new("/x"), &[])
    }

    const BASE: &str = "[model]\npath = \"m\"\n[lora]\nr = 4\n[data]\ntrain = \"d\"\n[train]\nepochs = 2\noutput_dir = \"out\"\n";

    #[test]
    fn each_stage_is_the_file_with_its_own_keys() {
        let text = format!(
            "{BASE}[[stage]]\nname = \"adapters\"\n\
             [[stage]]\nname = \"mlp\"\nlora = false\n[stage.train]\nsteps = 7\ntrainable = [\"mlp\"]\n\
             [[stage]]\nlora = false\n[stage.train]\nlearning_rate = 1e-5\n"
        );
        let Asked::Stages(stages) = read(&text).unwrap() else { panic!("no stages") };
        let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["adapters", "mlp", "3"]);
        let [adapters, mlp, all] = stages.as_slice() else { panic!("three") };
        assert!(adapters.config.lora.is_some() && mlp.config.lora.is_none());
        assert_eq!(mlp.config.train.trainable, ["mlp"]);
        assert_eq!(
            mlp.config.train.duration,
            Duration::Steps(std::num::NonZeroU64::new(7).unwrap())
        );
        assert_eq!(adapters.config.train.duration, Duration::Epochs(2.0));
        assert_eq!(all.config.train.learning_rate, 1e-5);
        assert_eq!(all.config.train.output_dir, Path::new("/x/out/3-3"));
    }

    #[test]
    fn a_file_without_stages_is_one_run_and_faults_name_their_stage() {
        assert!(matches!(read(BASE).unwrap(), Asked::Run(_)));
        let faults = |text: &str| -> Vec<String> {
            let error = read(&format!("{BASE}{text}")).expect_err(text);
            error.faults.iter().map(ToString::to_string).collect()
        };
        let found = faults(
            "[[stage]]\nname = \"a\"\n[stage.train]\nlerning_rate = 1\n[[stage]]\nname = \"a\"\n",
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("stage a") && found[0].contains("train.learning_rate"),
            "{found:?}"
        );
        assert!(found[1].contains("another one called a"), "{found:?}");
        assert!(faults("[stage]\nname = 1\n")[0].contains("expected [[stage]]"));
        assert!(faults("[[stage]]\nname = \"../b\"\n")[0].contains("letters"));
    }
}
