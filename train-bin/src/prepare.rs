//! From a checked configuration to what the loop needs: examples, the plan in numbers, a model that can be trained.

use std::path::PathBuf;

use emberlm_data::{
    DataError, Dataset, ExampleOptions, Faults, Format, OnError, ReadOptions, Rejects, RowShape,
    SourcedRow, TemplateChoice, TextTokenizer, read_all_rows,
};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{LoraConfig, Targets, inject};
use emberlm_model::CausalLm;

use crate::adamw::AdamWConfig;
use crate::builtin;
use crate::config::{
    self, DataSource, Duration, LoraSection, LoraStart, RunConfig, Template, Warmup,
};
use crate::run::RunError;
use crate::schedule::LearningRate;
use crate::step::TrainBackend;
use crate::train::Plan;

/// The examples of a run.
pub(crate) struct Data {
    /// To learn from.
    pub(crate) train: Dataset,
    /// To evaluate on.
    pub(crate) eval: Option<Dataset>,
    /// Questions that are asked before and after.
    pub(crate) prompts: Vec<String>,
    /// Rows that were skipped.
    pub(crate) skipped: Faults,
}

impl Data {
    pub(crate) fn read(config: &RunConfig, tokenizer: &TextTokenizer) -> Result<Self, RunError> {
        let options = ExampleOptions {
            max_length: Some(config.data.max_length),
            template: template_choice(config.data.template),
            ..ExampleOptions::default()
        };
        let reading = &config.data.reading;
        let read = reading.options(&config.data.format)?;
        let mut rejects = reading.takes_faults()?;
        let (train, eval, prompts) = match &config.data.source {
            DataSource::Builtin => {
                (builtin::train_rows()?, builtin::heldout_rows()?, builtin::prompts())
            }
            DataSource::Files { train, eval } => {
                let mut read = |files: &[PathBuf]| read_all_rows(files, &read, &mut rejects);
                (read(train)?, read(eval)?, Vec::new())
            }
        };
        let skipped = rejects.finish()?;
        let eval = match eval.as_slice() {
            [] => None,
            rows => Some(Dataset::build(rows, tokenizer, &options)?),
        };
        Ok(Self { train: Dataset::build(train, tokenizer, &options)?, eval, prompts, skipped })
    }
}

/// The data crate's name for a configured template.
pub fn template_choice(template: Template) -> TemplateChoice {
    match template {
        Template::Auto => TemplateChoice::Auto,
        Template::None => TemplateChoice::None,
    }
}

/// The rows of files, folders and patterns, one after another.
///
/// # Errors
/// [`DataError`] of the first file that can't be read, or of all rows at fault.
pub fn read_all(files: &[PathBuf], format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let options = ReadOptions { shape: RowShape::Keys(format), ..ReadOptions::default() };
    let mut rejects = Rejects::new(OnError::Fail, None)?;
    let rows = read_all_rows(files, &options, &mut rejects)?;
    rejects.finish()?;
    Ok(rows)
}

/// Turns the configuration into numbers, for a data set of this many examples.
pub(crate) fn plan(config: &RunConfig, examples: usize) -> Result<Plan, RunError> {
    let train = &config.train;
    let per_step = (train.micro_batch_size.get() * train.grad_accumulation.get()) as u64;
    let (steps, total) = match train.duration {
        Duration::Steps(steps) => (steps.get(), steps.get() * per_step),
        Duration::Epochs(epochs) => {
            let total = (epochs * examples as f64).round() as u64;
            if total == 0 {
                return Err(RunError::NoSteps { epochs, examples });
            }
            (total.div_ceil(per_step), total)
        }
    };
    let warmup = match train.warmup {
        Warmup::Steps(steps) => steps,
        Warmup::Ratio(share) => (share * steps as f64).ceil() as u64,
    };
    let [beta1, beta2] = train.betas;
    Ok(Plan {
        steps,
        examples: total,
        micro_batch_size: train.micro_batch_size.get(),
        grad_accumulation: train.grad_accumulation.get(),
        learning_rate: LearningRate {
            schedule: train.schedule,
            peak: train.learning_rate,
            floor: train.min_learning_rate,
            warmup,
            steps,
        },
        adamw: AdamWConfig { beta1, beta2, eps: train.eps, weight_decay: train.weight_decay },
        max_grad_norm: train.max_grad_norm,
        recompute: train.recompute,
        seed: train.seed,
        shuffle: config.data.shuffle,
    })
}

/// Makes the model trainable as configured: adapters, or everything.
pub(crate) fn prepare<A: TrainBackend>(
    mut model: CausalLm<A>,
    lora: Option<&LoraSection>,
    seed: u64,
    device: &A::Device,
) -> Result<(CausalLm<A>, Option<LoraConfig>), RunError> {
    let Some(lora) = lora else {
        return Ok((set_trainable(model, |_| true), None));
    };
    let config = match &lora.start {
        LoraStart::Fresh { r, alpha, target_modules, use_rslora } => {
            let config = LoraConfig {
                r: r.get(),
                alpha: *alpha,
                dropout: lora.dropout,
                targets: match target_modules {
                    config::Targets::AllLinear => Targets::AllLinear,
                    config::Targets::Regex(pattern) => Targets::Regex(pattern.clone()),
                    config::Targets::List(names) => Targets::Names(names.clone()),
                },
                use_rslora: *use_rslora,
                ..LoraConfig::default()
            };
            inject(model.linears_mut(), &config, seed, device)?;
            config
        }
        LoraStart::InitFrom(path) => {
            let folder = AdapterFolder::open(path)?;
            folder.apply(model.linears_mut(), device)?;
            for named in model.linears_mut() {
                if let Some(adapter) = &mut named.linear.adapter {
                    adapter.dropout = lora.dropout;
                }
            }
            LoraConfig { dropout: lora.dropout, ..folder.config }
        }
    };
    Ok((model, Some(config)))
}
