//! Checkpoints: folders from which a run goes on as if it had never stopped.
//!
//! `checkpoint-N` holds what is trained after N steps in its usual form (an adapter that PEFT loads, or a model in f32),
//! and beside it what else changes from step to step: `optimizer.safetensors` and `training_state.json`, and the
//! `config.toml` of the run. `checksums.xxh128` is written last: with it, the checkpoint is whole (`xxhsum -c` checks it).
//! The folder is made beside its place, synced and renamed, so that it is there whole or not at all.

mod folder;
mod sums;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use emberlm_data::Cursor;
use emberlm_quant::atomic_file::write_atomically;
use emberlm_quant::tensor_file::{FloatDtype, TensorFile};
use emberlm_quant::tensor_file::{StoredDtype, StoredTensor, write_stored};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::run::eval_history::EvalHistory;
use crate::run::metrics::trainer_state::TRAINER_STATE_FILE;
use crate::trainer::clip::{ClipConfig, Clipper};
use crate::trainer::guard::Guard;
use crate::trainer::optimizer::{
    Optimizer, OptimizerBackend, OptimizerConfig, OptimizerState, StateDtype, StateError,
    StateTensor,
};
use crate::trainer::train::{DataPosition, State};

pub use folder::{PREFIX, all_in, put, set_aside, unfinished_in};
pub use sums::{SUMS_FILE, verify};

/// The moments of the optimizer.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Everything else that changes from step to step.
pub const STATE_FILE: &str = "training_state.json";
/// The configuration of the run, as it was resolved.
pub const CONFIG_FILE: &str = "config.toml";

/// What the names of the clipping's tensors begin with in [`OPTIMIZER_FILE`].
const CLIP: &str = "clip/";

type Tensors = BTreeMap<String, StateTensor>;

/// The form of [`TrainingState`] that this program writes.
const VERSION: u32 = 1;

/// Why a checkpoint can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It isn't whole, or not as it was written.
    #[error("{}: this checkpoint is damaged: {why}. Go on from another one, or start the run again", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It was written by a later version of the program.
    #[error("{}: written in form {found}, and this program reads form {VERSION}; use the program that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The form it is in.
        found: u32,
    },
    /// Nothing of the kind.
    #[error(
        "{}: expected a checkpoint, which has a {STATE_FILE}, or a run folder with checkpoints; found neither",
        path.display()
    )]
    NotACheckpoint {
        /// The folder.
        path: PathBuf,
    },
}

/// What a checkpoint says beside weights and moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    version: u32,
    /// Version of the program that wrote it.
    pub emberlm: String,
    /// Steps made.
    pub step: u64,
    /// Rows that they took.
    pub rows: u64,
    cursor: CursorFile,
    optimizer: OptimizerFile,
    clip: OptimizerFile,
    guard: Guard,
    /// Seconds of training until here, over all parts of the run.
    pub seconds: f64,
    /// What the evaluations found.
    pub book: EvalHistory,
    /// Fingerprint of the rows to learn from.
    pub data: String,
    /// Hash of the base model's files.
    pub base: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorFile {
    epoch: u64,
    place: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OptimizerFile {
    kind: String,
    steps: u64,
}

/// What a checkpoint is told beside the state of the loop.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointMetadata<'a> {
    /// Seconds of training until here, over all parts of the run.
    pub seconds: f64,
    /// What the evaluations found.
    pub book: &'a EvalHistory,
    /// Fingerprint of the rows to learn from.
    pub data: &'a str,
    /// Hash of the base model's files.
    pub base: &'a str,
    /// The configuration of the run, as TOML.
    pub config: &'a str,
    /// The state of the run as transformers' Trainer tells it.
    pub trainer_state: &'a str,
}

/// Writes into `folder` what a run needs to go on, beside its weights.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn write_state<B: OptimizerBackend>(
    folder: &Path,
    state: &State<B>,
    surroundings: &CheckpointMetadata<'_>,
) -> Result<(), CheckpointError> {
    let (optimizer, clip) = (state.optimizer.state(), state.clipper.state());
    let of_clip = clip.tensors.iter().map(|(name, tensor)| (format!("{CLIP}{name}"), tensor));
    let tensors = optimizer.tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    let stored: Vec<StoredTensor<'_>> = tensors
        .chain(of_clip)
        .map(|(name, tensor)| StoredTensor {
            name,
            shape: tensor.shape.clone(),
            dtype: match tensor.dtype {
                StateDtype::F32 => StoredDtype::Float(FloatDtype::F32),
                StateDtype::F64 => StoredDtype::F64,
                StateDtype::U8 => StoredDtype::U8,
            },
            bytes: Box::new(move || tensor.bytes.clone()),
        })
        .collect();
    let path = folder.join(OPTIMIZER_FILE);
    write_stored(&path, &stored)
        .map_err(|error| CheckpointError::Io { path, source: io::Error::other(error) })?;
    let CheckpointMetadata { seconds, book, data, base, config, trainer_state } = *surroundings;
    let DataPosition { rows, cursor: Cursor { epoch, place } } = state.place;
    let file = TrainingState {
        version: VERSION,
        emberlm: env!("CARGO_PKG_VERSION").into(),
        step: state.step,
        rows,
        cursor: CursorFile { epoch, place },
        optimizer: OptimizerFile { kind: optimizer.kind, steps: optimizer.steps },
        clip: OptimizerFile { kind: clip.kind, steps: clip.steps },
        guard: state.guard,
        seconds,
        book: book.clone(),
        data: data.into(),
        base: base.into(),
    };
    let text = serde_json::to_string_pretty(&file).map_err(|error| CheckpointError::Io {
        path: folder.join(STATE_FILE),
        source: error.into(),
    })?;
    let texts =
        [(STATE_FILE, text.as_str()), (CONFIG_FILE, config), (TRAINER_STATE_FILE, trainer_state)];
    for (name, text) in texts {
        let path = folder.join(name);
        write_atomically(&path, |out| out.write_all(text.as_bytes()))
            .map_err(|source| CheckpointError::Io { path, source })?;
    }
    tracing::info!(folder = %folder.display(), step = state.step, "checkpoint written");
    Ok(())
}

/// A checkpoint that is whole.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The folder.
    pub path: PathBuf,
    /// What it says beside weights and moments.
    pub state: TrainingState,
    /// The text of its configuration.
    pub config: String,
}

impl Checkpoint {
    /// Reads a checkpoint and checks that every file is as it was written.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let state_path = path.join(STATE_FILE);
        if !state_path.is_file() && !path.join(SUMS_FILE).is_file() {
            return Err(CheckpointError::NotACheckpoint { path: path.into() });
        }
        let damaged = |why| CheckpointError::Damaged { path: path.into(), why };
        verify(path).map_err(damaged)?;
        let text = |path: &Path| {
            fs::read_to_string(path)
                .map_err(|source| CheckpointError::Io { path: path.into(), source })
        };
        let state = text(&state_path)?;
        #[derive(Deserialize)]
        struct Form {
            version: u32,
        }
        let wrong = |error: serde_json::Error| damaged(format!("{STATE_FILE}: {error}"));
        let Form { version: found } = serde_json::from_str(&state).map_err(wrong)?;
        if found != VERSION {
            return Err(CheckpointError::Version { path: state_path, found });
        }
        let state = serde_json::from_str(&state).map_err(wrong)?;
        let config = text(&path.join(CONFIG_FILE))?;
        Ok(Self { path: path.into(), state, config })
    }

    /// The state of the loop. `new_optimizer`: with an optimizer that has made no step.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], where the moments aren't those of such an optimizer for what is trained of `model`.
    pub fn state<A, M>(
        &self,
        optimizer: OptimizerConfig,
        clip: ClipConfig,
        new_optimizer: bool,
        model: &M,
        device: &A::Device,
    ) -> Result<State<A::InnerBackend>, CheckpointError>
    where
        A: AutodiffBackend<InnerBackend: OptimizerBackend>,
        M: Module<A>,
    {
        let TrainingState { step, rows, cursor, guard, .. } = self.state;
        let damaged = |error: StateError| self.damaged(error.to_string());
        let [moments, norms] = self.tensors()?;
        let optimizer = if new_optimizer {
            Optimizer::new(optimizer)
        } else {
            let OptimizerFile { kind, steps } = self.state.optimizer.clone();
            let state = OptimizerState { kind, steps, tensors: moments };
            let optimizer = Optimizer::<A::InnerBackend>::restore(optimizer, &state, device)
                .map_err(damaged)?;
            optimizer.fits::<A, M>(model).map_err(damaged)?;
            optimizer
        };
        let OptimizerFile { kind, steps } = self.state.clip.clone();
        // That it clips in another way was allowed, or it wouldn't go on.
        let clipper = if kind == clip.name() {
            let state = OptimizerState { kind, steps, tensors: norms };
            Clipper::restore(clip, &state).map_err(damaged)?
        } else {
            Clipper::new(clip)
        };
        let cursor = Cursor { epoch: cursor.epoch, place: cursor.place };
        Ok(State { step, place: DataPosition { rows, cursor }, optimizer, clipper, guard })
    }

    fn damaged(&self, why: String) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), why }
    }

    /// Those of the optimizer, and those of the clipping.
    fn tensors(&self) -> Result<[Tensors; 2], CheckpointError> {
        let file = TensorFile::open(&self.path.join(OPTIMIZER_FILE))
            .map_err(|error| self.damaged(error.to_string()))?;
        let [mut moments, mut norms] = [Tensors::new(), Tensors::new()];
        for (name, entry) in file.entries() {
            let dtype = match entry.dtype {
                Dtype::F32 => StateDtype::F32,
                Dtype::F64 => StateDtype::F64,
                Dtype::U8 => StateDtype::U8,
                other => return Err(self.damaged(format!("{name} is of type {other:?}"))),
            };
            let bytes = file.read_raw(name).map_err(|error| self.damaged(error.to_string()))?;
            let tensor = StateTensor { dtype, shape: entry.shape.clone(), bytes };
            match name.strip_prefix(CLIP) {
                Some(name) => norms.insert(name.to_owned(), tensor),
                None => moments.insert(name.clone(), tensor),
            };
        }
        Ok([moments, norms])
    }
}
