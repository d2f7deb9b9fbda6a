//! From a checked configuration to what the loop needs: examples, the plan in numbers, a model that can be trained.

use std::path::PathBuf;

use emberlm_data::{
    CacheEvent, Cached, DataError, DataFiles, Dataset, ExampleOptions, Faults, Format, Layout,
    Loader, LoaderOptions, OnError, ReadOptions, Rejects, RowShape, Share, SourcedRow, Summary,
    TextTokenizer, data_files, read_all_rows,
};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::{LoraConfig, inject};
use emberlm_model::CausalLm;
use emberlm_quant::Quantization;

use crate::base::builtin;
use crate::base::vocabulary::adapted;
use crate::base::{Base, BaseError};
use crate::config::{DataSource, Duration, LoraSection, LoraStart, MixtureSource, RunConfig};
use crate::memory::footprint::Workload;
use crate::run::RunError;
use crate::trainer::backend::activations;
use crate::trainer::freeze::freeze_except;
use crate::trainer::step::TrainBackend;
use crate::trainer::train::Plan;

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
            DataSource::Mixture { source: sources, .. } => drawn(sources, &train),
            _ => Vec::new(),
        };
        let skipped = rejects.finish()?;
        Ok(Self { train, eval, prompts, mixture, skipped })
    }
}

fn drawn(sources: &[MixtureSource], data: &Dataset) -> Vec<Drawn> {
    let draws = Loader::new(data, LoaderOptions::default()).draws();
    let counts = data.shares.iter().zip(draws);
    let drawn = |(source, (share, draws)): (&MixtureSource, (&Share, usize))| Drawn {
        paths: source.path.clone(),
        examples: share.examples,
        draws,
    };
    sources.iter().zip(counts).map(drawn).collect()
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

/// Makes the model trainable as configured: adapters, or everything.
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
    // A checkpoint has brought them along.
    if !added_tokens.is_empty() && model.model.embed_tokens.tokens.is_none() {
        if model.lm_head.as_ref().is_some_and(|head| head.adapter.is_some()) {
            return Err(BaseError::HeadAdapter.into());
        }
        model = model.train_tokens(added_tokens);
    }
    Ok((model, Some(config)))
}

/// The base that a configuration names, with the tokens that it adds, or that the adapter it begins with brings along.
pub(crate) fn open_base(config: &RunConfig) -> Result<Base, RunError> {
    let base = Base::open(&config.model.source, config.train.seed)?;
    let init_from = config.lora.as_ref().and_then(|lora| match &lora.start {
        LoraStart::InitFrom { init_from: path } => Some(path.as_path()),
        LoraStart::Fresh { .. } => None,
    });
    Ok(base.for_adapter(init_from)?.with_added_tokens(&config.model.add_tokens, init_from)?)
}

/// The lora crate's form of the section; that of the adapter where it goes on with one.
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
    // The largest micro-batch may well be supervised more than the mean one; all of it, it hardly is.
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
