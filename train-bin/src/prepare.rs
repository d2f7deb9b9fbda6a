//! From a checked configuration to what the loop needs: examples, the plan in numbers, a model that can be trained.

use std::path::PathBuf;

use emberlm_data::{
    DataError, Dataset, Example, ExampleOptions, Format, SourcedRow, TemplateChoice, TextTokenizer,
    read_rows,
};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{LoraConfig, Targets, inject};
use emberlm_model::CausalLm;
use emberlm_quant::Quantization;

use crate::adamw::AdamWConfig;
use crate::base::Base;
use crate::builtin;
use crate::config::{
    self, DataSource, Duration, LoraSection, LoraStart, RunConfig, Template, Warmup,
};
use crate::footprint::Workload;
use crate::optimizer::OptimizerConfig;
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
}

impl Data {
    pub(crate) fn read(config: &RunConfig, tokenizer: &TextTokenizer) -> Result<Self, RunError> {
        let options = ExampleOptions {
            max_length: Some(config.data.max_length),
            template: template_choice(config.data.template),
            date: Some(config.data.date.clone()),
        };
        let format: Format = config.data.format.parse()?;
        let (train, eval, prompts) = match &config.data.source {
            DataSource::Builtin => {
                (builtin::train_rows()?, builtin::heldout_rows()?, builtin::prompts())
            }
            DataSource::Files { train, eval } => {
                (read_all(train, format)?, read_all(eval, format)?, Vec::new())
            }
        };
        let eval = match eval.as_slice() {
            [] => None,
            rows => Some(Dataset::build(rows, tokenizer, &options)?),
        };
        Ok(Self { train: Dataset::build(train, tokenizer, &options)?, eval, prompts })
    }
}

/// The data crate's name for a configured template.
pub fn template_choice(template: Template) -> TemplateChoice {
    match template {
        Template::Auto => TemplateChoice::Auto,
        Template::None => TemplateChoice::None,
    }
}

/// The rows of several files, one after another.
///
/// # Errors
/// [`DataError`] of the first file that can't be read.
pub fn read_all(files: &[PathBuf], format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let mut rows = Vec::new();
    for file in files {
        rows.extend(read_rows(file, format)?);
    }
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
    let adamw = AdamWConfig { beta1, beta2, eps: train.eps, weight_decay: train.weight_decay };
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
        optimizer: match train.optimizer {
            config::Optimizer::AdamW => OptimizerConfig::AdamW(adamw),
            config::Optimizer::AdamW8bit => OptimizerConfig::AdamW8bit(adamw),
        },
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
    let config = lora_config(lora)?;
    match &lora.start {
        LoraStart::Fresh { .. } => {
            inject(model.linears_mut(), &config, seed, device)?;
        }
        LoraStart::InitFrom(path) => {
            AdapterFolder::open(path)?.apply(model.linears_mut(), device)?;
            for named in model.linears_mut() {
                if let Some(adapter) = &mut named.linear.adapter {
                    adapter.dropout = lora.dropout;
                }
            }
        }
    }
    Ok((model, Some(config)))
}

/// The lora crate's form of the section; that of the adapter where it goes on with one.
fn lora_config(lora: &LoraSection) -> Result<LoraConfig, RunError> {
    Ok(match &lora.start {
        LoraStart::Fresh { r, alpha, target_modules, use_rslora } => LoraConfig {
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
        },
        LoraStart::InitFrom(path) => {
            LoraConfig { dropout: lora.dropout, ..AdapterFolder::open(path)?.config }
        }
    })
}

/// The largest step of a run, as far as memory depends on it.
pub(crate) fn workload<'a>(
    config: &RunConfig,
    base: &'a Base,
    data: &Dataset,
    plan: &Plan,
) -> Result<Workload<'a>, RunError> {
    let stored = base.config.quantization.as_ref().map(|stored| Quantization {
        format: stored.format,
        double_quant: stored.double_quant,
        skip_modules: stored.skip_modules.clone(),
    });
    let rows = config.train.micro_batch_size.get().min(data.examples.len());
    let targets = data.examples.iter().map(Example::supervised).max().unwrap_or(0);
    Ok(Workload {
        model: &base.config,
        quantization: stored.or_else(|| config.model.quantization()),
        lora: config.lora.as_ref().map(lora_config).transpose()?,
        rows,
        seq: data.summary.longest,
        targets: rows * targets,
        grad_accumulation: config.train.grad_accumulation.get(),
        recompute: config.train.recompute,
        optimizer: plan.optimizer,
    })
}
