//! The stages of `emberlm train`: each goes on with what the one before came to.

use std::path::{Path, PathBuf};

use crate::base::ModelSource;
use crate::config::{RunConfig, Stage, shown};
use crate::export::merge::{MergeOptions, SAMPLE, merge};
use crate::run::manifest::{MANIFEST_FILE, Manifest};
use crate::run::resume::Resume;
use crate::trainer::backend::{Job, run_on};
use crate::{Base, TrainBackend};
use anyhow::{Context, Result, bail};
use emberlm_quant::tensor_file::FloatDtype;

/// The folder in a stage's run folder where its adapter is folded into its base.
const MERGED: &str = "merged";

/// Runs the stages. `resume`: those that are through are passed over, and the one that isn't goes on.
pub(super) fn run(
    stages: Vec<Stage>,
    resume: Option<Resume>,
    run: impl Fn(&RunConfig, Option<Resume>) -> Result<()>,
) -> Result<()> {
    if resume.as_ref().is_some_and(|resume| resume.from.is_some()) {
        bail!("with stages, --resume takes no path: it goes on with the stage that isn't through");
    }
    let count = stages.len();
    let mut model: Option<PathBuf> = None;
    for (i, Stage { name, mut config }) in stages.into_iter().enumerate() {
        if let Some(path) = model.take() {
            let tokenizer = path.clone();
            config.model.source = ModelSource::Pretrained { path, tokenizer };
        }
        let folder = config.train.output_dir.clone();
        let is_through = resume.is_some() && is_finished(&folder);
        let what = if is_through { "is through already" } else { "begins" };
        eprintln!("stage {} of {count}, {name}, {what}: {}", i + 1, shown(&folder).display());
        if !is_through {
            run(&config, resume.clone()).with_context(|| format!("stage {name}"))?;
            if !is_finished(&folder) {
                bail!("stage {name} was interrupted; go on with --resume");
            }
        }
        let is_last = i + 1 == count;
        model = Some(match &config.lora {
            Some(_) if !is_last => merged(&config, &folder, !is_through)?,
            _ => folder,
        });
    }
    Ok(())
}

fn is_finished(folder: &Path) -> bool {
    let manifest = Manifest::read(&folder.join(MANIFEST_FILE)).ok();
    manifest.and_then(|manifest| manifest.result).is_some_and(|result| result.finished)
}

/// The model with the stage's adapter folded in, in f32 so that nothing of it is lost. `anew`: also if there is one.
fn merged(config: &RunConfig, folder: &Path, anew: bool) -> Result<PathBuf> {
    let out = folder.join(MERGED);
    if !anew && out.is_dir() {
        return Ok(out);
    }
    let base = Base::open(&config.model.source, config.train.seed)?;
    run_on(config.model.backend, MergeJob { base: &base, adapter: folder, out: &out })??;
    Ok(out)
}

struct MergeJob<'a> {
    base: &'a Base,
    adapter: &'a Path,
    out: &'a Path,
}

impl Job for MergeJob<'_> {
    type Output = Result<()>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let options = MergeOptions {
            adapter: self.adapter,
            out: self.out,
            dtype: Some(FloatDtype::F32),
            requantize: false,
            sample: SAMPLE,
            force: true,
        };
        merge::<A::InnerBackend>(self.base, options, &device)?;
        Ok(())
    }
}
