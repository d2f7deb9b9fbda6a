//! A whole run, from a checked configuration to a saved result.

pub mod bench;
mod callbacks;
pub mod checkpoint;
pub mod dataset_stats;
pub mod error;
pub mod eval_history;
mod evaluator;
pub mod event;
pub mod files;
mod inputs;
mod job;
pub mod lr_find;
pub mod manifest;
pub mod metrics;
pub mod prepare;
pub mod report;
pub mod reproduce;
pub mod resume;
pub mod run_folder;

use emberlm_data::preview;

use crate::base::file_hash::hex;
use crate::config::RunConfig;
use crate::memory::available_memory;
use crate::memory::footprint::MemoryEstimate;
use crate::trainer::backend::{Backend, resolve, run_on};
use inputs::InputHashes;
use job::{RunJob, Start};
use manifest::begin_hashing_data;
use prepare::{Data, open_base, plan, workload};
use run_folder::LockedRunFolder;

pub use crate::eval::generate::stop_ids;
pub use error::RunError;
pub use event::Event;
pub use job::RunOptions;
pub use prepare::pad_id;
pub use report::Report;

/// Runs a configuration.
///
/// # Errors
/// [`RunError`]. A failure before the first step has written nothing but `config.toml`.
pub fn run(
    config: &RunConfig,
    options: RunOptions<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Report, RunError> {
    let start = match options.resume.as_ref().filter(|_| !options.dry_run) {
        None => Start::Fresh,
        Some(resume) => {
            let folder = LockedRunFolder::open(&config.train.output_dir)?;
            let (resume_point, damaged) = resume::find(&folder, config, resume)?;
            if !damaged.is_empty() {
                on_event(Event::Damaged { errors: &damaged });
            }
            match resume_point {
                None => Start::FreshIn(folder),
                Some(point) => Start::Resume(folder, Box::new(point)),
            }
        }
    };
    let base = open_base(config)?;
    let base_hash = base.begin_hashing();
    let data = Data::read(config, &base.tokenizer, &mut |event| {
        tracing::info!(?event, "token cache");
        on_event(Event::Cache(event));
    })?;
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
    let mut hashes = InputHashes {
        rows: hex(data.train.fingerprint()),
        base: base_hash,
        data: begin_hashing_data(config)?,
    };
    let plan = plan(config, &data.train)?;
    start.check(&mut hashes, &plan, on_event)?;
    let backend = resolve(config.model.backend);
    let estimate =
        MemoryEstimate::of(&workload(config, &base, &data.train, &plan)?, available(backend))?;
    on_event(Event::Memory { estimate: &estimate });
    let (base, data, plan) = (&base, &data, &plan);
    run_on(
        backend,
        RunJob { config, options, start, on_event, base, data, plan, backend, estimate, hashes },
    )?
}

/// Estimates the memory of a run without reading its weights. `available`: bytes available, instead of this machine's
/// free memory.
///
/// # Errors
/// [`RunError`], for the configuration, the data and the model's files.
pub fn memory_need(config: &RunConfig, available: Option<u64>) -> Result<MemoryEstimate, RunError> {
    let base = open_base(config)?;
    let data = Data::read(config, &base.tokenizer, &mut |_| ())?;
    let available = available.or_else(|| self::available(resolve(config.model.backend)));
    let plan = plan(config, &data.train)?;
    Ok(MemoryEstimate::of(&workload(config, &base, &data.train, &plan)?, available)?)
}

/// Free memory of a backend's device; `None` for GPUs, where it is unknown.
fn available(backend: Backend) -> Option<u64> {
    match backend {
        Backend::Flex | Backend::NdArray => available_memory(),
        Backend::Auto | Backend::Wgpu | Backend::Cuda => None,
    }
}
