//! A whole run: from a checked configuration to a saved result.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::AutodiffModule;
use emberlm_data::{CacheEvent, DataError, Faults, Message, Summary, TextTokenizer, preview};
use emberlm_lora::peft::PeftError;
use emberlm_lora::walk::{ParamCount, count_params};
use emberlm_lora::{InjectError, LoraConfigError};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig, WeightForm};
use emberlm_quant::QuantFormat;
use emberlm_quant::tensor_file::FloatDtype;
use serde::Serialize;

use crate::backend::{BackendError, Job, resolve, run_on};
use crate::base::{Base, BaseError};
use crate::check::TrainError;
use crate::config::{Backend, Choice, RunConfig};
use crate::evaluate::{Evaluation, evaluate_in};
use crate::footprint::Need;
use crate::generate::{GenerateError, Generator, Sampling};
use crate::memory::{available_memory, peak_memory_mib};
use crate::prepare::{Data, Drawn, plan, prepare, workload};
use crate::run_folder::{Product, RunFolder, RunFolderError};
use crate::step::TrainBackend;
use crate::train::{Flow, Plan, StepLog, train};

/// What happens in a run, for whoever shows it.
pub enum Event<'a> {
    /// Tokens were found in the cache, or written to it.
    Cache(CacheEvent),
    /// Rows at fault were skipped, as the configuration allows.
    Skipped {
        /// They.
        faults: &'a Faults,
    },
    /// The data has been read.
    Data {
        /// Of the rows to learn from.
        train: &'a Summary,
        /// Of the rows to evaluate on.
        eval: Option<&'a Summary>,
        /// What an epoch draws from each source, if it is a mixture.
        mixture: &'a [Drawn],
        /// One example, its trained part marked.
        preview: &'a dyn Fn(bool) -> String,
    },
    /// How much memory a step will need.
    Memory {
        /// Beside what there is.
        need: &'a Need,
    },
    /// The model stands, and training is about to begin.
    Model {
        /// The backend's name.
        backend: &'static str,
        /// Elements that are trained, and all.
        count: ParamCount,
        /// The plan in numbers.
        plan: &'a Plan,
        /// Rows of the first epoch.
        rows: u64,
    },
    /// An evaluation after `step` steps.
    Evaluated {
        /// Steps made.
        step: u64,
        /// What it found.
        evaluation: Evaluation,
    },
    /// A sample prompt and its answer after `step` steps.
    Answered {
        /// Steps made.
        step: u64,
        /// The question.
        prompt: &'a str,
        /// The answer.
        answer: &'a str,
    },
    /// A step was made.
    Step {
        /// What it did.
        log: &'a StepLog,
        /// Tokens without padding, a second.
        tokens_per_s: f64,
    },
    /// Something was saved.
    Saved {
        /// Where.
        path: PathBuf,
    },
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// How much memory a step was expected to need.
    pub memory: Need,
    /// Elements that were trained, and all.
    pub count: ParamCount,
    /// Steps made.
    pub steps: u64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// On the rows to evaluate on, before the first step and after the last.
    pub evaluations: Option<(Evaluation, Evaluation)>,
    /// Prompt, answer before, answer after.
    pub answers: Vec<(String, String, String)>,
    /// Where the result lies; `None` after a dry run.
    pub saved: Option<PathBuf>,
    /// Whether the result is an adapter.
    pub is_adapter: bool,
    /// Wall-clock time of the training loop.
    pub seconds: f64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is what its type says")]
pub enum RunError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Lora(#[from] LoraConfigError),
    #[error(transparent)]
    Adapter(#[from] PeftError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A base that is stored quantized, to be trained whole.
    #[error(
        "{base} is stored as {format}, and quantized weights cannot be trained themselves. Add a section [lora], or train the dense model it was made from"
    )]
    QuantizedBase { base: String, format: QuantFormat },
    /// An epoch's share that makes no step.
    #[error(
        "train.epochs = {epochs} of {examples} examples is less than one example; ask for more epochs, or for train.steps"
    )]
    NoSteps { epochs: f64, examples: usize },
}

/// Options that are not part of the configuration, because they don't change the result.
pub struct RunOptions<'a> {
    /// Stop before the first step, and write nothing.
    pub dry_run: bool,
    /// Set from outside to stop after the current step and save.
    pub interrupt: &'a AtomicBool,
}

/// Runs a configuration from beginning to end.
///
/// # Errors
/// [`RunError`]. Whatever fails before the first step has written nothing but `config.toml`.
pub fn run(
    config: &RunConfig,
    options: RunOptions<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Report, RunError> {
    let base = Base::open(&config.model.source, config.train.seed)?;
    let data = Data::read(config, &base.tokenizer, &mut |event| on_event(Event::Cache(event)))?;
    if !data.skipped.is_empty() {
        on_event(Event::Skipped { faults: &data.skipped });
    }
    let preview = |ansi| preview(&data.train.examples.get(0), &base.tokenizer, ansi);
    let eval_summary = data.eval.as_ref().map(|eval| &eval.summary);
    on_event(Event::Data {
        train: &data.train.summary,
        eval: eval_summary,
        mixture: &data.mixture,
        preview: &preview,
    });
    let plan = plan(config, &data.train)?;
    let backend = resolve(config.model.backend);
    let need = Need::of(&workload(config, &base, &data.train, &plan)?, available(backend))?;
    on_event(Event::Memory { need: &need });
    let (base, data, plan) = (&base, &data, &plan);
    run_on(backend, RunJob { config, options, on_event, base, data, plan, backend, need })?
}

/// How much memory a run will need, before its weights are read. `available`: bytes that there are, instead of those
/// that this machine has free.
///
/// # Errors
/// [`RunError`], as for the run itself as far as its configuration, its data and its model's files are concerned.
pub fn memory_need(config: &RunConfig, available: Option<u64>) -> Result<Need, RunError> {
    let base = Base::open(&config.model.source, config.train.seed)?;
    let data = Data::read(config, &base.tokenizer, &mut |_| ())?;
    let available = available.or_else(|| self::available(resolve(config.model.backend)));
    let plan = plan(config, &data.train)?;
    Ok(Need::of(&workload(config, &base, &data.train, &plan)?, available)?)
}

/// Memory that a backend's device has free; `None` for GPUs, which don't tell.
fn available(backend: Backend) -> Option<u64> {
    match backend {
        Backend::Flex | Backend::NdArray => available_memory(),
        Backend::Auto | Backend::Wgpu | Backend::Cuda => None,
    }
}

struct RunJob<'a, 'o> {
    config: &'a RunConfig,
    options: RunOptions<'a>,
    on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    base: &'a Base,
    data: &'a Data,
    plan: &'a Plan,
    backend: Backend,
    need: Need,
}

/// A row of `metrics.jsonl` for a step.
#[derive(Serialize)]
struct StepRow {
    step: u64,
    epoch: f64,
    loss: f64,
    grad_norm: f64,
    learning_rate: f64,
    supervised_tokens: usize,
    tokens: usize,
    padding: f64,
    tokens_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_mib: Option<u64>,
}

/// A row of `metrics.jsonl` for an evaluation.
#[derive(Serialize)]
struct EvalRow {
    step: u64,
    eval_loss: f64,
    eval_perplexity: f64,
    eval_supervised_tokens: usize,
}

impl Job for RunJob<'_, '_> {
    type Output = Result<Report, RunError>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { config, options, on_event, base, data, plan, backend, need } = self;
        let seed = config.train.seed;
        let quantization = config.model.quantization();
        let form =
            WeightForm { dtype: config.model.dtype.float(), quantization: quantization.as_ref() };
        let model = base.build::<A>(form, &device)?;
        let quantized = model.quantized();
        if let (None, Some((_, weight))) = (&config.lora, quantized.first()) {
            let (base, format) = (base.name.clone(), weight.format());
            return Err(RunError::QuantizedBase { base, format });
        }
        // They are no parameters of the module, but they are of the model.
        let frozen: usize =
            quantized.iter().map(|(_, weight)| weight.dims().iter().product::<usize>()).sum();
        let (model, lora) = prepare(model, config.lora.as_ref(), seed, &device)?;
        let mut count = count_params::<A, _>(&model);
        count.total += frozen;
        let rows = plan.loader(&data.train).rows_of(0);
        on_event(Event::Model { backend: backend.name(), count, plan, rows });
        let mut report = Report {
            memory: need,
            count,
            steps: 0,
            interrupted: false,
            evaluations: None,
            answers: Vec::new(),
            saved: None,
            is_adapter: lora.is_some(),
            seconds: 0.0,
        };
        if options.dry_run {
            return Ok(report);
        }
        let product = match &lora {
            Some(config) => Product::Adapter { config, base: &base.name },
            None => Product::Model {
                config_text: &base.config_text,
                dtype: declared_dtype(&base.config_text).unwrap_or(base.stored_dtype()),
            },
        };
        let mut folder = RunFolder::create(config)?;
        let pad_id = pad_id(&base.tokenizer);
        let date = config.data.date.as_str();
        let look = Look { base, data, pad_id, plan, date };
        let before = look.evaluate(&model.valid(), 0, &mut folder, on_event)?;
        let answers_before = look.answers(&model.valid(), 0, on_event)?;

        let started = Instant::now();
        let mut last = started;
        let model = train(model, &base.config, &data.train, pad_id, plan, |log, model| {
            let tokens_per_s = log.tokens as f64 / last.elapsed().as_secs_f64();
            folder.log(&StepRow {
                step: log.step,
                epoch: log.epoch,
                loss: log.loss,
                grad_norm: log.grad_norm,
                learning_rate: log.learning_rate,
                supervised_tokens: log.supervised_tokens,
                tokens: log.tokens,
                padding: log.padding,
                tokens_per_s,
                peak_memory_mib: peak_memory_mib(),
            })?;
            on_event(Event::Step { log, tokens_per_s });
            report.steps = log.step;
            let is_last = log.step == plan.steps;
            let due = |every: Option<std::num::NonZeroU64>| {
                !is_last && every.is_some_and(|every| log.step.is_multiple_of(every.get()))
            };
            if due(config.train.eval_every) {
                look.evaluate(&model.valid(), log.step, &mut folder, on_event)?;
            }
            if due(config.train.save_every) {
                let keep = config.train.keep_last.map(std::num::NonZeroUsize::get);
                let path = folder.save_checkpoint(
                    log.step,
                    model.valid(),
                    &product,
                    &base.tokenizer,
                    keep,
                )?;
                on_event(Event::Saved { path });
            }
            last = Instant::now();
            if options.interrupt.load(Ordering::Relaxed) && !is_last {
                report.interrupted = true;
                return Ok::<_, RunError>(Flow::Stop);
            }
            Ok(Flow::Continue)
        })?;
        report.seconds = started.elapsed().as_secs_f64();

        let model = model.valid();
        folder.save(model.clone(), &product, &base.tokenizer)?;
        report.saved = Some(folder.path().to_path_buf());
        on_event(Event::Saved { path: folder.path().to_path_buf() });
        if !report.interrupted {
            let after = look.evaluate(&model, report.steps, &mut folder, on_event)?;
            report.evaluations = before.zip(after);
            let after = look.answers(&model, report.steps, on_event)?;
            report.answers = data
                .prompts
                .iter()
                .zip(answers_before.into_iter().zip(after))
                .map(|(prompt, (before, after))| (prompt.clone(), before, after))
                .collect();
        }
        Ok(report)
    }
}

/// How a run looks at its model from outside.
struct Look<'a> {
    base: &'a Base,
    data: &'a Data,
    pad_id: u32,
    plan: &'a Plan,
    date: &'a str,
}

impl Look<'_> {
    fn evaluate<B: ModelBackend>(
        &self,
        model: &CausalLm<B>,
        step: u64,
        folder: &mut RunFolder,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Evaluation>, RunError> {
        let Some(eval) = &self.data.eval else { return Ok(None) };
        let Plan { layout, micro_batch_size, .. } = *self.plan;
        let config = &self.base.config;
        let evaluation = evaluate_in(layout, model, config, eval, self.pad_id, micro_batch_size);
        folder.log(&EvalRow {
            step,
            eval_loss: evaluation.loss,
            eval_perplexity: evaluation.perplexity,
            eval_supervised_tokens: evaluation.supervised_tokens,
        })?;
        on_event(Event::Evaluated { step, evaluation });
        Ok(Some(evaluation))
    }

    fn answers<B: ModelBackend>(
        &self,
        model: &CausalLm<B>,
        step: u64,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<String>, RunError> {
        let Base { config, tokenizer, .. } = self.base;
        let sampling = Sampling { max_new_tokens: 48, ..Sampling::default() };
        let stop_ids = stop_ids(config, tokenizer);
        let mut generator = Generator::new(model, config, tokenizer);
        let mut answers = Vec::new();
        for prompt in &self.data.prompts {
            let messages = [Message::new("user", prompt)];
            let text = tokenizer
                .render_on(&messages, None, true, Some(self.date))
                .map_err(DataError::from)?;
            let ids = tokenizer.encode(&text)?;
            let answer = generator.answer(&ids, &sampling, &stop_ids, |_| ())?.text;
            let answer = answer.trim().to_string();
            on_event(Event::Answered { step, prompt, answer: &answer });
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// The token that fills short rows of a batch; it is masked, so any will do.
pub fn pad_id(tokenizer: &TextTokenizer) -> u32 {
    tokenizer.pad_id().or(tokenizer.eos_id()).unwrap_or(0)
}

/// Tokens that end an answer: the tokenizer's and the model's.
pub fn stop_ids(
    config: &ModelConfig,
    tokenizer: &TextTokenizer,
) -> std::collections::BTreeSet<u32> {
    let mut ids = tokenizer.stop_ids();
    ids.extend(&config.eos_token_ids);
    ids
}

/// The float type that a `config.json` says its weights are in.
fn declared_dtype(config_text: &str) -> Option<FloatDtype> {
    let config: serde_json::Value = serde_json::from_str(config_text).ok()?;
    let name = config.get("dtype").or_else(|| config.get("torch_dtype"))?.as_str()?;
    [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16]
        .into_iter()
        .find(|d| d.torch_name() == name)
}
