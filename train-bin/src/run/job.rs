//! A run on its backend: from a model that stands to a result that is saved.

use std::path::Path;

use burn::module::AutodiffModule;
use emberlm_lora::LoraConfig;
use emberlm_lora::walk::{ParamCount, count_params};
use emberlm_model::{CausalLm, WeightForm};

use super::callbacks::RunCallbacks;
use super::evaluator::Evaluator;
use super::{Event, Hashes, Report, RunError, RunOptions, declared_dtype, pad_id};
use crate::base::Base;
use crate::config::{LoraSection, LoraStart, RunConfig};
use crate::eval::batch_debug::batch_debug;
use crate::memory::footprint::MemoryEstimate;
use crate::run::manifest::{Manifest, Source};
use crate::run::prepare::{Data, prepare};
use crate::run::resume::{ResumeError, ResumePoint};
use crate::run::run_folder::{Artifact, LockedRunFolder, RunFolder, RunFolderError};
use crate::trainer::backend::{Backend, Job};
use crate::trainer::step::TrainBackend;
use crate::trainer::train::{Plan, State, train_from};

/// Where a run begins.
pub(super) enum Start {
    /// At the first step, in a folder that is yet to be opened.
    Fresh,
    /// At the first step, in the folder of a run that came to no checkpoint.
    FreshIn(LockedRunFolder),
    /// Where another one was interrupted.
    ResumePoint(LockedRunFolder, Box<ResumePoint>),
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
    pub(super) need: MemoryEstimate,
    pub(super) hashes: Hashes,
}

impl Start {
    /// Refuses to go on where the data or the base are others, or the run is further than it is to go.
    pub(super) fn check(
        &self,
        hashes: &mut Hashes,
        plan: &Plan,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), RunError> {
        match self {
            Self::Fresh => {}
            Self::FreshIn(_) => on_event(Event::Resumed { from: None, step: 0, changes: &[] }),
            Self::ResumePoint(_, go_on) => {
                let state = &go_on.checkpoint.state;
                go_on.check("the data", &state.data, &hashes.rows)?;
                go_on.check("the base model", &state.base, &hashes.base()?.hash)?;
                let (path, step, steps) = (go_on.checkpoint.path.clone(), state.step, plan.steps);
                if step > steps {
                    return Err(ResumeError::Beyond { path, step, steps }.into());
                }
                on_event(Event::Resumed { from: Some(path), step, changes: &go_on.changes });
            }
        }
        Ok(())
    }

    fn go_on(&self) -> Option<&ResumePoint> {
        match self {
            Self::ResumePoint(_, go_on) => Some(go_on),
            Self::Fresh | Self::FreshIn(_) => None,
        }
    }

    fn open_folder(self, config: &RunConfig) -> Result<RunFolder, RunError> {
        Ok(match self {
            Self::Fresh => RunFolder::create(config)?,
            Self::FreshIn(folder) => folder.begin_again(config)?,
            Self::ResumePoint(folder, go_on) => {
                let step = go_on.checkpoint.state.step;
                folder.go_on(config, step, go_on.other_folder.as_deref())?
            }
        })
    }
}

impl Job for RunJob<'_, '_> {
    type Output = Result<Report, RunError>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { config, options, start, on_event, base, data, plan, backend, need, mut hashes } =
            self;
        let from = start.go_on().map(|go_on| go_on.checkpoint.path.as_path());
        let (model, lora) = trainable::<A>(config, base, from, &device)?;
        let count = count(&model);
        let rows = plan.loader(&data.train).rows_of(0);
        on_event(Event::Model { backend: backend.name(), count, plan, rows });
        let report = Report::new(need, count, lora.is_some());
        let pad_id = pad_id(&base.tokenizer);
        if config.train.monitoring.debug {
            let (data, tokenizer) = (&data.train, &base.tokenizer);
            let inside = batch_debug(&model, &base.config, data, tokenizer, pad_id, plan);
            on_event(Event::BatchDebug { inside: &inside });
        }
        if options.dry_run {
            return Ok(report);
        }
        let product = match &lora {
            Some(config) => Artifact::Adapter { config, base: &base.name },
            None => Artifact::Model {
                config_text: &base.config_text,
                dtype: declared_dtype(&base.config_text).unwrap_or(base.stored_dtype()),
            },
        };
        let new_optimizer = start.go_on().is_some_and(|go_on| go_on.new_optimizer);
        let checkpoint = start.go_on().map(|go_on| go_on.checkpoint.clone());
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
        let look = Evaluator { base, data, pad_id, plan, date: &config.data.date };
        let folder = start.open_folder(config)?;
        let mut keeper = RunCallbacks::new(config, manifest, look, product, folder, on_event)?
            .interrupted_by(options.interrupt);
        match &checkpoint {
            None => keeper.before_the_first_step(&model.valid())?,
            Some(checkpoint) => keeper.goes_on(&checkpoint.state)?,
        }
        let model = if keeper.is_over() {
            model
        } else {
            train_from(
                &mut state,
                model,
                &base.config,
                &data.train,
                pad_id,
                plan,
                |log, model, state| keeper.after_step(log, model, state),
            )?
        };
        let model = match keeper.better_checkpoint(state.step) {
            Some(best) => trainable::<A>(config, base, Some(&best), &device)?.0,
            None => model,
        };
        keeper.finish(model.valid(), state.step, report)
    }
}

/// The model, ready for training as configured: with what a checkpoint holds, or as it is before the first step.
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

/// Elements that are trained, and all.
fn count<A: TrainBackend>(model: &CausalLm<A>) -> ParamCount {
    let mut count = count_params::<A, _>(model);
    // They are no parameters of the module, but they are of the model.
    for (_, weight) in model.quantized() {
        count.total += weight.dims().iter().product::<usize>();
    }
    count
}
