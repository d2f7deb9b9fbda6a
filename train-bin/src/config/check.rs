//! From the raw configuration to the checked one.

mod reading;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::choice::{Choice, Quant, Recompute};
use super::error::{ConfigError, Fault, FaultKind, Origin};
use super::keys::{SECTIONS, keys_of, nearest_key, nearest_section};
use super::merge::{Layers, absolute};
use super::raw::{
    Expected, Field, Off, OrOff, Paths, RawConfig, RawData, RawLora, RawModel, RawTargets, RawTrain,
};
use super::{
    DataSection, DataSource, Duration, LoraSection, LoraStart, ModelSection, ModelSource,
    RunConfig, Targets, TrainSection, Warmup,
};

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
    let lora = lora.map(|lora| check.lora(lora));
    let data = check.data(data, &model.source);
    let train = check.train(train);
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

impl Check {
    fn model(&mut self, raw: RawModel, with_lora: bool) -> ModelSection {
        self.unknown_keys("model", &raw.unknown);
        let default = ModelSection::default();
        if !raw.path.is_absent() && !raw.config.is_absent() {
            let reason = "the weights either come from a model's folder or are drawn at random for an architecture";
            self.contradiction(["model.path", "model.config"], reason, "remove one of them");
        }
        let no_model = raw.path.is_absent() && raw.config.is_absent();
        let path = self.path("model.path", raw.path);
        let config = self.path("model.config", raw.config);
        let tokenizer = self.path("model.tokenizer", raw.tokenizer);
        if no_model && tokenizer.is_some() {
            self.faults.push(Fault {
                origin: None,
                kind: FaultKind::Missing {
                    key: "model.path".to_owned(),
                    expected: "the folder of the model",
                    because: format!(
                        "model.tokenizer is given{}, and the built-in model has its own tokenizer",
                        self.beside("model.tokenizer")
                    ),
                    remedy: "set model.path (or model.config), or remove model.tokenizer"
                        .to_owned(),
                },
            });
        }
        let source = match (path, config) {
            (Some(path), _) => ModelSource::Pretrained {
                tokenizer: tokenizer.unwrap_or_else(|| path.clone()),
                path,
            },
            (None, Some(config)) => {
                let folder = || config.parent().unwrap_or(Path::new("")).to_owned();
                ModelSource::Scratch { tokenizer: tokenizer.unwrap_or_else(folder), config }
            }
            (None, None) => ModelSource::Builtin,
        };
        let quant = self.choice("model.quant", raw.quant, default.quant);
        if quant != Quant::None && !with_lora {
            self.faults.push(Fault {
                origin: self.origins.get("model.quant").cloned(),
                kind: FaultKind::Missing {
                    key: "lora".to_owned(),
                    expected: "a section [lora]",
                    because: format!(
                        "model.quant = \"{quant}\" holds weights that cannot be trained themselves"
                    ),
                    remedy: "add [lora], or remove model.quant".to_owned(),
                },
            });
        }
        ModelSection {
            source,
            backend: self.choice("model.backend", raw.backend, default.backend),
            dtype: self.choice("model.dtype", raw.dtype, default.dtype),
            quant,
            double_quant: self
                .given("model.double_quant", raw.double_quant)
                .unwrap_or(default.double_quant),
        }
    }

    fn lora(&mut self, raw: RawLora) -> LoraSection {
        self.unknown_keys("lora", &raw.unknown);
        let default = LoraSection::default();
        if !raw.init_from.is_absent() {
            for (key, given) in [
                ("lora.r", !raw.r.is_absent()),
                ("lora.alpha", !raw.alpha.is_absent()),
                ("lora.target_modules", !raw.target_modules.is_absent()),
                ("lora.use_rslora", !raw.use_rslora.is_absent()),
            ] {
                if given {
                    let reason = format!("{key} comes from the adapter");
                    self.contradiction([key, "lora.init_from"], &reason, &format!("remove {key}"));
                }
            }
        }
        let init_from = self.path("lora.init_from", raw.init_from);
        let r = self.whole(
            "lora.r",
            raw.r,
            "a whole number from 1 on",
            LoraSection::DEFAULT_R,
            nonzero_usize,
        );
        let r = r.unwrap_or(LoraSection::DEFAULT_R);
        let default_alpha = LoraSection::default_alpha(r);
        let alpha = self.number(
            "lora.alpha",
            raw.alpha,
            "a number greater than 0",
            default_alpha,
            is_positive,
        );
        let target_modules = self.targets(raw.target_modules);
        let use_rslora = self.given("lora.use_rslora", raw.use_rslora).unwrap_or(false);
        let start = match init_from {
            Some(path) => LoraStart::InitFrom(path),
            None => LoraStart::Fresh { r, alpha, target_modules, use_rslora },
        };
        let expected = "a number from 0 on, less than 1";
        LoraSection {
            start,
            dropout: self.number("lora.dropout", raw.dropout, expected, default.dropout, is_share),
        }
    }

    fn targets(&mut self, field: Field<RawTargets>) -> Targets {
        let key = "lora.target_modules";
        match self.given(key, field) {
            None => Targets::AllLinear,
            Some(RawTargets::Text(text)) if text == "all-linear" => Targets::AllLinear,
            Some(RawTargets::Text(text)) => {
                if text.is_empty() {
                    self.out_of_range(
                        key,
                        "\"all-linear\", a regular expression or a list of names",
                        "\"\"",
                        "all-linear",
                    );
                } else if let Err(error) = fancy_regex::Regex::new(&text) {
                    let reason = error.to_string();
                    let reason = reason
                        .lines()
                        .last()
                        .unwrap_or_default()
                        .trim_start_matches("error: ")
                        .to_owned();
                    self.push(
                        key,
                        FaultKind::Pattern { key: key.to_owned(), found: text.clone(), reason },
                    );
                }
                Targets::Regex(text)
            }
            Some(RawTargets::Names(names)) => {
                if names.is_empty() || names.iter().any(String::is_empty) {
                    self.out_of_range(
                        key,
                        "names of modules, at least one",
                        format!("{names:?}"),
                        "all-linear",
                    );
                }
                Targets::List(names)
            }
        }
    }

    fn data(&mut self, raw: RawData, model: &ModelSource) -> DataSection {
        self.unknown_keys("data", &raw.unknown);
        let default = DataSection::default();
        let is_faulty = matches!(raw.train, Field::Wrong(_));
        let train = self.paths("data.train", raw.train);
        let eval = self.paths("data.eval", raw.eval);
        let because = match (model, eval.is_empty()) {
            _ if is_faulty || !train.is_empty() => None,
            (_, false) => Some(format!("data.eval is given{}", self.beside("data.eval"))),
            (ModelSource::Builtin, true) => None,
            (_, true) => Some("the built-in data is for the built-in model only".to_owned()),
        };
        if let Some(because) = because {
            let kind = FaultKind::Missing {
                key: "data.train".to_owned(),
                expected: "a file to learn from, or a list of such",
                because,
                remedy: "set data.train in the file, or give --data FILE".to_owned(),
            };
            self.push("data.train", kind);
        }
        if self.given("data.packing", raw.packing) == Some(true) {
            self.not_yet("data.packing", "true", "false");
        }
        let format =
            self.given("data.format", raw.format).unwrap_or_else(|| default.format.clone());
        if format.is_empty() {
            self.out_of_range("data.format", "the name of a format", "\"\"", &default.format);
        }
        let reading = self.reading(raw.reading, &format);
        let at_least_2 = |n| nonzero_usize(n).filter(|n| n.get() >= 2);
        let expected = "a whole number from 2 on: a token and the one it predicts";
        DataSection {
            source: if train.is_empty() {
                DataSource::Builtin
            } else {
                DataSource::Files { train, eval }
            },
            format,
            template: self.choice("data.template", raw.template, default.template),
            max_length: self
                .whole("data.max_length", raw.max_length, expected, default.max_length, at_least_2)
                .unwrap_or(default.max_length),
            shuffle: self.given("data.shuffle", raw.shuffle).unwrap_or(default.shuffle),
            reading,
        }
    }

    fn train(&mut self, raw: RawTrain) -> TrainSection {
        self.unknown_keys("train", &raw.unknown);
        let default = TrainSection::default();
        let from_0 = "a whole number from 0 on";
        let from_1 = "a whole number from 1 on";
        let non_negative = "a number from 0 on";
        let positive = "a number greater than 0";

        if !raw.epochs.is_absent() && !raw.steps.is_absent() {
            self.contradiction(
                ["train.epochs", "train.steps"],
                "each says when the run is over",
                "remove one of them",
            );
        }
        let has_epochs = !raw.epochs.is_absent();
        let epochs = self.number("train.epochs", raw.epochs, positive, 3.0, is_positive);
        let duration = match self.whole("train.steps", raw.steps, from_1, "3 epochs", nonzero_u64) {
            Some(steps) => Duration::Steps(steps),
            None if has_epochs => Duration::Epochs(epochs),
            None => default.duration,
        };

        if !raw.warmup_steps.is_absent() && !raw.warmup_ratio.is_absent() {
            let reason = "each says how long the learning rate rises";
            self.contradiction(
                ["train.warmup_steps", "train.warmup_ratio"],
                reason,
                "remove one of them",
            );
        }
        let has_ratio = !raw.warmup_ratio.is_absent();
        let share = "a number from 0 on, less than 1: the share of all steps";
        let ratio = self.number("train.warmup_ratio", raw.warmup_ratio, share, 0.0, is_share);
        let warmup =
            match self.whole("train.warmup_steps", raw.warmup_steps, from_0, 0, not_negative) {
                Some(steps) => Warmup::Steps(steps),
                None if has_ratio => Warmup::Ratio(ratio),
                None => default.warmup,
            };

        let faults_before = self.faults.len();
        let learning_rate = self.number(
            "train.learning_rate",
            raw.learning_rate,
            positive,
            default.learning_rate,
            is_positive,
        );
        let min_learning_rate = self.number(
            "train.min_learning_rate",
            raw.min_learning_rate,
            non_negative,
            default.min_learning_rate,
            is_not_negative,
        );
        if self.faults.len() == faults_before && min_learning_rate > learning_rate {
            let reason = format!(
                "expected a minimum of at most the learning rate {learning_rate}, found {min_learning_rate}"
            );
            let keys = ["train.min_learning_rate", "train.learning_rate"];
            self.contradiction(
                keys,
                &reason,
                "lower train.min_learning_rate or raise train.learning_rate",
            );
        }

        let recompute = match raw.recompute {
            Field::Given(name) if name == "selective" => {
                self.not_yet("train.recompute", "\"selective\"", "\"block\"");
                default.recompute
            }
            field => self.choice::<Recompute>("train.recompute", field, default.recompute),
        };

        let betas = self.given("train.betas", raw.betas).unwrap_or(default.betas);
        if !betas.into_iter().all(is_share) {
            let expected = "two numbers from 0 on, less than 1";
            self.out_of_range(
                "train.betas",
                expected,
                format!("{betas:?}"),
                format!("{:?}", default.betas),
            );
        }

        TrainSection {
            output_dir: self.path("train.output_dir", raw.output_dir).unwrap_or(default.output_dir),
            overwrite: self.given("train.overwrite", raw.overwrite).unwrap_or(default.overwrite),
            duration,
            micro_batch_size: self
                .whole(
                    "train.micro_batch_size",
                    raw.micro_batch_size,
                    from_1,
                    default.micro_batch_size,
                    nonzero_usize,
                )
                .unwrap_or(default.micro_batch_size),
            grad_accumulation: self
                .whole(
                    "train.grad_accumulation",
                    raw.grad_accumulation,
                    from_1,
                    default.grad_accumulation,
                    nonzero_usize,
                )
                .unwrap_or(default.grad_accumulation),
            learning_rate,
            min_learning_rate,
            schedule: self.choice("train.schedule", raw.schedule, default.schedule),
            warmup,
            weight_decay: self.number(
                "train.weight_decay",
                raw.weight_decay,
                non_negative,
                default.weight_decay,
                is_not_negative,
            ),
            betas,
            eps: self.number("train.eps", raw.eps, positive, default.eps, is_positive),
            max_grad_norm: self.max_grad_norm(raw.max_grad_norm, default.max_grad_norm),
            recompute,
            seed: self
                .whole("train.seed", raw.seed, from_0, default.seed, not_negative)
                .unwrap_or(default.seed),
            eval_every: self.whole_or_off("train.eval_every", raw.eval_every, nonzero_u64),
            save_every: self.whole_or_off("train.save_every", raw.save_every, nonzero_u64),
            keep_last: self.whole_or_off("train.keep_last", raw.keep_last, nonzero_usize),
            log_every: self
                .whole("train.log_every", raw.log_every, from_1, default.log_every, nonzero_u64)
                .unwrap_or(default.log_every),
            threads: self.whole("train.threads", raw.threads, from_1, "all cores", nonzero_usize),
        }
    }

    fn max_grad_norm(&mut self, field: Field<OrOff<f64>>, default: Option<f64>) -> Option<f64> {
        let key = "train.max_grad_norm";
        match self.given(key, field) {
            None => default,
            Some(OrOff::Off(Off)) => None,
            Some(OrOff::On(norm)) if is_not_negative(norm) && norm.is_finite() => {
                Some(norm).filter(|norm| *norm > 0.0)
            }
            Some(OrOff::On(norm)) => {
                self.out_of_range(
                    key,
                    "a number greater than 0, or 0 or false for no clipping",
                    norm,
                    "1.0",
                );
                None
            }
        }
    }

    fn unknown_sections(&mut self, unknown: &Table) {
        for (name, value) in unknown {
            let kind = if value.is_table() {
                FaultKind::UnknownSection {
                    section: name.clone(),
                    nearest: nearest_section(name).map(|section| format!("[{section}]")),
                    known: SECTIONS.iter().map(|section| format!("[{section}]")).collect(),
                }
            } else {
                let known = SECTIONS.iter().map(|section| format!("{section}.…")).collect();
                FaultKind::UnknownKey { key: name.clone(), nearest: nearest_key(name), known }
            };
            self.push(name, kind);
        }
    }

    fn unknown_keys(&mut self, section: &str, unknown: &Table) {
        for name in unknown.keys() {
            let key = format!("{section}.{name}");
            let kind = FaultKind::UnknownKey {
                key: key.clone(),
                nearest: nearest_key(&key),
                known: keys_of(section),
            };
            self.push(&key, kind);
        }
    }

    /// The value, if it is there and of the right type.
    fn given<T: Expected>(&mut self, key: &str, field: Field<T>) -> Option<T> {
        match field {
            Field::Absent => None,
            Field::Given(value) => Some(value),
            Field::Wrong(found) => {
                let kind = FaultKind::WrongType {
                    key: key.to_owned(),
                    expected: T::EXPECTED,
                    found: described(&found),
                    remedy: type_remedy(T::EXPECTED, &found),
                };
                self.push(key, kind);
                None
            }
        }
    }

    fn choice<T: Choice>(&mut self, key: &str, field: Field<String>, default: T) -> T {
        let Some(name) = self.given(key, field) else {
            return default;
        };
        T::from_name(&name).unwrap_or_else(|error| {
            self.push(key, FaultKind::UnknownChoice { key: key.to_owned(), error });
            default
        })
    }

    fn path(&mut self, key: &str, field: Field<PathBuf>) -> Option<PathBuf> {
        let path = self.given(key, field)?;
        if path.as_os_str().is_empty() {
            self.empty_path(key);
            return None;
        }
        Some(absolute(&path))
    }

    fn paths(&mut self, key: &str, field: Field<Paths>) -> Vec<PathBuf> {
        let paths = match self.given(key, field) {
            None => Vec::new(),
            Some(Paths::One(path)) => vec![path],
            Some(Paths::Many(paths)) => paths,
        };
        if paths.iter().any(|path| path.as_os_str().is_empty()) {
            self.empty_path(key);
        }
        paths.iter().map(|path| absolute(path)).collect()
    }

    fn empty_path(&mut self, key: &str) {
        let remedy = "name a file or folder, or remove the key".to_owned();
        let kind = FaultKind::OutOfRange {
            key: key.to_owned(),
            expected: "a path",
            found: "\"\"".to_owned(),
            remedy,
        };
        self.push(key, kind);
    }

    /// A finite number that `is_allowed`, or the default.
    fn number(
        &mut self,
        key: &str,
        field: Field<f64>,
        expected: &'static str,
        default: f64,
        is_allowed: fn(f64) -> bool,
    ) -> f64 {
        match self.given(key, field) {
            None => default,
            Some(number) if number.is_finite() && is_allowed(number) => number,
            Some(number) => {
                self.out_of_range(key, expected, number, default);
                default
            }
        }
    }

    /// A whole number that `convert` takes.
    fn whole<T>(
        &mut self,
        key: &str,
        field: Field<i64>,
        expected: &'static str,
        default: impl Display,
        convert: impl Fn(i64) -> Option<T>,
    ) -> Option<T> {
        let number = self.given(key, field)?;
        let converted = convert(number);
        if converted.is_none() {
            self.out_of_range(key, expected, number, default);
        }
        converted
    }

    /// A whole number that `convert` takes; `None` for `false`, which is the default.
    fn whole_or_off<T>(
        &mut self,
        key: &str,
        field: Field<OrOff<i64>>,
        convert: fn(i64) -> Option<T>,
    ) -> Option<T>
    where
        OrOff<i64>: Expected,
    {
        let OrOff::On(number) = self.given(key, field)? else {
            return None;
        };
        self.whole(
            key,
            Field::Given(number),
            "a whole number from 1 on, or false for off",
            "false",
            convert,
        )
    }

    fn out_of_range(
        &mut self,
        key: &str,
        expected: &'static str,
        found: impl Display,
        default: impl Display,
    ) {
        let remedy = format!("change it, or remove it for the default, {default}");
        let kind = FaultKind::OutOfRange {
            key: key.to_owned(),
            expected,
            found: found.to_string(),
            remedy,
        };
        self.push(key, kind);
    }

    fn contradiction(&mut self, keys: [&str; 2], reason: &str, remedy: &str) {
        let keys = keys.map(|key| (key.to_owned(), self.origins.get(key).cloned()));
        let kind =
            FaultKind::Contradiction { keys, reason: reason.to_owned(), remedy: remedy.to_owned() };
        self.faults.push(Fault { origin: None, kind });
    }

    fn not_yet(&mut self, key: &str, found: &str, instead: &str) {
        let [key_owned, found, instead] = [key, found, instead].map(str::to_owned);
        self.push(key, FaultKind::NotYet { key: key_owned, found, instead });
    }

    fn push(&mut self, key: &str, kind: FaultKind) {
        self.faults.push(Fault { origin: self.origins.get(key).cloned(), kind });
    }

    /// Where another key stands, in parentheses.
    fn beside(&self, key: &str) -> String {
        self.origins.get(key).map(|origin| format!(" ({origin})")).unwrap_or_default()
    }
}

fn is_positive(x: f64) -> bool {
    x > 0.0
}

fn is_not_negative(x: f64) -> bool {
    x >= 0.0
}

fn is_share(x: f64) -> bool {
    (0.0..1.0).contains(&x)
}

fn not_negative(n: i64) -> Option<u64> {
    u64::try_from(n).ok()
}

fn nonzero_u64(n: i64) -> Option<NonZeroU64> {
    not_negative(n).and_then(NonZeroU64::new)
}

fn nonzero_usize(n: i64) -> Option<NonZeroUsize> {
    usize::try_from(n).ok().and_then(NonZeroUsize::new)
}

/// A value and its type, as messages show it.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => format!("the string {value}"),
        Value::Integer(_) => format!("the whole number {value}"),
        Value::Float(_) => format!("the decimal number {value}"),
        Value::Boolean(_) | Value::Datetime(_) => value.to_string(),
        Value::Array(_) => format!("the list {value}"),
        Value::Table(_) => "a section of keys".to_owned(),
    }
}

fn type_remedy(expected: &str, found: &Value) -> &'static str {
    match found {
        Value::String(_) if expected.contains("number") || expected.starts_with("true") => {
            "write it without quotes"
        }
        Value::Float(_) if expected.contains("whole number") => {
            "write it without decimal point and exponent"
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) if expected.contains("string") => {
            "write it in quotes, \"…\", on the command line '\"…\"'"
        }
        _ => "change it, or remove it for the default",
    }
}
