//! Several runs in one file, each of which starts from the result of the one before: `[[stage]]`.
//!
//! A stage holds sections of its own, `[stage.train]` and so on, whose keys take precedence over those of the file; `lora = false`
//! removes the section. Its run folder is inside the run folder of the file.

use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

use super::RunConfig;
use crate::settings::{ConfigError, Fault, FaultKind, Layers, Origin, Override};

/// One of several runs in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Its configuration. The model is the one in the file, to be replaced by the result of the previous stage.
    pub config: RunConfig,
}

const KEY: &str = "stage";

/// What a TOML file holds: one run, or several stages.
#[derive(Debug, Clone, PartialEq)]
pub enum RunFile {
    /// One.
    Run(Box<RunConfig>),
    /// Several, one after another.
    Stages(Vec<Stage>),
}

/// As [`load`](super::load), for files that may hold stages. The command line takes precedence over file and stages.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong.
pub fn load_run_file(file: &Path, overrides: &[Override]) -> Result<RunFile, ConfigError> {
    let Ok(text) = std::fs::read_to_string(file) else {
        return super::load(Some(file), overrides).map(|config| RunFile::Run(Box::new(config)));
    };
    let (name, folder) = (file.display().to_string(), file.parent().unwrap_or(Path::new("")));
    parse_run_file(&text, &name, folder, overrides)
}

fn parse_run_file(
    text: &str,
    name: &str,
    folder: &Path,
    overrides: &[Override],
) -> Result<RunFile, ConfigError> {
    let mut base = Layers::default();
    base.add_defaults(overrides);
    let is_read = base.add_text(name, text, folder).is_ok();
    let Some((stages, origin)) = base.take(KEY).filter(|_| is_read) else {
        let config = super::load_layers(text, name, folder, overrides)?;
        return Ok(RunFile::Run(Box::new(config)));
    };
    let fault =
        |message: String| Fault { origin: origin.clone(), kind: FaultKind::Refused { message } };
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
    for (i, stage) in tables.into_iter().enumerate() {
        let number = i + 1;
        let (name, stage) = match named(stage, number) {
            Ok(named) => named,
            Err(message) => {
                faults.push(fault(message));
                continue;
            }
        };
        if !names.insert(name.clone()) {
            faults.push(fault(format!(
                "stage {number}: the name {name} is already used; give each stage its own"
            )));
        }
        let origin_of = |key: &str| base.origin(&format!("{KEY}[{i}].{key}")).or(origin.clone());
        match configuration(&base, stage, folder, overrides, &origin_of) {
            Ok(mut config) => {
                config.train.output_dir = config.train.output_dir.join(format!("{number}-{name}"));
                found.push(Stage { name, config });
            }
            Err(error) => faults.extend(error.faults.into_iter().map(|fault| Fault {
                kind: FaultKind::Refused { message: format!("stage {name}: {}", fault.kind) },
                origin: fault.origin,
            })),
        }
    }
    if faults.is_empty() { Ok(RunFile::Stages(found)) } else { Err(ConfigError { faults }) }
}

/// A stage's name and its sections.
fn named(stage: Value, number: usize) -> Result<(String, Table), String> {
    let Value::Table(mut stage) = stage else {
        return Err(format!("stage {number}: expected a section, found {stage}"));
    };
    let is_plain = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    match stage.remove("name") {
        None => Ok((number.to_string(), stage)),
        Some(Value::String(name)) if is_plain(&name) => Ok((name, stage)),
        Some(other) => Err(format!(
            "stage {number}: expected a name of letters, digits, - and _ (its folder has the same name), found {other}"
        )),
    }
}

fn configuration(
    base: &Layers,
    mut stage: Table,
    folder: &Path,
    overrides: &[Override],
    origin_of: &dyn Fn(&str) -> Option<Origin>,
) -> Result<RunConfig, ConfigError> {
    let mut layers = base.clone();
    if stage.get("lora") == Some(&Value::Boolean(false)) {
        stage.remove("lora");
        layers.take("lora");
    }
    layers.add_table(stage, folder, origin_of);
    layers.add_overrides(overrides).map_err(|faults| ConfigError { faults })?;
    super::read(layers)
}

#[cfg(test)]
mod tests {
    use super::super::Duration;
    use super::*;

    fn read(text: &str) -> Result<RunFile, ConfigError> {
        parse_run_file(text, "run.toml", Path::new("/x"), &[])
    }

    const BASE: &str = "[model]\npath = \"m\"\n[lora]\nr = 4\n[data]\ntrain = \"d\"\n[train]\nepochs = 2\noutput_dir = \"out\"\n";

    #[test]
    fn each_stage_is_the_file_with_its_own_keys() {
        let text = format!(
            "{BASE}[[stage]]\nname = \"adapters\"\n\
             [[stage]]\nname = \"mlp\"\nlora = false\n[stage.train]\nsteps = 7\ntrainable = [\"mlp\"]\n\
             [[stage]]\nlora = false\n[stage.train]\nlearning_rate = 1e-5\n"
        );
        let RunFile::Stages(stages) = read(&text).unwrap() else { panic!("no stages") };
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
        assert!(matches!(read(BASE).unwrap(), RunFile::Run(_)));
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
        assert!(found[1].contains("the name a is already used"), "{found:?}");
        assert!(faults("[stage]\nname = 1\n")[0].contains("expected [[stage]]"));
        assert!(faults("[[stage]]\nname = \"../b\"\n")[0].contains("letters"));
    }
}
