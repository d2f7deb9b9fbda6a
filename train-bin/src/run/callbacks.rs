//! Callbacks of the training loop: evaluation, metrics, checkpoints and early stopping.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::AutodiffModule;
use emberlm_model::{CausalLm, ModelBackend};

use crate::config::{ResultWeights, RunConfig};
use crate::memory::peak_memory_mib;
use crate::run::checkpoint::{CheckpointMetadata, TrainingState};
use crate::run::dataset_stats::DatasetStatsFile;
use crate::run::error::RunError;
use crate::run::eval_history::EvalHistory;
use crate::run::evaluator::Evaluator;
use crate::run::event::Event;
use crate::run::files::{CHECKPOINT_PREFIX, MANIFEST_FILE, TRAINER_STATE_FILE};
use crate::run::manifest::{Manifest, Outcome, Source};
use crate::run::metrics::row::StepRow;
use crate::run::metrics::trainer_state::{self, RunFacts};
use crate::run::prepare::Data;
use crate::run::report::Report;
use crate::run::run_folder::{Artifact, RunFolder, RunFolderError};
use crate::trainer::metrics::StepMetrics;
use crate::trainer::optimizer::OptimizerBackend;
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{Flow, State};

/// The callbacks of a run, with its folder, its evaluations and its clock.
pub(super) struct RunCallbacks<'a, 'o> {
    config: &'a RunConfig,
    /// `config` as TOML.
    config_text: String,
    evaluator: Evaluator<'a>,
    artifact: Artifact<'a>,
    folder: RunFolder,
    evals: EvalHistory,
    on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    interrupt: Option<&'a AtomicBool>,
    manifest: Manifest,
    started: Instant,
    last_step: Instant,
    /// Training time of the parts before a resume.
    seconds_before: f64,
    resumed_at: Option<u64>,
    end: End,
}

/// Why a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    AsPlanned,
    Interrupted,
    StoppedEarly,
}

impl<'a, 'o> RunCallbacks<'a, 'o> {
    pub(super) fn new(
        config: &'a RunConfig,
        manifest: Manifest,
        evaluator: Evaluator<'a>,
        artifact: Artifact<'a>,
        folder: RunFolder,
        on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    ) -> Result<Self, RunError> {
        let now = Instant::now();
        Ok(Self {
            config,
            config_text: config.to_toml().map_err(RunFolderError::from)?,
            evaluator,
            artifact,
            folder,
            evals: EvalHistory::default(),
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

    /// Stops after the current step once `interrupt` is set.
    pub(super) fn interrupted_by(self, interrupt: &'a AtomicBool) -> Self {
        Self { interrupt: Some(interrupt), ..self }
    }

    /// Evaluates the untrained model.
    pub(super) fn before_first_step<B: ModelBackend>(
        &mut self,
        model: &CausalLm<B>,
    ) -> Result<(), RunError> {
        self.write_manifest()?;
        self.evaluate(model, 0)?;
        self.start_clock()
    }

    /// Restores what a checkpoint knows of the run so far.
    pub(super) fn resume(&mut self, from: &TrainingState) -> Result<(), RunError> {
        // A missing or damaged manifest of the earlier part loses nothing but that part's start time.
        if let Ok(before) = Manifest::read(&self.folder.path().join(MANIFEST_FILE)) {
            self.manifest.started = before.started;
            self.manifest.resumed_after = before.resumed_after;
        }
        self.manifest.resumed_after.push(from.step);
        self.write_manifest()?;
        self.evals = from.eval_history.clone();
        self.seconds_before = from.seconds;
        self.resumed_at = Some(from.step);
        if self.evals.is_exhausted(self.config.train.monitoring.patience) {
            self.end = End::StoppedEarly;
        }
        self.start_clock()
    }

    /// The text of `trainer_state.json`.
    fn trainer_state(&self) -> Result<String, RunError> {
        let train = &self.config.train;
        let plan = self.evaluator.plan;
        let facts = RunFacts {
            max_steps: plan.steps,
            epochs: plan.loader(&self.evaluator.data.train).epochs_of(plan.rows),
            micro_batch_size: plan.micro_batch_size,
            log_every: train.log_every.get(),
            eval_every: train.eval_every.map(NonZeroU64::get),
            save_every: train.save_every.map(NonZeroU64::get),
            checkpoints: self.folder.checkpoint_names()?,
        };
        let metrics = self.folder.metrics()?;
        let io = |cause| RunFolderError::Io { path: TRAINER_STATE_FILE.into(), cause };
        Ok(trainer_state::text(&metrics, &facts).map_err(|error| io(error.into()))?)
    }

    fn write_manifest(&self) -> Result<(), RunError> {
        let folder = self.folder.path();
        self.manifest
            .write(folder)
            .map_err(|cause| RunFolderError::Io { path: folder.join(MANIFEST_FILE), cause }.into())
    }

    fn start_clock(&mut self) -> Result<(), RunError> {
        let Data { train, eval, .. } = self.evaluator.data;
        DatasetStatsFile::of(train, eval.as_ref()).write(self.folder.path())?;
        self.started = Instant::now();
        self.last_step = self.started;
        Ok(())
    }

    /// Whether a resumed run had already stopped early; more steps would change its result.
    pub(super) fn is_over(&self) -> bool {
        self.end != End::AsPlanned
    }

    /// Evaluates the model and answers the sample prompts. Returns whether the evaluation loss is the lowest so far.
    fn evaluate<B: ModelBackend>(
        &mut self,
        model: &CausalLm<B>,
        step: u64,
    ) -> Result<bool, RunError> {
        let mut is_best = false;
        if let Some(evaluation) = self.evaluator.evaluate(model, step, &mut self.folder)? {
            let min_improvement = self.config.train.monitoring.min_improvement;
            is_best = self.evals.record(step, evaluation, min_improvement);
            (self.on_event)(Event::Evaluated { step, evaluation, is_best });
        }
        let answers = self.evaluator.answers(model, step, &mut self.folder, self.on_event)?;
        if step == 0 {
            self.evals.first_answers.clone_from(&answers);
        }
        self.evals.last_answers = answers;
        Ok(is_best)
    }

    /// Logs the step; evaluates, saves and stops when due.
    pub(super) fn after_step<A: TrainBackend>(
        &mut self,
        metrics: StepMetrics,
        model: &CausalLm<A>,
        state: &State<A::InnerBackend>,
    ) -> Result<Flow, RunError> {
        let tokens_per_s = metrics.tokens as f64 / self.last_step.elapsed().as_secs_f64();
        let step = metrics.step;
        let row = StepRow { metrics, tokens_per_s, peak_memory_mib: peak_memory_mib() };
        self.folder.log(&row)?;
        (self.on_event)(Event::Step { row: &row });
        let train = &self.config.train;
        let is_last = step == self.evaluator.plan.steps;
        let due = |every: Option<NonZeroU64>| {
            every.is_some_and(|every| is_last || step.is_multiple_of(every.get()))
        };
        let is_best = if due(train.eval_every) || is_last {
            self.evaluate(&model.valid(), step)?
        } else {
            false
        };
        if !is_last && self.evals.is_exhausted(train.monitoring.patience) {
            self.end = End::StoppedEarly;
        } else if !is_last && self.interrupt.is_some_and(|set| set.load(Ordering::Relaxed)) {
            self.end = End::Interrupted;
        }
        let saves_best = is_best && train.monitoring.save_best && train.eval_every.is_some();
        let saves_end = match self.end {
            End::AsPlanned => false,
            // An interrupted run is saved so that it can be resumed.
            End::Interrupted => true,
            End::StoppedEarly => train.save_every.is_some(),
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
        let metadata = CheckpointMetadata {
            seconds: self.seconds(),
            eval_history: &self.evals,
            data: &self.manifest.rows,
            base: &self.manifest.base.hash,
            config: &self.config_text,
            trainer_state: &trainer_state,
        };
        let keep = self.config.train.keep_last.map(NonZeroUsize::get);
        let tokenizer = &self.evaluator.base.tokenizer;
        let path =
            self.folder.save_checkpoint(state, model, self.artifact, tokenizer, &metadata, keep)?;
        (self.on_event)(Event::Saved { path });
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// The checkpoint whose weights are to be the result instead of those after `step`, if there is one.
    pub(super) fn better_checkpoint(&mut self, step: u64) -> Option<PathBuf> {
        let wants_best = self.config.train.monitoring.result == ResultWeights::Best;
        if !wants_best || self.end == End::Interrupted {
            return None;
        }
        let best = self.evals.best.filter(|best| best.step != step)?;
        let path = self.folder.path().join(format!("{CHECKPOINT_PREFIX}{}", best.step));
        if !path.is_dir() {
            let text = format!(
                "the evaluation loss was lowest after step {}, but {} is missing; the result is the last weights",
                best.step,
                path.display()
            );
            (self.on_event)(Event::Warning { text: &text });
            return None;
        }
        Some(path)
    }

    /// Saves the result, and completes the report.
    pub(super) fn finish<B: ModelBackend>(
        mut self,
        model: CausalLm<B>,
        step: u64,
        report: Report,
    ) -> Result<Report, RunError> {
        let seconds = self.seconds();
        let interrupted = self.end == End::Interrupted;
        self.folder.save(model, self.artifact, &self.evaluator.base.tokenizer)?;
        let path = self.folder.path().to_path_buf();
        (self.on_event)(Event::Saved { path: path.clone() });
        let weights = Source::weights(&path)
            .map_err(|cause| RunFolderError::Io { path: path.clone(), cause })?;
        self.manifest.result = Some(Outcome {
            steps: step,
            finished: !interrupted,
            eval_loss: self.evals.last.map(|(_, evaluation)| evaluation.loss),
            weights,
        });
        self.write_manifest()?;
        self.folder.write_file(TRAINER_STATE_FILE, &self.trainer_state()?)?;
        let EvalHistory { first, last, best, first_answers, last_answers, .. } = self.evals;
        let last = last.filter(|(at, _)| *at == step && !interrupted);
        let answers = first_answers.into_iter().zip(last_answers);
        let answers = self.evaluator.data.prompts.iter().zip(answers);
        Ok(Report {
            steps: step,
            resumed_at: self.resumed_at,
            interrupted,
            stopped_early: self.end == End::StoppedEarly,
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
