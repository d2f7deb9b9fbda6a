//! Checkpoints: folders from which a run is resumed to the same bits as if it had never stopped.
//!
//! `checkpoint-N` holds the trained weights after N steps in their usual form (an adapter that PEFT loads, or a model in
//! f32), the rest of the training state (`optimizer.safetensors`, `training_state.json`) and the run's `config.toml`.
//! `checksums.xxh128` is written last: a checkpoint that has it is complete (`xxhsum -c` verifies it). The folder is
//! written under a temporary name, synced and renamed, so it exists completely or not at all.

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
use crate::run::files::TRAINER_STATE_FILE;
use crate::trainer::clip::{ClipConfig, Clipper};
use crate::trainer::guard::Guard;
use crate::trainer::optimizer::{
    Optimizer, OptimizerBackend, OptimizerConfig, OptimizerState, StateDtype, StateError,
    StateTensor,
};
use crate::trainer::plan::DataPosition;
use crate::trainer::train::State;

pub use crate::run::files::{CONFIG_FILE, OPTIMIZER_FILE, STATE_FILE, SUMS_FILE};
pub use folder::{all_in, save, set_aside, unfinished_in};
pub use sums::verify;

/// Prefix of the clipping statistics' names in [`OPTIMIZER_FILE`].
const CLIP: &str = "clip/";

type Tensors = BTreeMap<String, StateTensor>;

/// The format of [`TrainingState`] that this program writes. Format 1 differs in names of fields only.
const VERSION: u32 = 2;

/// Why a checkpoint can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// It is incomplete or was changed after it was written.
    #[error("{}: damaged checkpoint: {why}. Resume from another checkpoint, or restart the run", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It was written by another version of the program.
    #[error("{}: expected checkpoint format 1 to {VERSION}, found {found}; use the version of emberlm that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// Not a checkpoint.
    #[error(
        "{}: expected a checkpoint, which has a {STATE_FILE}, or a run folder with checkpoints; found neither",
        path.display()
    )]
    NotACheckpoint {
        /// The folder.
        path: PathBuf,
    },
}

/// The content of [`STATE_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    version: u32,
    /// Version of the program that wrote it.
    pub emberlm: String,
    /// Steps made.
    pub step: u64,
    /// Rows consumed by them.
    pub rows: u64,
    #[serde(alias = "cursor")]
    data_position: CursorFile,
    optimizer: OptimizerFile,
    clip: OptimizerFile,
    guard: Guard,
    /// Training time so far in seconds, over all parts of the run.
    pub seconds: f64,
    /// The evaluations so far.
    #[serde(alias = "book")]
    pub eval_history: EvalHistory,
    /// Fingerprint of the tokenized training data.
    pub data: String,
    /// Hash of the base model's files.
    pub base: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorFile {
    epoch: u64,
    /// Rows of the epoch before the next one.
    #[serde(alias = "place")]
    row: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OptimizerFile {
    kind: String,
    steps: u64,
}

/// What a checkpoint records in addition to the state of the training loop.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointMetadata<'a> {
    /// Training time so far in seconds, over all parts of the run.
    pub seconds: f64,
    /// The evaluations so far.
    pub eval_history: &'a EvalHistory,
    /// Fingerprint of the tokenized training data.
    pub data: &'a str,
    /// Hash of the base model's files.
    pub base: &'a str,
    /// The configuration of the run, as TOML.
    pub config: &'a str,
    /// The text of `trainer_state.json`.
    pub trainer_state: &'a str,
}

/// Writes the training state into `folder`: everything that resuming needs except the weights.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn write_state<B: OptimizerBackend>(
    folder: &Path,
    state: &State<B>,
    metadata: &CheckpointMetadata<'_>,
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
        .map_err(|error| CheckpointError::Io { path, cause: io::Error::other(error) })?;
    let CheckpointMetadata { seconds, eval_history, data, base, config, trainer_state } = *metadata;
    let DataPosition { rows, cursor: Cursor { epoch, place } } = state.data_position;
    let file = TrainingState {
        version: VERSION,
        emberlm: env!("CARGO_PKG_VERSION").into(),
        step: state.step,
        rows,
        data_position: CursorFile { epoch, row: place },
        optimizer: OptimizerFile { kind: optimizer.kind, steps: optimizer.steps },
        clip: OptimizerFile { kind: clip.kind, steps: clip.steps },
        guard: state.guard,
        seconds,
        eval_history: eval_history.clone(),
        data: data.into(),
        base: base.into(),
    };
    let text = serde_json::to_string_pretty(&file).map_err(|error| CheckpointError::Io {
        path: folder.join(STATE_FILE),
        cause: error.into(),
    })?;
    let texts =
        [(STATE_FILE, text.as_str()), (CONFIG_FILE, config), (TRAINER_STATE_FILE, trainer_state)];
    for (name, text) in texts {
        let path = folder.join(name);
        write_atomically(&path, |out| out.write_all(text.as_bytes()))
            .map_err(|cause| CheckpointError::Io { path, cause })?;
    }
    tracing::info!(folder = %folder.display(), step = state.step, "checkpoint written");
    Ok(())
}

/// A complete checkpoint.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The folder.
    pub path: PathBuf,
    /// Its training state, without weights and moments.
    pub state: TrainingState,
    /// The text of its configuration.
    pub config: String,
}

impl Checkpoint {
    /// Reads a checkpoint and verifies the checksums of its files.
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
                .map_err(|cause| CheckpointError::Io { path: path.into(), cause })
        };
        let state = text(&state_path)?;
        #[derive(Deserialize)]
        struct Format {
            version: u32,
        }
        let wrong = |error: serde_json::Error| damaged(format!("{STATE_FILE}: {error}"));
        let Format { version: found } = serde_json::from_str(&state).map_err(wrong)?;
        if !(1..=VERSION).contains(&found) {
            return Err(CheckpointError::Version { path: state_path, found });
        }
        let state = serde_json::from_str(&state).map_err(wrong)?;
        let config = text(&path.join(CONFIG_FILE))?;
        Ok(Self { path: path.into(), state, config })
    }

    /// The state of the training loop. `new_optimizer`: with a fresh optimizer instead of the stored one.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], if the stored moments don't fit the optimizer or the trainable parameters of `model`.
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
        let TrainingState { step, rows, data_position: CursorFile { epoch, row }, guard, .. } =
            self.state;
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
        // Another way of clipping was allowed when the run was resumed.
        let clipper = if kind == clip.name() {
            let state = OptimizerState { kind, steps, tensors: norms };
            Clipper::restore(clip, &state).map_err(damaged)?
        } else {
            Clipper::new(clip)
        };
        let data_position = DataPosition { rows, cursor: Cursor { epoch, place: row } };
        Ok(State { step, data_position, optimizer, clipper, guard })
    }

    fn damaged(&self, why: String) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), why }
    }

    /// The tensors of the optimizer, and those of the clipping.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `training_state.json` as version 0.1 wrote it before the fields were renamed.
    const OLD: &str = r#"{
        "version": 1, "emberlm": "0.1.0", "step": 7, "rows": 28,
        "cursor": {"epoch": 1, "place": 4},
        "optimizer": {"kind": "adamw", "steps": 7},
        "clip": {"kind": "norm", "steps": 0},
        "guard": {"seen": 7, "mean": 2.5, "variance": 0.1, "skipped": 0},
        "seconds": 12.5,
        "book": {
            "first": {"loss": 3.0, "perplexity": 20.1, "supervised_tokens": 9, "examples": 2},
            "last": [7, {"loss": 2.0, "perplexity": 7.4, "supervised_tokens": 9, "examples": 2}],
            "best": {"step": 7, "loss": 2.0},
            "without_improvement": 0, "first_answers": ["a"], "last_answers": ["b"]
        },
        "data": "d", "base": "b"
    }"#;

    #[test]
    fn states_with_the_old_names_are_read() {
        let state: TrainingState = serde_json::from_str(OLD).unwrap();
        let CursorFile { epoch, row } = state.data_position;
        assert_eq!((state.step, epoch, row), (7, 1, 4));
        let history = &state.eval_history;
        assert_eq!(history.best.map(|best| best.step), Some(7));
        assert_eq!(history.last.map(|(step, _)| step), Some(7));
        let new = serde_json::to_value(&state).unwrap();
        assert_eq!(new["data_position"], serde_json::json!({"epoch": 1, "row": 4}));
        assert!(new.get("eval_history").is_some() && new.get("book").is_none());
        assert_eq!(serde_json::from_value::<TrainingState>(new).unwrap(), state);
    }
}
