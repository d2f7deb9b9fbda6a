//! Resuming: from which checkpoint, and whether the configuration allows it.

use std::path::{Path, PathBuf};

use crate::config::{self, Change, ConfigError, Effect, RunConfig, WriteError, shown};
use crate::run::checkpoint::{self, Checkpoint, CheckpointError};
use crate::run::run_folder::{LockedRunFolder, RunFolderError};

/// How a run is to be resumed.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    /// The checkpoint, or the run folder whose newest one is used. `None`: the newest one of the run's own folder, or the
    /// beginning if there is none.
    pub from: Option<PathBuf>,
    /// Accept changed settings that change what the steps compute.
    pub allow_changes: bool,
}

/// Why a run can't be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// Of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Of the run folder.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// The checkpoint's configuration can't be read.
    #[error("{}: cannot use its configuration: {cause}", path.display())]
    Config {
        /// The checkpoint.
        path: PathBuf,
        /// The error.
        cause: ConfigError,
    },
    /// Of writing a configuration as TOML.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Changed settings would change training.
    #[error(
        "this configuration differs from that of {} and would change training:\n  {}\nRestore these settings, or resume with --allow-changes",
        path.display(),
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
    )]
    Changed {
        /// The checkpoint.
        path: PathBuf,
        /// The changed settings.
        changes: Vec<Change>,
    },
    /// The checkpoint holds weights of another kind or shape.
    #[error(
        "{} holds other weights than this configuration trains:\n  {}\nRestore these settings, or start a new run from the trained weights with lora.init_from or model.path",
        path.display(),
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
    )]
    OtherWeights {
        /// The checkpoint.
        path: PathBuf,
        /// The changed settings.
        changes: Vec<Change>,
    },
    /// The training data or the base model changed.
    #[error(
        "{what} changed since {} was saved (expected hash {expected}, found {found}). Restore the original files, or start a new run from the trained weights with lora.init_from or model.path",
        path.display()
    )]
    Other {
        /// The checkpoint.
        path: PathBuf,
        /// `the data` or `the base model`.
        what: &'static str,
        /// The present hash.
        found: String,
        /// The hash in the checkpoint.
        expected: String,
    },
    /// Newer checkpoints would be lost.
    #[error(
        "{} has newer checkpoints than the one to resume from ({}). Choose another folder with --out, or move them away",
        path.display(),
        newer.iter().map(|step| format!("step {step}")).collect::<Vec<_>>().join(", ")
    )]
    NotTheNewest {
        /// The run folder.
        path: PathBuf,
        /// Their steps.
        newer: Vec<u64>,
    },
    /// The checkpoint is past the last step.
    #[error(
        "{} is at step {step}, past the last step {steps}. Raise train.steps or train.epochs, and resume with --allow-changes",
        path.display()
    )]
    Beyond {
        /// The checkpoint.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// Steps of the run.
        steps: u64,
    },
}

/// The checkpoint to resume from.
pub(crate) struct ResumePoint {
    pub(crate) checkpoint: Checkpoint,
    /// Changed settings.
    pub(crate) changes: Vec<Change>,
    /// Whether the optimizer changed, so that the stored moments are useless.
    pub(crate) new_optimizer: bool,
    /// Its run folder, if that is not the run's own.
    pub(crate) other_folder: Option<PathBuf>,
}

/// Finds the checkpoint to resume from (`None`: start from the beginning), and what is wrong with newer ones.
pub(crate) fn find(
    folder: &LockedRunFolder,
    config: &RunConfig,
    resume: &Resume,
) -> Result<(Option<ResumePoint>, Vec<CheckpointError>), ResumeError> {
    let own = &config.train.output_dir;
    let (found, damaged, other_folder) = match &resume.from {
        Some(path) if !same(path, own) => {
            let checkpoint = open(path)?;
            let from = checkpoint.path.parent().unwrap_or(Path::new("."));
            let is_own = same(from, own);
            if is_own {
                refuse_newer(own, checkpoint.state.step)?;
            }
            let other = (!is_own).then(|| from.to_path_buf());
            (Some(checkpoint), Vec::new(), other)
        }
        _ => {
            let (found, damaged) = folder.newest()?;
            (found, damaged, None)
        }
    };
    let Some(checkpoint) = found else { return Ok((None, damaged)) };
    let path = shown(&checkpoint.path);
    let was = config::load_str(&checkpoint.config, "config.toml of the checkpoint", &[])
        .map_err(|cause| ResumeError::Config { path: path.clone(), cause })?;
    let changes = config::changes(&was, config)?;
    let with = |effect: Effect| -> Vec<Change> {
        changes.iter().filter(|change| change.effect == effect).cloned().collect()
    };
    let weight_changes = with(Effect::OnWeights);
    if !weight_changes.is_empty() {
        return Err(ResumeError::OtherWeights { path, changes: weight_changes });
    }
    let step_changes = with(Effect::OnSteps);
    if !step_changes.is_empty() && !resume.allow_changes {
        return Err(ResumeError::Changed { path, changes: step_changes });
    }
    let new_optimizer = changes.iter().any(|change| change.key == "train.optimizer");
    Ok((Some(ResumePoint { checkpoint, changes, new_optimizer, other_folder }), damaged))
}

/// The checkpoint at a path: a checkpoint itself, or the newest intact one of a run folder.
///
/// # Errors
/// [`ResumeError`].
pub fn open(path: &Path) -> Result<Checkpoint, ResumeError> {
    let is_checkpoint = [checkpoint::STATE_FILE, checkpoint::SUMS_FILE];
    if is_checkpoint.iter().any(|file| path.join(file).is_file()) {
        return Ok(Checkpoint::open(path)?);
    }
    let none = || CheckpointError::NotACheckpoint { path: shown(path) };
    let there = checkpoint::all_in(path).map_err(|_| none())?;
    let mut first_error = None;
    for (_, path) in there.iter().rev() {
        match Checkpoint::open(path) {
            Ok(checkpoint) => return Ok(checkpoint),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(none).into())
}

impl ResumePoint {
    /// Refuses data or a base model that changed since the checkpoint was saved.
    pub(crate) fn check(
        &self,
        what: &'static str,
        expected: &str,
        found: &str,
    ) -> Result<(), ResumeError> {
        if found == expected {
            return Ok(());
        }
        let path = shown(&self.checkpoint.path);
        Err(ResumeError::Other { path, what, found: found.into(), expected: expected.into() })
    }
}

fn refuse_newer(folder: &Path, step: u64) -> Result<(), ResumeError> {
    let there = checkpoint::all_in(folder)
        .map_err(|cause| CheckpointError::Io { path: folder.into(), cause })?;
    let is_newer =
        |(later, path): &&(u64, PathBuf)| *later > step && checkpoint::verify(path).is_ok();
    let newer: Vec<u64> = there.iter().filter(is_newer).map(|(step, _)| *step).collect();
    if newer.is_empty() {
        return Ok(());
    }
    Err(ResumeError::NotTheNewest { path: shown(folder), newer })
}

fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}
