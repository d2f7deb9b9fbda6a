//! Preparing a run from its configuration: examples, the plan in numbers, the trainable model.

use std::path::{Path, PathBuf};

use emberlm_data::{
    CacheEvent, Cached, DataError, DataFiles, Dataset, ExampleOptions, Faults, Format, Layout,
    Loader, LoaderOptions, OnError, ReadOptions, Rejects, RowShape, Share, SourcedRow, Summary,
    TextTokenizer, data_files, read_all_rows,
};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::{LoraConfig, inject};
use emberlm_model::{CausalLm, WeightForm};
use emberlm_quant::Quantization;

use crate::base::builtin;
use crate::base::vocabulary::adapted;
use crate::base::{Base, BaseError};
use crate::config::{DataSource, Duration, LoraSection, LoraStart, MixtureSource, RunConfig};
use crate::memory::footprint::Workload;
use crate::run::error::RunError;
use crate::trainer::backend::activations;
use crate::trainer::freeze::freeze_except;
use crate::trainer::plan::Plan;
use crate::trainer::step::TrainBackend;

/// The examples of a run.
pub(crate) struct Data {
    /// The training data.
    pub(crate) train: Dataset,
    /// The evaluation data.
    pub(crate) eval: Option<Dataset>,
    /// Sample prompts, answered at each evaluation.
    pub(crate) prompts: Vec<String>,
    /// Skipped invalid rows.
    pub(crate) skipped: Faults,
    /// Examples that an epoch draws from each source of a mixture.
    pub(crate) mixture: Vec<SourceDraws>,
}

/// Examples that an epoch draws from a source of a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDraws {
    /// The source's files.
    pub paths: Vec<PathBuf>,
    /// Examples in the source.
    pub examples: usize,
    /// Examples drawn per epoch.
    pub draws: usize,
}

impl Data {
    /// Reads and tokenizes the training and evaluation data. `on_event` is called with events of the cache.
    pub(crate) fn read(
        config: &RunConfig,
        tokenizer: &TextTokenizer,
        on_event: &mut dyn FnMut(CacheEvent),
    ) -> Result<Self, RunError> {
        let section = &config.data;
        let options = ExampleOptions {
            max_length: Some(section.max_length),
            template: section.template,
            train_on: section.train_on,
            date: Some(section.date.clone()),
        };
        let read = section.reading.options(&section.format)?;
        let mut rejects = section.reading.rejects()?;
        let in_memory = |rows: Vec<SourcedRow>| Dataset::build(rows, tokenizer, &options);
        let mut of_files = |files: &[PathBuf]| {
            let files = &data_files(files)?;
            let data = DataFiles { files, read: &read, tokenizer, options: &options };
            match &section.cache_dir {
                None => Dataset::of_files(data, &mut rejects),
                Some(folder) => Cached { folder, data }.load(&mut rejects, &mut *on_event),
            }
        };
        let train = match &section.source {
            DataSource::Builtin => in_memory(builtin::train_rows()?)?,
            DataSource::Files { train, .. } => of_files(train)?,
            DataSource::Mixture { source: sources, .. } => {
                let mut parts = Vec::with_capacity(sources.len());
                for source in sources {
                    parts.push((of_files(&source.path)?, source.weight));
                }
                Dataset::mixture(parts)
            }
        };
        let prompts = match &section.source {
            DataSource::Builtin if section.prompts.is_empty() => builtin::prompts(),
            _ => section.prompts.clone(),
        };
        let eval = match &section.source {
            DataSource::Builtin => Some(in_memory(builtin::heldout_rows()?)?),
            DataSource::Files { eval, .. } | DataSource::Mixture { eval, .. } => {
                if eval.is_empty() { None } else { Some(of_files(eval)?) }
            }
        };
        let mixture = match &section.source {
            DataSource::Mixture { source: sources, .. } => source_draws(sources, &train),
            _ => Vec::new(),
        };
        let skipped = rejects.finish()?;
        Ok(Self { train, eval, prompts, mixture, skipped })
    }
}

fn source_draws(sources: &[MixtureSource], data: &Dataset) -> Vec<SourceDraws> {
    let draws = Loader::new(data, LoaderOptions::default()).draws();
    let counts = data.shares.iter().zip(draws);
    let drawn = |(source, (share, draws)): (&MixtureSource, (&Share, usize))| SourceDraws {
        paths: source.path.clone(),
        examples: share.examples,
        draws,
    };
    sources.iter().zip(counts).map(drawn).collect()
}

/// The rows of files, folders and patterns, in order.
///
/// # Errors
/// [`DataError`] of the first unreadable file, or of all invalid rows.
pub fn read_all(files: &[PathBuf], format: Format) -> Result<Vec<SourcedRow>, DataError> {
    let options = ReadOptions { shape: RowShape::Keys(format), ..ReadOptions::default() };
    let mut rejects = Rejects::new(OnError::Fail, None)?;
    let rows = read_all_rows(files, &options, &mut rejects)?;
    rejects.finish()?;
    Ok(rows)
}

/// The plan of a configuration on a data set.
pub(crate) fn plan(config: &RunConfig, data: &Dataset) -> Result<Plan, RunError> {
    let train = &config.train;
    let mut plan = Plan {
        steps: 0,
        rows: 0,
        micro_batch_size: train.micro_batch_size.get(),
        grad_accumulation: train.grad_accumulation.get(),
        learning_rate: train.learning_rate_over(0),
        optimizer: train.optimizer_config(),
        clip: train.clip,
        recompute: train.recompute,
        neftune_alpha: train.neftune_alpha,
        seed: train.seed,
        shuffle: config.data.shuffle,
        layout: match (config.data.packing, config.data.group_by_length) {
            (true, _) => Layout::Packed,
            (false, true) => Layout::ByLength { micro_batch: train.micro_batch_size.get() },
            (false, false) => Layout::OnePerRow,
        },
        guards: train.monitoring.guards,
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
    plan.learning_rate = train.learning_rate_over(plan.steps);
    Ok(plan)
}

/// The model, ready for training as configured: with the weights of a checkpoint, or as before the first step.
pub(crate) fn trainable<A: TrainBackend>(
    config: &RunConfig,
    base: &Base,
    checkpoint: Option<&Path>,
    device: &A::Device,
) -> Result<(CausalLm<A>, Option<LoraConfig>), RunError> {
    let seed = config.train.seed;
    let model = match (&config.lora, checkpoint) {
        (None, Some(checkpoint)) => base.build_from::<A>(checkpoint, device)?,
        _ => {
            let quantization = config.model.quantization();
            let form =
                WeightForm { dtype: config.model.dtype, quantization: quantization.as_ref() };
            base.build::<A>(form, device)?
        }
    };
    if let (None, Some((_, weight))) = (&config.lora, model.quantized().first()) {
        let (base, format) = (base.name.clone(), weight.format());
        return Err(RunError::QuantizedBase { base, format });
    }
    let from_checkpoint = match (&config.lora, checkpoint) {
        (Some(lora), Some(path)) => Some(LoraSection {
            start: LoraStart::InitFrom { init_from: path.into() },
            ..lora.clone()
        }),
        _ => None,
    };
    let lora = from_checkpoint.as_ref().or(config.lora.as_ref());
    prepare(model, lora, &config.train.trainable, &base.added_tokens, seed, device)
}

/// Makes the model trainable as configured: adapters, or the model itself.
pub(crate) fn prepare<A: TrainBackend>(
    mut model: CausalLm<A>,
    lora: Option<&LoraSection>,
    trainable: &[String],
    added_tokens: &[usize],
    seed: u64,
    device: &A::Device,
) -> Result<(CausalLm<A>, Option<LoraConfig>), RunError> {
    let Some(lora) = lora else {
        return Ok((freeze_except(model, trainable)?, None));
    };
    let config = lora_config(lora)?;
    match &lora.start {
        LoraStart::Fresh { .. } => {
            inject(model.linears_mut(), &config, seed, device)?;
        }
        LoraStart::InitFrom { init_from: path } => {
            model = adapted(model, &AdapterFolder::open(path)?, device)?;
            for named in model.linears_mut() {
                if let Some(adapter) = &mut named.linear.adapter {
                    adapter.dropout = lora.dropout;
                }
            }
        }
    }
    // A checkpoint already has them.
    if !added_tokens.is_empty() && model.model.embed_tokens.tokens.is_none() {
        if model.lm_head.as_ref().is_some_and(|head| head.adapter.is_some()) {
            return Err(BaseError::HeadAdapter.into());
        }
        model = model.train_tokens(added_tokens);
    }
    Ok((model, Some(config)))
}

/// The base model of a configuration, with the added tokens of the configuration or of the initial adapter.
pub(crate) fn open_base(config: &RunConfig) -> Result<Base, RunError> {
    let base = Base::open(&config.model.source, config.train.seed)?;
    let init_from = config.lora.as_ref().and_then(|lora| match &lora.start {
        LoraStart::InitFrom { init_from: path } => Some(path.as_path()),
        LoraStart::Fresh { .. } => None,
    });
    Ok(base.for_adapter(init_from)?.with_added_tokens(&config.model.add_tokens, init_from)?)
}

/// The lora crate's form of the section; with `init_from`, the section of the initial adapter.
fn lora_config(lora: &LoraSection) -> Result<LoraConfig, RunError> {
    Ok(match &lora.start {
        LoraStart::Fresh { r, alpha, target_modules, use_rslora } => LoraConfig {
            r: r.get(),
            alpha: *alpha,
            dropout: lora.dropout,
            targets: target_modules.clone(),
            use_rslora: *use_rslora,
            ..LoraConfig::default()
        },
        LoraStart::InitFrom { init_from: path } => {
            LoraConfig { dropout: lora.dropout, ..AdapterFolder::open(path)?.config }
        }
    })
}

/// The largest step of a run, as far as memory depends on it.
pub(crate) fn workload<'a>(
    config: &'a RunConfig,
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
    // The largest micro-batch may have a larger supervised share than the mean.
    let share = (1.5 * supervised_tokens as f64 / tokens.max(1) as f64).min(1.0);
    let targets = (share * (rows * seq) as f64).ceil() as usize;
    Ok(Workload {
        model: &base.config,
        quantization: stored.or_else(|| config.model.quantization()),
        dtype: config.model.dtype,
        activations: activations(config.model.backend, config.model.dtype),
        lora: config.lora.as_ref().map(lora_config).transpose()?,
        trainable: &config.train.trainable,
        rows,
        seq,
        targets,
        grad_accumulation: config.train.grad_accumulation.get(),
        recompute: config.train.recompute,
        optimizer: plan.optimizer.algorithm,
    })
}

/// The token that pads short rows of a batch; it is masked, so any will do.
pub fn pad_id(tokenizer: &TextTokenizer) -> u32 {
    tokenizer.pad_id().or(tokenizer.eos_id()).unwrap_or(0)
}
