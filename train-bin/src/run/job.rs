//! A run on its backend, from the loaded model to the saved result.

use std::sync::atomic::AtomicBool;

use burn::module::AutodiffModule;
use emberlm_lora::walk::{ParamCount, count_params};
use emberlm_model::CausalLm;
use emberlm_quant::tensor_file::FloatDtype;

use crate::base::Base;
use crate::config::RunConfig;
use crate::eval::batch_debug::batch_debug;
use crate::memory::footprint::MemoryEstimate;
use crate::run::callbacks::RunCallbacks;
use crate::run::error::RunError;
use crate::run::evaluator::Evaluator;
use crate::run::event::Event;
use crate::run::inputs::InputHashes;
use crate::run::manifest::{Manifest, Source};
use crate::run::prepare::{Data, pad_id, trainable};
use crate::run::report::Report;
use crate::run::resume::{Resume, ResumeError, ResumePoint};
use crate::run::run_folder::{Artifact, LockedRunFolder, RunFolder, RunFolderError};
use crate::trainer::backend::{Backend, Job};
use crate::trainer::plan::Plan;
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{State, train_from};

/// Options that don't change the result, and so are not part of the configuration.
pub struct RunOptions<'a> {
    /// Stop before the first step, and write nothing.
    pub dry_run: bool,
    /// Set to stop after the current step and save.
    pub interrupt: &'a AtomicBool,
    /// Resume an interrupted run.
    pub resume: Option<Resume>,
}

/// Where a run starts.
pub(super) enum Start {
    /// At the first step, in a folder that is not opened yet.
    Fresh,
    /// At the first step, in the folder of a run without a usable checkpoint.
    FreshIn(LockedRunFolder),
    /// At a checkpoint.
    Resume(LockedRunFolder, Box<ResumePoint>),
}

pub(super) struct RunJob<'a, 'o> {
    pub(super) config: &'a RunConfig,
    pub(super) options: RunOptions<'a>,
    pub(super) start: Start,
    pub(super) on_event: &'a mut (dyn FnMut(Event<'_>) + 'o),
    pub(super) base: &'a Base,
    pub(super) data: &'a Data,
    pub(super) plan: &'a Plan,
    pub(super) backend: Backend,
    pub(super) estimate: MemoryEstimate,
    pub(super) hashes: InputHashes,
}

impl Start {
    /// Refuses to resume if data or base model changed, or if the checkpoint is past the last step.
    pub(super) fn check(
        &self,
        hashes: &mut InputHashes,
        plan: &Plan,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), RunError> {
        match self {
            Self::Fresh => {}
            Self::FreshIn(_) => on_event(Event::Resumed { from: None, step: 0, changes: &[] }),
            Self::Resume(_, point) => {
                let state = &point.checkpoint.state;
                point.check("the data", &state.data, &hashes.rows)?;
                point.check("the base model", &state.base, &hashes.base()?.hash)?;
                let (path, step, steps) = (point.checkpoint.path.clone(), state.step, plan.steps);
                if step > steps {
                    return Err(ResumeError::Beyond { path, step, steps }.into());
                }
                on_event(Event::Resumed { from: Some(path), step, changes: &point.changes });
            }
        }
        Ok(())
    }

    fn resume_point(&self) -> Option<&ResumePoint> {
        match self {
            Self::Resume(_, point) => Some(point),
            Self::Fresh | Self::FreshIn(_) => None,
        }
    }

    fn open_folder(self, config: &RunConfig) -> Result<RunFolder, RunError> {
        Ok(match self {
            Self::Fresh => RunFolder::create(config)?,
            Self::FreshIn(folder) => folder.restart(config)?,
            Self::Resume(folder, point) => {
                let step = point.checkpoint.state.step;
                folder.resume(config, step, point.other_folder.as_deref())?
            }
        })
    }
}

impl Job for RunJob<'_, '_> {
    type Output = Result<Report, RunError>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self {
            config,
            options,
            start,
            on_event,
            base,
            data,
            plan,
            backend,
            estimate,
            mut hashes,
        } = self;
        let from = start.resume_point().map(|point| point.checkpoint.path.as_path());
        let (model, lora) = trainable::<A>(config, base, from, &device)?;
        let count = count(&model);
        let rows = plan.loader(&data.train).rows_of(0);
        on_event(Event::Model { backend: backend.name(), count, plan, rows });
        let report = Report::new(estimate, count, lora.is_some());
        let pad_id = pad_id(&base.tokenizer);
        if config.train.monitoring.debug {
            let (data, tokenizer) = (&data.train, &base.tokenizer);
            let batch = batch_debug(&model, &base.config, data, tokenizer, pad_id, plan);
            on_event(Event::BatchDebug { batch: &batch });
        }
        if options.dry_run {
            return Ok(report);
        }
        let artifact = match &lora {
            Some(config) => Artifact::Adapter { config, base: &base.name },
            None => Artifact::Model {
                config_text: &base.config_text,
                dtype: declared_dtype(&base.config_text).unwrap_or(base.stored_dtype()),
            },
        };
        let new_optimizer = start.resume_point().is_some_and(|point| point.new_optimizer);
        let checkpoint = start.resume_point().map(|point| point.checkpoint.clone());
        let mut state = match &checkpoint {
            None => State::new(plan),
            Some(checkpoint) => {
                checkpoint.state(plan.optimizer, plan.clip, new_optimizer, &model, &device)?
            }
        };
        let manifest = Manifest::new(
            backend.name(),
            config,
            hashes.base()?,
            Source::tokenizer(&base.tokenizer),
            hashes.data()?,
            hashes.rows,
        );
        let manifest = manifest.map_err(RunFolderError::from)?;
        let evaluator = Evaluator { base, data, pad_id, plan, date: &config.data.date };
        let folder = start.open_folder(config)?;
        let mut callbacks =
            RunCallbacks::new(config, manifest, evaluator, artifact, folder, on_event)?
                .interrupted_by(options.interrupt);
        match &checkpoint {
            None => callbacks.before_first_step(&model.valid())?,
            Some(checkpoint) => callbacks.resume(&checkpoint.state)?,
        }
        let model = if callbacks.is_over() {
            model
        } else {
            train_from(
                &mut state,
                model,
                &base.config,
                &data.train,
                pad_id,
                plan,
                |metrics, model, state| callbacks.after_step(metrics, model, state),
            )?
        };
        let model = match callbacks.better_checkpoint(state.step) {
            Some(best) => trainable::<A>(config, base, Some(&best), &device)?.0,
            None => model,
        };
        callbacks.finish(model.valid(), state.step, report)
    }
}

/// Trainable and total parameters.
fn count<A: TrainBackend>(model: &CausalLm<A>) -> ParamCount {
    let mut count = count_params::<A, _>(model);
    // Quantized weights are parameters of the model, though not of the module.
    for (_, weight) in model.quantized() {
        count.total += weight.dims().iter().product::<usize>();
    }
    count
}

/// The float type of the weights according to a `config.json`.
fn declared_dtype(config_text: &str) -> Option<FloatDtype> {
    let config: serde_json::Value = serde_json::from_str(config_text).ok()?;
    let name = config.get("dtype").or_else(|| config.get("torch_dtype"))?.as_str()?;
    [FloatDtype::F32, FloatDtype::F16, FloatDtype::Bf16]
        .into_iter()
        .find(|d| d.torch_name() == name)
}
