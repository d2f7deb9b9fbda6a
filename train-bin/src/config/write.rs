//! From the checked configuration back to the raw one, which serde writes.

use std::num::NonZeroU64;
use std::path::PathBuf;

use toml::Table;

use super::choice::Choice;
use super::error::WriteError;
use super::merge::absolute;
use super::raw::{
    Field, Off, OrOff, Paths, RawConfig, RawData, RawLora, RawModel, RawReading, RawSource,
    RawTargets, RawTrain, RawTuning, RawWatch,
};
use super::tuning::{Clip, DecaySpan, Optimizer, Schedule};
use super::{
    DataSection, DataSource, Duration, Layout, LoraSection, LoraStart, ModelSection, ModelSource,
    Reading, RunConfig, Targets, TrainSection, Warmup, Watch,
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
        add_tokens: Some(model.add_tokens.clone()).filter(|tokens| !tokens.is_empty()).into(),
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
        prompts: Some(data.prompts.clone()).filter(|prompts| !prompts.is_empty()).into(),
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
        neftune_alpha: train.neftune_alpha.into(),
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
        trainable: Some(train.trainable.clone()).filter(|names| !names.is_empty()).into(),
        watch: raw_watch(&train.watch)?,
        tuning: raw_tuning(train)?,
        unknown: Table::new(),
    })
}

fn raw_watch(watch: &Watch) -> Result<RawWatch, WriteError> {
    let Watch { guards, .. } = watch;
    Ok(RawWatch {
        on_nonfinite: name(guards.on_nonfinite),
        max_skipped: integer("train.max_skipped", guards.max_skipped)?,
        on_spike: name(guards.on_spike),
        spike_threshold: Field::Given(guards.spike_threshold),
        save_best: Field::Given(watch.save_best),
        result: name(watch.result),
        patience: integer_or_off("train.patience", watch.patience.map(NonZeroU64::get))?,
        min_improvement: Field::Given(watch.min_improvement),
        debug: Field::Given(watch.debug),
    })
}

/// The constants that mean something beside what is chosen.
fn raw_tuning(train: &TrainSection) -> Result<RawTuning, WriteError> {
    let tuning = &train.tuning;
    let mut raw = RawTuning {
        lora_plus_ratio: tuning.lora_plus_ratio.into(),
        embedding_learning_rate: tuning.embedding_learning_rate.into(),
        decay_norms_and_biases: Field::Given(tuning.decay_norms_and_biases),
        clip: name(tuning.clip),
        ..RawTuning::default()
    };
    if let Some(steps) = tuning.calibrate_ab {
        raw.calibrate_ab = integer_or_off("train.calibrate_ab", Some(steps.get()))?;
    }
    if train.optimizer.has_momentum() {
        raw.momentum = Field::Given(tuning.momentum);
        raw.nesterov = Field::Given(tuning.nesterov);
    }
    if train.optimizer == Optimizer::Muon {
        raw.muon_scale = name(tuning.muon_scale);
    }
    if train.optimizer == Optimizer::Adafactor {
        raw.clip_threshold = Field::Given(tuning.clip_threshold);
    }
    if train.schedule == Schedule::Wsd {
        match tuning.decay {
            DecaySpan::Steps(steps) => {
                raw.decay_steps = integer("train.decay_steps", steps.get())?;
            }
            DecaySpan::Ratio(share) => raw.decay_ratio = Field::Given(share),
        }
        raw.decay_shape = name(tuning.decay_shape);
    }
    if train.schedule == Schedule::Polynomial {
        raw.power = Field::Given(tuning.power);
    }
    if tuning.clip == Clip::PerTensor {
        raw.clip_factor = Field::Given(tuning.clip_factor);
        raw.clip_decay = Field::Given(tuning.clip_decay);
    }
    Ok(raw)
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
