//! `run.json`: inputs, program and result of a run, so that it can be checked and reproduced.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use emberlm_data::{DataError, TextTokenizer, data_files, date};
use emberlm_quant::atomic_file::write_atomically;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::base::file_hash::{HashedFile, Hashing, combined};
use crate::config::{DataSource, RunConfig};

pub use crate::run::files::MANIFEST_FILE;

/// Inputs, program and result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The program.
    pub program: Program,
    /// Start of its first part, in UTC.
    pub started: String,
    /// Steps after which it was resumed.
    pub resumed_after: Vec<u64>,
    /// The base model.
    pub base: Source,
    /// The tokenizer, its chat template among its files.
    pub tokenizer: Source,
    /// Training and evaluation files, in the order in which they are read; none for the built-in data.
    pub data: Source,
    /// Fingerprint of the tokenized training data.
    pub rows: String,
    /// The resolved configuration.
    pub config: Table,
    /// The result; absent before the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
}

/// The program that ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its version.
    pub version: String,
    /// Its target: architecture and operating system.
    pub target: String,
    /// Its build profile: `debug` or `release`.
    pub build: String,
    /// The backend.
    pub backend: String,
    /// CPU threads; they don't change the result.
    pub threads: usize,
}

/// Files with hashes of their contents.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A hash of all files.
    pub hash: String,
    /// The files.
    pub files: Vec<HashedFile>,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Steps made.
    pub steps: u64,
    /// Whether it ended without being interrupted.
    pub finished: bool,
    /// Loss on the evaluation data, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
    /// The weights.
    pub weights: Source,
}

impl Source {
    /// Of `files`.
    pub fn new(files: Vec<HashedFile>) -> Self {
        Self { hash: combined(&files), files }
    }

    /// Of a tokenizer.
    pub fn tokenizer(tokenizer: &TextTokenizer) -> Self {
        let files = tokenizer.files().map(|(name, bytes)| HashedFile::of_bytes(name, bytes));
        Self::new(files.collect())
    }

    /// The weights in a run folder: every safetensors file.
    ///
    /// # Errors
    /// Of the file system.
    pub fn weights(folder: &Path) -> io::Result<Self> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
        paths.sort_unstable();
        Ok(Self::new(paths.iter().map(|path| HashedFile::read(path)).collect::<io::Result<_>>()?))
    }
}

impl Program {
    /// This program, computing on `backend`.
    pub fn this(backend: &str) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            backend: backend.into(),
            threads: rayon::current_num_threads(),
        }
    }
}

/// Starts hashing the data files of a run.
///
/// # Errors
/// If a file is missing.
pub fn begin_hashing_data(config: &RunConfig) -> Result<Hashing, DataError> {
    let (train, eval): (Vec<PathBuf>, &[PathBuf]) = match &config.data.source {
        DataSource::Builtin => (Vec::new(), &[]),
        DataSource::Files { train, eval } => (train.clone(), eval),
        DataSource::Mixture { source, eval } => {
            (source.iter().flat_map(|source| source.path.clone()).collect(), eval)
        }
    };
    let mut files = Vec::new();
    for paths in [train.as_slice(), eval] {
        if !paths.is_empty() {
            files.extend(data_files(paths)?);
        }
    }
    Ok(Hashing::begin(Vec::new(), files))
}

impl Manifest {
    /// The manifest of a run that starts now.
    ///
    /// # Errors
    /// Of writing the configuration as TOML.
    pub fn new(
        backend: &str,
        config: &RunConfig,
        base: Source,
        tokenizer: Source,
        data: Source,
        rows: String,
    ) -> Result<Self, crate::config::WriteError> {
        Ok(Self {
            program: Program::this(backend),
            started: date::now(),
            resumed_after: Vec::new(),
            base,
            tokenizer,
            data,
            rows,
            config: Table::try_from(config)?,
            result: None,
        })
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ManifestError::Io { path: path.into(), cause })?;
        serde_json::from_str(&text)
            .map_err(|error| ManifestError::Json { path: path.into(), reason: error.to_string() })
    }

    /// Writes it into a run folder, replacing an older one.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        write_atomically(&folder.join(MANIFEST_FILE), |out| {
            out.write_all(text.as_bytes())?;
            out.write_all(b"\n")
        })
    }
}

/// Why a manifest can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Of the file system.
    #[error("{}: {cause}. Expected the {MANIFEST_FILE} of a run folder", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// It is not a manifest.
    #[error("{}: expected the {MANIFEST_FILE} of a run folder; {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}
