//! From the checked configuration back to the raw one, which serde writes.

use std::num::NonZeroU64;
use std::path::PathBuf;

use toml::Table;

use super::choice::Choice;
use super::error::WriteError;
use super::merge::absolute;
use super::raw::{
    Field, Off, OrOff, Paths, RawConfig, RawData, RawLora, RawModel, RawReading, RawSource,
    RawTargets, RawTrain,
};
use super::{
    DataSection, DataSource, Duration, Layout, LoraSection, LoraStart, ModelSection, ModelSource,
    Reading, RunConfig, Targets, TrainSection, Warmup,
};

/// The raw configuration that checks as `config`.
pub(super) fn to_raw(config: &RunConfig) -> Result<RawConfig, WriteError> {
    Ok(RawConfig {
        model: Field::Given(raw_model(&config.model)),
        lora: config.lora.as_ref().map(raw_lora).transpose()?.into(),
        data: Field::Given(raw_data(&config.data)?),
        train: Field::Given(raw_train(&config.train)?),
        unknown: Table::new(),
    })
}

fn raw_model(model: &ModelSection) -> RawModel {
    let (path, config, tokenizer) = match &model.source {
        ModelSource::Builtin => (None, None, None),
        ModelSource::Pretrained { path, tokenizer } => (Some(path), None, Some(tokenizer)),
        ModelSource::Scratch { config, tokenizer } => (None, Some(config), Some(tokenizer)),
    };
    RawModel {
        path: path.map(|path| absolute(path)).into(),
        config: config.map(|config| absolute(config)).into(),
        tokenizer: tokenizer.map(|tokenizer| absolute(tokenizer)).into(),
        backend: name(model.backend),
        dtype: name(model.dtype),
        quant: name(model.quant),
        double_quant: Field::Given(model.double_quant),
        quant_skip: Some(model.quant_skip.clone()).filter(|skip| !skip.is_empty()).into(),
        unknown: Table::new(),
    }
}

fn raw_lora(lora: &LoraSection) -> Result<RawLora, WriteError> {
    let dropout = Field::Given(lora.dropout);
    Ok(match &lora.start {
        LoraStart::InitFrom(path) => {
            RawLora { init_from: Field::Given(absolute(path)), dropout, ..RawLora::default() }
        }
        LoraStart::Fresh { r, alpha, target_modules, use_rslora } => RawLora {
            init_from: Field::Absent,
            r: integer("lora.r", r.get() as u64)?,
            alpha: Field::Given(*alpha),
            target_modules: Field::Given(match target_modules {
                Targets::AllLinear => RawTargets::Text("all-linear".to_owned()),
                Targets::Regex(pattern) => RawTargets::Text(pattern.clone()),
                Targets::List(names) => RawTargets::Names(names.clone()),
            }),
            use_rslora: Field::Given(*use_rslora),
            dropout,
            unknown: Table::new(),
        },
    })
}

fn raw_data(data: &DataSection) -> Result<RawData, WriteError> {
    let paths = |paths: &[PathBuf]| Paths::Many(paths.iter().map(|path| absolute(path)).collect());
    let (train, source, eval) = match &data.source {
        DataSource::Builtin => (None, None, None),
        DataSource::Files { train, eval } => (Some(paths(train)), None, Some(paths(eval))),
        DataSource::Mixture { sources, eval } => {
            let sources = sources.iter().map(|source| RawSource {
                path: Field::Given(paths(&source.paths)),
                weight: Field::Given(source.weight),
                unknown: Table::new(),
            });
            (None, Some(sources.collect::<Vec<_>>()), Some(paths(eval)))
        }
    };
    Ok(RawData {
        train: train.into(),
        source: source.into(),
        eval: eval.into(),
        format: Field::Given(data.format.clone()),
        template: name(data.template),
        max_length: integer("data.max_length", data.max_length.get() as u64)?,
        train_on: name(data.train_on),
        packing: Field::Given(data.layout == Layout::Packed),
        group_by_length: Field::Given(data.layout == Layout::ByLength),
        cache_dir: data.cache_dir.as_deref().map(absolute).into(),
        shuffle: Field::Given(data.shuffle),
        date: Field::Given(data.date.clone()),
        reading: raw_reading(&data.reading)?,
        unknown: Table::new(),
    })
}

fn raw_reading(reading: &Reading) -> Result<RawReading, WriteError> {
    let fields = Some(&reading.fields).filter(|fields| !fields.is_empty());
    let limit = reading.max_errors.map(|limit| limit as u64);
    Ok(RawReading {
        prompt_template: reading.prompt_template.clone().into(),
        completion_template: reading.completion_template.clone().into(),
        system_template: reading.system_template.clone().into(),
        text_template: reading.text_template.clone().into(),
        text_by: name(reading.text_by),
        on_error: name(reading.on_error),
        max_errors: integer_or_off("data.max_errors", limit)?,
        rejects: reading.rejects.as_deref().map(absolute).into(),
        fields: fields.cloned().into(),
    })
}

fn raw_train(train: &TrainSection) -> Result<RawTrain, WriteError> {
    let (epochs, steps) = match train.duration {
        Duration::Epochs(epochs) => (Field::Given(epochs), Field::Absent),
        Duration::Steps(steps) => (Field::Absent, integer("train.steps", steps.get())?),
    };
    let (warmup_steps, warmup_ratio) = match train.warmup {
        Warmup::Steps(steps) => (integer("train.warmup_steps", steps)?, Field::Absent),
        Warmup::Ratio(ratio) => (Field::Absent, Field::Given(ratio)),
    };
    Ok(RawTrain {
        output_dir: Field::Given(absolute(&train.output_dir)),
        overwrite: Field::Given(train.overwrite),
        epochs,
        steps,
        micro_batch_size: integer("train.micro_batch_size", train.micro_batch_size.get() as u64)?,
        grad_accumulation: integer(
            "train.grad_accumulation",
            train.grad_accumulation.get() as u64,
        )?,
        optimizer: name(train.optimizer),
        learning_rate: Field::Given(train.learning_rate),
        min_learning_rate: Field::Given(train.min_learning_rate),
        schedule: name(train.schedule),
        warmup_steps,
        warmup_ratio,
        weight_decay: Field::Given(train.weight_decay),
        betas: Field::Given(train.betas),
        eps: Field::Given(train.eps),
        max_grad_norm: Field::Given(train.max_grad_norm.map_or(OrOff::Off(Off), OrOff::On)),
        recompute: name(train.recompute),
        seed: integer("train.seed", train.seed)?,
        eval_every: integer_or_off("train.eval_every", train.eval_every.map(NonZeroU64::get))?,
        save_every: integer_or_off("train.save_every", train.save_every.map(NonZeroU64::get))?,
        keep_last: integer_or_off("train.keep_last", train.keep_last.map(|n| n.get() as u64))?,
        log_every: integer("train.log_every", train.log_every.get())?,
        tensorboard: Field::Given(train.tensorboard),
        threads: match train.threads {
            Some(threads) => integer("train.threads", threads.get() as u64)?,
            None => Field::Absent,
        },
        unknown: Table::new(),
    })
}

fn name<T: Choice>(choice: T) -> Field<String> {
    Field::Given(choice.name().to_owned())
}

fn integer(key: &'static str, found: u64) -> Result<Field<i64>, WriteError> {
    i64::try_from(found).map(Field::Given).map_err(|_| WriteError::TooLarge { key, found })
}

fn integer_or_off(key: &'static str, number: Option<u64>) -> Result<Field<OrOff<i64>>, WriteError> {
    let number = number
        .map(|found| i64::try_from(found).map_err(|_| WriteError::TooLarge { key, found }))
        .transpose()?;
    Ok(Field::Given(number.map_or(OrOff::Off(Off), OrOff::On)))
}
