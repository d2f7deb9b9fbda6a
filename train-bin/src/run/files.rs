//! Names of the files in a run folder and in its checkpoints.

/// The resolved configuration; in a run folder and in each checkpoint.
pub const CONFIG_FILE: &str = "config.toml";
/// One JSON row per step and per evaluation.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// One JSON row per answer to a sample prompt.
pub const SAMPLES_FILE: &str = "samples.jsonl";
/// Statistics of the training and evaluation data.
pub const DATA_FILE: &str = "data.json";
/// The manifest: inputs, program and result of the run.
pub const MANIFEST_FILE: &str = "run.json";
/// The state of the run in the form of transformers' `Trainer`.
pub const TRAINER_STATE_FILE: &str = "trainer_state.json";
/// Folder of TensorBoard's event files.
pub const TENSORBOARD_FOLDER: &str = "tensorboard";
/// Locked by the process that writes the run folder.
pub const LOCK_FILE: &str = ".lock";
/// Prefix of a checkpoint's folder; the step follows.
pub const CHECKPOINT_PREFIX: &str = "checkpoint-";
/// State of the optimizer, in a checkpoint.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// All other state of the training loop, in a checkpoint.
pub const STATE_FILE: &str = "training_state.json";
/// Checksums of a checkpoint's files, in the format of `xxhsum -H2`; written last.
pub const SUMS_FILE: &str = "checksums.xxh128";
