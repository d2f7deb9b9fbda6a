//! What is done beside the steps: evaluating, writing down, saving, and stopping in time.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::AutodiffModule;
use emberlm_model::{CausalLm, ModelBackend};
use serde::Serialize;

use super::evaluator::Evaluator;
use super::{Event, Report, RunError};
use crate::config::{ResultWeights, RunConfig};
use crate::memory::peak_memory_mib;
use crate::run::checkpoint::{self, CheckpointMetadata, TrainingState};
use crate::run::dataset_stats::DataFile;
use crate::run::eval_history::EvalHistory;
use crate::run::manifest::{MANIFEST_FILE, Manifest, Outcome, Source};
use crate::run::metrics::trainer_state::{self, Facts, TRAINER_STATE_FILE};
use crate::run::prepare::Data;
use crate::run::run_folder::{Artifact, RunFolder, RunFolderError};
use crate::trainer::optimizer::OptimizerBackend;
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{Flow, State, StepLog};

/// Keeps a run: its folder, its book of evaluations, and its clock.
pub(super) struct RunCallbacks<'a, 'o> {
    config: &'a RunConfig,
    /// The same as text.
    config_text: String,
    look: Evaluator<'a>,
    product: Artifact<'a>,
    folder: RunFolder,
    book: EvalHistory,
    on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    interrupt: Option<&'a AtomicBool>,
    manifest: Manifest,
    started: Instant,
    last_step: Instant,
    seconds_before: f64,
    resumed_at: Option<u64>,
    end: End,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    AsPlanned,
    Interrupted,
    WithoutProgress,
}

/// A row of `metrics.jsonl` for a step.
#[derive(Serialize)]
struct StepRow<'a> {
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
    /// Why the weights were left as they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'a str>,
    /// The examples of the highest loss, where the loss is far above the ones before.
    #[serde(skip_serializing_if = "Option::is_none")]
    spike: Option<&'a [(String, f64)]>,
}

impl<'a> StepRow<'a> {
    fn new(log: &'a StepLog, tokens_per_s: f64) -> Self {
        Self {
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
            skipped: log.skipped.as_deref(),
            spike: log.spike.as_ref().map(|spike| spike.examples.as_slice()),
        }
    }
}

impl<'a, 'o> RunCallbacks<'a, 'o> {
    pub(super) fn new(
        config: &'a RunConfig,
        manifest: Manifest,
        look: Evaluator<'a>,
        product: Artifact<'a>,
        folder: RunFolder,
        on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    ) -> Result<Self, RunError> {
        let now = Instant::now();
        Ok(Self {
            config,
            config_text: config.to_toml().map_err(RunFolderError::from)?,
            look,
            product,
            folder,
            book: EvalHistory::default(),
            on_event,
            interrupt: None,
            manifest,
            started: now,
            last_step: now,
            seconds_before: 0.0,
            resumed_at: None,
            end: End::AsPlanned,
        })
    }

    /// Stops after a step once this is set.
    pub(super) fn interrupted_by(self, interrupt: &'a AtomicBool) -> Self {
        Self { interrupt: Some(interrupt), ..self }
    }

    /// Looks at the model as it is at first.
    pub(super) fn before_the_first_step<B: ModelBackend>(
        &mut self,
        model: &CausalLm<B>,
    ) -> Result<(), RunError> {
        self.write_manifest()?;
        self.look_at(model, 0)?;
        self.begin()
    }

    /// Takes up where a checkpoint was saved.
    pub(super) fn goes_on(&mut self, from: &TrainingState) -> Result<(), RunError> {
        // Without the one of the part before, or with a damaged one, this part alone is told.
        if let Ok(before) = Manifest::read(&self.folder.path().join(MANIFEST_FILE)) {
            self.manifest.started = before.started;
            self.manifest.resumed_after = before.resumed_after;
        }
        self.manifest.resumed_after.push(from.step);
        self.write_manifest()?;
        self.book = from.book.clone();
        self.seconds_before = from.seconds;
        self.resumed_at = Some(from.step);
        if self.book.is_exhausted(self.config.train.monitoring.patience) {
            self.end = End::WithoutProgress;
        }
        self.begin()
    }

    /// The state of the run as transformers' Trainer tells it.
    fn trainer_state(&self) -> Result<String, RunError> {
        let train = &self.config.train;
        let plan = self.look.plan;
        let facts = Facts {
            max_steps: plan.steps,
            epochs: plan.loader(&self.look.data.train).epochs_of(plan.rows),
            micro_batch_size: plan.micro_batch_size,
            log_every: train.log_every.get(),
            eval_every: train.eval_every.map(NonZeroU64::get),
            save_every: train.save_every.map(NonZeroU64::get),
            checkpoints: self.folder.checkpoint_names()?,
        };
        let metrics = self.folder.metrics()?;
        let io = |source| RunFolderError::Io { path: TRAINER_STATE_FILE.into(), source };
        Ok(trainer_state::text(&metrics, &facts).map_err(|error| io(error.into()))?)
    }

    fn write_manifest(&self) -> Result<(), RunError> {
        let folder = self.folder.path();
        self.manifest.write(folder).map_err(|source| {
            RunFolderError::Io { path: folder.join(MANIFEST_FILE), source }.into()
        })
    }

    fn begin(&mut self) -> Result<(), RunError> {
        let Data { train, eval, .. } = self.look.data;
        DataFile::of(train, eval.as_ref()).write(self.folder.path())?;
        self.started = Instant::now();
        self.last_step = self.started;
        Ok(())
    }

    /// Whether the run was over already when it was taken up: with more steps it would be another one.
    pub(super) fn is_over(&self) -> bool {
        self.end != End::AsPlanned
    }

    /// Evaluates the model and asks it the sample prompts; whether it is the best so far.
    fn look_at<B: ModelBackend>(
        &mut self,
        model: &CausalLm<B>,
        step: u64,
    ) -> Result<bool, RunError> {
        let mut is_best = false;
        if let Some(evaluation) = self.look.evaluate(model, step, &mut self.folder)? {
            let min_improvement = self.config.train.monitoring.min_improvement;
            is_best = self.book.take(step, evaluation, min_improvement);
            (self.on_event)(Event::Evaluated { step, evaluation, is_best });
        }
        let answers = self.look.answers(model, step, &mut self.folder, self.on_event)?;
        if step == 0 {
            self.book.first_answers.clone_from(&answers);
        }
        self.book.last_answers = answers;
        Ok(is_best)
    }

    /// Writes the step down; evaluates, saves and stops where it is time to.
    pub(super) fn after_step<A: TrainBackend>(
        &mut self,
        log: &StepLog,
        model: &CausalLm<A>,
        state: &State<A::InnerBackend>,
    ) -> Result<Flow, RunError> {
        let tokens_per_s = log.tokens as f64 / self.last_step.elapsed().as_secs_f64();
        self.folder.log(&StepRow::new(log, tokens_per_s))?;
        (self.on_event)(Event::Step { log, tokens_per_s });
        let train = &self.config.train;
        let is_last = log.step == self.look.plan.steps;
        let due = |every: Option<NonZeroU64>| {
            every.is_some_and(|every| is_last || log.step.is_multiple_of(every.get()))
        };
        let is_best = if due(train.eval_every) || is_last {
            self.look_at(&model.valid(), log.step)?
        } else {
            false
        };
        if !is_last && self.book.is_exhausted(train.monitoring.patience) {
            self.end = End::WithoutProgress;
        } else if !is_last && self.interrupt.is_some_and(|set| set.load(Ordering::Relaxed)) {
            self.end = End::Interrupted;
        }
        let saves_best = is_best && train.monitoring.save_best && train.eval_every.is_some();
        let saves_end = match self.end {
            End::AsPlanned => false,
            // Whoever interrupts a run may want to go on with it.
            End::Interrupted => true,
            End::WithoutProgress => train.save_every.is_some(),
        };
        if due(train.save_every) || saves_best || saves_end {
            self.save_checkpoint(model.valid(), state)?;
        }
        self.last_step = Instant::now();
        Ok(if self.end == End::AsPlanned { Flow::Continue } else { Flow::Stop })
    }

    fn save_checkpoint<B: OptimizerBackend>(
        &mut self,
        model: CausalLm<B>,
        state: &State<B>,
    ) -> Result<(), RunError> {
        let trainer_state = self.trainer_state()?;
        let surroundings = CheckpointMetadata {
            seconds: self.seconds(),
            book: &self.book,
            data: &self.manifest.rows,
            base: &self.manifest.base.hash,
            config: &self.config_text,
            trainer_state: &trainer_state,
        };
        let keep = self.config.train.keep_last.map(NonZeroUsize::get);
        let tokenizer = &self.look.base.tokenizer;
        let path = self.folder.save_checkpoint(
            state,
            model,
            self.product,
            tokenizer,
            &surroundings,
            keep,
        )?;
        (self.on_event)(Event::Saved { path });
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// The checkpoint whose weights are to be the result in place of those after `step`, if there is one.
    pub(super) fn better_checkpoint(&mut self, step: u64) -> Option<PathBuf> {
        let wants_best = self.config.train.monitoring.result == ResultWeights::Best;
        if !wants_best || self.end == End::Interrupted {
            return None;
        }
        let best = self.book.best.filter(|best| best.step != step)?;
        let path = self.folder.path().join(format!("{}{}", checkpoint::PREFIX, best.step));
        if !path.is_dir() {
            let what = format!(
                "the best weights were those after step {}, but {} is gone; the last ones are the result",
                best.step,
                path.display()
            );
            (self.on_event)(Event::Warning { what: &what });
            return None;
        }
        Some(path)
    }

    /// Saves the result, and says what the run came to.
    pub(super) fn finish<B: ModelBackend>(
        mut self,
        model: CausalLm<B>,
        step: u64,
        report: Report,
    ) -> Result<Report, RunError> {
        let seconds = self.seconds();
        let interrupted = self.end == End::Interrupted;
        self.folder.save(model, self.product, &self.look.base.tokenizer)?;
        let path = self.folder.path().to_path_buf();
        (self.on_event)(Event::Saved { path: path.clone() });
        let weights = Source::weights(&path)
            .map_err(|source| RunFolderError::Io { path: path.clone(), source })?;
        self.manifest.result = Some(Outcome {
            steps: step,
            finished: !interrupted,
            eval_loss: self.book.last.map(|(_, evaluation)| evaluation.loss),
            weights,
        });
        self.write_manifest()?;
        self.folder.write_file(TRAINER_STATE_FILE, &self.trainer_state()?)?;
        let EvalHistory { first, last, best, first_answers, last_answers, .. } = self.book;
        let last = last.filter(|(at, _)| *at == step && !interrupted);
        let answers = first_answers.into_iter().zip(last_answers);
        let answers = self.look.data.prompts.iter().zip(answers);
        Ok(Report {
            steps: step,
            resumed_at: self.resumed_at,
            interrupted,
            stopped_early: self.end == End::WithoutProgress,
            best,
            evaluations: first.zip(last.map(|(_, evaluation)| evaluation)),
            answers: match interrupted {
                true => Vec::new(),
                false => answers
                    .map(|(prompt, (before, after))| (prompt.clone(), before, after))
                    .collect(),
            },
            saved: Some(path),
            seconds,
            ..report
        })
    }
}
