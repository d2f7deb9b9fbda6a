//! Why a run folder can't be used or written.

use std::io;
use std::path::{Path, PathBuf};

use emberlm_data::DataError;
use emberlm_lora::peft::PeftError;
use emberlm_model::LoadError;

use crate::config::WriteError;
use crate::run::checkpoint::CheckpointError;

/// Why a run folder can't be used or written.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    /// Of the file system.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The folder already holds a run.
    #[error(
        "{}: this folder already holds a run ({found}). Resume it with --resume, choose another folder with --out, or replace it with --set train.overwrite=true",
        path.display()
    )]
    Taken {
        /// The folder.
        path: PathBuf,
        /// A file of that run.
        found: &'static str,
    },
    /// Another process is writing it.
    #[error(
        "{}: another process{} is using this run folder. Wait for it, stop it, or choose another folder with --out",
        path.display(),
        pid.as_ref().map(|pid| format!(" ({pid})")).unwrap_or_default()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Its process id, if known.
        pid: Option<String>,
    },
    /// Saving failed; earlier checkpoints are intact.
    #[error("{cause}. {}", match newest {
        Some(path) => format!("Earlier checkpoints are intact. Free some disk space if it is full, then resume with --resume={}", path.display()),
        None => "No checkpoint was saved before".into(),
    })]
    NotSaved {
        /// The error.
        cause: Box<RunFolderError>,
        /// The newest checkpoint.
        newest: Option<PathBuf>,
    },
    /// Of writing the configuration as TOML.
    #[error(transparent)]
    Config(#[from] WriteError),
    /// Of a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Of the adapter.
    #[error(transparent)]
    Adapter(#[from] PeftError),
    /// Of the model.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// Of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
}

impl From<io::Error> for RunFolderError {
    fn from(cause: io::Error) -> Self {
        Self::Io { path: PathBuf::from("the checkpoint"), cause }
    }
}

pub(super) fn io_at(path: &Path) -> impl FnOnce(io::Error) -> RunFolderError + use<> {
    let path = path.to_path_buf();
    move |cause| RunFolderError::Io { path, cause }
}
