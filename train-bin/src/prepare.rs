//! From a checked configuration to what the loop needs: examples, the plan in numbers, a model that can be trained.

use std::path::PathBuf;

use emberlm_data::{
    CacheEvent, Cached, DataError, Dataset, ExampleOptions, Faults, Format, Layout, Loader,
    LoaderOptions, OnError, ReadOptions, Rejects, RowShape, Share, Sink, SourcedRow, Summary,
    TemplateChoice, TextTokenizer, data_files, for_each_batch, read_all_rows,
};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{LoraConfig, Targets, inject};
use emberlm_model::CausalLm;
use emberlm_quant::Quantization;

use crate::adamw::AdamWConfig;
use crate::backend::activations;
use crate::base::Base;
use crate::builtin;
use crate::config::{
    self, DataSource, Duration, LoraSection, LoraStart, MixtureSource, RunConfig, Template, Warmup,
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
    /// Rows that were skipped.
    pub(crate) skipped: Faults,
    /// What an epoch draws from each source, if it is a mixture.
    pub(crate) mixture: Vec<Drawn>,
}

/// What an epoch draws from a source of a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    /// The source's files.
    pub paths: Vec<PathBuf>,
    /// Examples it has.
    pub examples: usize,
    /// Examples drawn from it in an epoch.
    pub draws: usize,
}

impl Data {
    /// Reads and tokenizes what a run learns from and is evaluated on; `on_event` hears what becomes of the cache.
    pub(crate) fn read(
        config: &RunConfig,
        tokenizer: &TextTokenizer,
        on_event: &mut dyn FnMut(CacheEvent),
    ) -> Result<Self, RunError> {
        let section = &config.data;
        let options = ExampleOptions {
            max_length: Some(section.max_length),
            template: template_choice(section.template),
            train_on: section.train_on.turns(),
            date: Some(section.date.clone()),
        };
        let read = section.reading.options(&section.format)?;
        let mut rejects = section.reading.takes_faults()?;
        // All that decides which rows the files hold.
        let understood = format!("{} {:?}", section.format, section.reading);
        let in_memory = |rows: Vec<SourcedRow>| Dataset::build(rows, tokenizer, &options);
        let mut of_files = |files: &[PathBuf]| match &section.cache_dir {
            None => {
                let rows = read_all_rows(files, &read, &mut rejects)?;
                rejects.so_far()?;
                in_memory(rows)
            }
            Some(folder) => {
                let files = &data_files(files)?;
                let reading = &understood;
                let cached = Cached { folder, files, reading, tokenizer, options: &options };
                cached.load(|sink| read_into(files, &read, &mut rejects, sink), &mut *on_event)
            }
        };
        let (train, prompts) = match &section.source {
            DataSource::Builtin => (in_memory(builtin::train_rows()?)?, builtin::prompts()),
            DataSource::Files { train, .. } => (of_files(train)?, Vec::new()),
            DataSource::Mixture { sources, .. } => {
                let mut parts = Vec::with_capacity(sources.len());
                for source in sources {
                    parts.push((of_files(&source.paths)?, source.weight));
                }
                (Dataset::mixture(parts), Vec::new())
            }
        };
        let eval = match &section.source {
            DataSource::Builtin => Some(in_memory(builtin::heldout_rows()?)?),
            DataSource::Files { eval, .. } | DataSource::Mixture { eval, .. } => {
                if eval.is_empty() { None } else { Some(of_files(eval)?) }
            }
        };
        let mixture = match &section.source {
            DataSource::Mixture { sources, .. } => drawn(sources, &train),
            _ => Vec::new(),
        };
        let skipped = rejects.finish()?;
        Ok(Self { train, eval, prompts, mixture, skipped })
    }
}

/// Gives the rows of files to a sink, in order; the next ones are read while it is at work. Rows at fault go to `rejects`.
fn read_into(
    files: &[PathBuf],
    read: &ReadOptions,
    rejects: &mut Rejects,
    sink: &mut Sink<'_>,
) -> Result<(), DataError> {
    for_each_batch(files, read, |batch| {
        let mut rows = Vec::with_capacity(batch.len());
        for row in batch {
            match row {
                Ok((row, ..)) => rows.push(Ok(row)),
                Err(fault) => rejects.take(fault)?,
            }
        }
        sink(rows)
    })?;
    // Before the sink's owner takes what it has for the whole.
    rejects.so_far()
}

fn drawn(sources: &[MixtureSource], data: &Dataset) -> Vec<Drawn> {
    let draws = Loader::new(data, LoaderOptions::default()).draws();
    let counts = data.shares.iter().zip(draws);
    let drawn = |(source, (share, draws)): (&MixtureSource, (&Share, usize))| Drawn {
        paths: source.paths.clone(),
        examples: share.examples,
        draws,
    };
    sources.iter().zip(counts).map(drawn).collect()
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

/// Turns the configuration into numbers, for a data set.
pub(crate) fn plan(config: &RunConfig, data: &Dataset) -> Result<Plan, RunError> {
    let train = &config.train;
    let [beta1, beta2] = train.betas;
    let adamw = AdamWConfig { beta1, beta2, eps: train.eps, weight_decay: train.weight_decay };
    let mut plan = Plan {
        steps: 0,
        rows: 0,
        micro_batch_size: train.micro_batch_size.get(),
        grad_accumulation: train.grad_accumulation.get(),
        learning_rate: LearningRate {
            schedule: train.schedule,
            peak: train.learning_rate,
            floor: train.min_learning_rate,
            warmup: 0,
            steps: 0,
        },
        optimizer: match train.optimizer {
            config::Optimizer::AdamW => OptimizerConfig::AdamW(adamw),
            config::Optimizer::AdamW8bit => OptimizerConfig::AdamW8bit(adamw),
        },
        max_grad_norm: train.max_grad_norm,
        recompute: train.recompute,
        seed: train.seed,
        shuffle: config.data.shuffle,
        layout: match config.data.layout {
            config::Layout::OnePerRow => Layout::OnePerRow,
            config::Layout::ByLength => {
                Layout::ByLength { micro_batch: train.micro_batch_size.get() }
            }
            config::Layout::Packed => Layout::Packed,
        },
    };
    let per_step = plan.rows_per_step();
    (plan.steps, plan.rows) = match train.duration {
        Duration::Steps(steps) => (steps.get(), steps.get() * per_step),
        Duration::Epochs(epochs) => {
            let rows = plan.loader(data).rows_in(epochs);
            if rows == 0 {
                return Err(RunError::NoSteps { epochs, examples: data.examples.len() });
            }
            (rows.div_ceil(per_step), rows)
        }
    };
    plan.learning_rate.steps = plan.steps;
    plan.learning_rate.warmup = match train.warmup {
        Warmup::Steps(steps) => steps,
        Warmup::Ratio(share) => (share * plan.steps as f64).ceil() as u64,
    };
    Ok(plan)
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
    let Summary { tokens, supervised_tokens, longest, .. } = data.summary;
    let seq = match plan.layout {
        Layout::Packed => config.data.max_length.get(),
        Layout::OnePerRow | Layout::ByLength { .. } => longest,
    };
    let rows = plan.micro_batch_size.min(data.examples.len());
    // The largest micro-batch may well be supervised more than the mean one; all of it, it hardly is.
    let share = (1.5 * supervised_tokens as f64 / tokens.max(1) as f64).min(1.0);
    let targets = (share * (rows * seq) as f64).ceil() as usize;
    Ok(Workload {
        model: &base.config,
        quantization: stored.or_else(|| config.model.quantization()),
        dtype: config.model.dtype.float(),
        activations: activations(config.model.backend, config.model.dtype.float()),
        lora: config.lora.as_ref().map(lora_config).transpose()?,
        rows,
        seq,
        targets,
        grad_accumulation: config.train.grad_accumulation.get(),
        recompute: config.train.recompute,
        optimizer: plan.optimizer,
    })
}
