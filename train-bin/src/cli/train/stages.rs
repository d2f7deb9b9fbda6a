//! The stages of `emberlm train`: each starts from the result of the previous one.

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

/// Subfolder of a stage's run folder for the merged model.
const MERGED: &str = "merged";

/// Runs the stages. `resume`: finished stages are skipped, the interrupted one is resumed.
pub(super) fn run(
    stages: Vec<Stage>,
    resume: Option<Resume>,
    run: impl Fn(&RunConfig, Option<Resume>) -> Result<()>,
) -> Result<()> {
    if resume.as_ref().is_some_and(|resume| resume.from.is_some()) {
        bail!("with stages, --resume takes no path: it resumes the first unfinished stage");
    }
    let count = stages.len();
    let mut model: Option<PathBuf> = None;
    for (i, Stage { name, mut config }) in stages.into_iter().enumerate() {
        if let Some(path) = model.take() {
            let tokenizer = path.clone();
            config.model.source = ModelSource::Pretrained { path, tokenizer };
        }
        let folder = config.train.output_dir.clone();
        let is_done = resume.is_some() && is_finished(&folder);
        let what = if is_done { "is already finished" } else { "starts" };
        eprintln!("stage {} of {count}, {name}, {what}: {}", i + 1, shown(&folder).display());
        if !is_done {
            run(&config, resume.clone()).with_context(|| format!("stage {name}"))?;
            if !is_finished(&folder) {
                bail!("stage {name} was interrupted; resume with --resume");
            }
        }
        let is_last = i + 1 == count;
        model = Some(match &config.lora {
            Some(_) if !is_last => merged(&config, &folder, !is_done)?,
            _ => folder,
        });
    }
    Ok(())
}

fn is_finished(folder: &Path) -> bool {
    let manifest = Manifest::read(&folder.join(MANIFEST_FILE)).ok();
    manifest.and_then(|manifest| manifest.result).is_some_and(|result| result.finished)
}

/// Merges the stage's adapter into its base, in f32 so that nothing is lost. `anew`: even if a merged model exists.
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
