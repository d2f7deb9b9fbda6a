//! Where a run goes on, and whether it may.

use std::path::{Path, PathBuf};

use crate::config::{self, Change, ConfigError, Effect, RunConfig, WriteError, shown};
use crate::run::checkpoint::{self, Checkpoint, CheckpointError};
use crate::run::run_folder::{LockedRunFolder, RunFolderError};

/// How a run is to go on.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    /// From this checkpoint, or the newest one of this run folder; `None`: the newest one in the run's own folder, and from
    /// the beginning if there is none.
    pub from: Option<PathBuf>,
    /// Also where the configuration differs in what the steps compute.
    pub allow_changes: bool,
}

/// Why a run can't go on.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run folder.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// Its configuration can't be read.
    #[error("the configuration in {}: {source}", path.display())]
    Config {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// A configuration can't be told as TOML.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What the steps compute would be something else.
    #[error(
        "this configuration isn't the one that {} was made with, and the steps would compute something else:\n  {}\nSet these back, or go on anyway with --allow-changes",
        path.display(),
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
    )]
    Changed {
        /// The checkpoint.
        path: PathBuf,
        /// What differs in effect.
        changes: Vec<Change>,
    },
    /// What was trained is something else.
    #[error(
        "{} holds other weights than this configuration trains:\n  {}\nSet these back; or begin a new run from what was trained, with lora.init_from or model.path",
        path.display(),
        changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
    )]
    OtherWeights {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        changes: Vec<Change>,
    },
    /// The rows to learn from, or the base model, are others.
    #[error(
        "{what} isn't what {} was made with (hash {found}, expected {expected}). Put back what was there; or begin a new run from what was trained, with lora.init_from or model.path",
        path.display()
    )]
    Other {
        /// The checkpoint.
        path: PathBuf,
        /// `the data` or `the base model`.
        what: &'static str,
        /// Now.
        found: String,
        /// Then.
        expected: String,
    },
    /// There are newer checkpoints, which would be lost.
    #[error(
        "{} has newer checkpoints than the one to go on from ({}). Go on in another folder with --out, or move them away",
        path.display(),
        newer.iter().map(|step| format!("step {step}")).collect::<Vec<_>>().join(", ")
    )]
    NotTheNewest {
        /// The run folder.
        path: PathBuf,
        /// Their steps.
        newer: Vec<u64>,
    },
    /// It has gone further than it is to go.
    #[error(
        "{} is {step} steps far, and the run is to have {steps}. Ask for more with train.steps or train.epochs, together with --allow-changes",
        path.display()
    )]
    Beyond {
        /// The checkpoint.
        path: PathBuf,
        /// Steps that were made.
        step: u64,
        /// Steps that are wanted.
        steps: u64,
    },
}

/// Where a run goes on.
pub(crate) struct ResumePoint {
    pub(crate) checkpoint: Checkpoint,
    /// What differs in the configuration, if anything.
    pub(crate) changes: Vec<Change>,
    /// Whether its moments are those of another optimizer.
    pub(crate) new_optimizer: bool,
    /// The run folder that it comes from, if that is another one.
    pub(crate) other_folder: Option<PathBuf>,
}

/// Finds where to go on in a run folder that is held (`None`: at the beginning), and why newer checkpoints can't be used.
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
        .map_err(|source| ResumeError::Config { path: path.clone(), source })?;
    let changes = config::changes(&was, config)?;
    let with = |effect: Effect| -> Vec<Change> {
        changes.iter().filter(|change| change.effect == effect).cloned().collect()
    };
    let of_weights = with(Effect::OnWeights);
    if !of_weights.is_empty() {
        return Err(ResumeError::OtherWeights { path, changes: of_weights });
    }
    let of_steps = with(Effect::OnSteps);
    if !of_steps.is_empty() && !resume.allow_changes {
        return Err(ResumeError::Changed { path, changes: of_steps });
    }
    let new_optimizer = changes.iter().any(|change| change.key == "train.optimizer");
    Ok((Some(ResumePoint { checkpoint, changes, new_optimizer, other_folder }), damaged))
}

/// The checkpoint at a path: a checkpoint itself, or the newest whole one of a run folder.
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
    /// Refuses data or a base that isn't what the checkpoint was made with.
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
        .map_err(|source| CheckpointError::Io { path: folder.into(), source })?;
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
