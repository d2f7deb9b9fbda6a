//! The base model of a command: a Hugging Face folder, the built-in example, or random weights.

pub mod builtin;
pub mod file_hash;
pub(crate) mod vocabulary;

use std::path::{Path, PathBuf};

use emberlm_data::{DataError, TextTokenizer};
use emberlm_lora::peft::{AdapterFolder, PeftError};
use emberlm_model::weights::{self, Checkpoint};
use emberlm_model::{CausalLm, ConfigError, LoadError, ModelConfig, WeightForm};
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantBackend, Quantization};
use serde::Serialize;

use crate::base::file_hash::{HashedFile, Hashing};
use crate::base::vocabulary::adapted;
use crate::settings::shown;

/// Where the weights and the tokenizer come from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(untagged)]
pub enum ModelSource {
    /// The example model in the program.
    #[default]
    Builtin,
    /// A Hugging Face folder.
    Pretrained {
        /// The folder.
        path: PathBuf,
        /// The folder of the tokenizer: by default the same.
        tokenizer: PathBuf,
    },
    /// Random weights, for pre-training from scratch.
    Scratch {
        /// A Hugging Face `config.json`.
        config: PathBuf,
        /// The folder of the tokenizer: by default the one with the `config.json`.
        tokenizer: PathBuf,
    },
}

/// Name of the built-in model for `--model`.
pub const BUILTIN: &str = "builtin";

/// An opened base model: configuration and tokenizer; weights are read when it is built.
pub struct Base {
    /// Architecture.
    pub config: ModelConfig,
    /// Contents of its `config.json`.
    pub config_text: String,
    /// Its tokenizer.
    pub tokenizer: TextTokenizer,
    /// Its name in an adapter's configuration.
    pub name: String,
    /// Its folder; `None` for the built-in model and random weights.
    pub folder: Option<PathBuf>,
    /// Ids of tokens added to its vocabulary, whose rows are trained; sorted.
    pub added_tokens: Vec<usize>,
    /// Rows of the embedding in its files, before tokens were added.
    pub(crate) stored_vocabulary: usize,
    weights: Weights,
}

enum Weights {
    Checkpoint(Checkpoint),
    Random { seed: u64 },
}

/// Why a base model cannot be opened or built.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// Configuration or weights.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    /// The adapter.
    #[error(transparent)]
    Adapter(#[from] PeftError),
    /// Unknown names of layers to keep dense.
    #[error(
        "no linear layer of this model is named {}; available: {}. Use full names, or dot-separated parts of them",
        unknown.join(", "),
        available.join(", ")
    )]
    UnknownSkip {
        /// The names.
        unknown: Vec<String>,
        /// Last components of the layers' names.
        available: Vec<String>,
    },
    /// A tokenizer with more tokens than the model.
    #[error(
        "{name}: the tokenizer has {tokenizer} tokens, but the model only {model}: they do not match. Use the tokenizer of the model"
    )]
    Vocabulary {
        /// The model.
        name: String,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// Token rows of an adapter that do not fit the model.
    #[error(
        "the adapter has token rows {}: expected rows of `embed_tokens`, and of `lm_head` unless it is tied, for token ids below {vocabulary}", found.join(", ")
    )]
    AdapterTokens {
        /// The rows that do not fit.
        found: Vec<String>,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// An adapter on the head in addition to trained rows of added tokens.
    #[error(
        "added tokens train rows of lm_head, and lora.target_modules adds an adapter to lm_head: PEFT supports only one of them. Remove lm_head from lora.target_modules"
    )]
    HeadAdapter,
    /// Tokens added by the adapter and by the configuration.
    #[error(
        "{} already has added tokens, and model.add_tokens would add more. Remove model.add_tokens, or merge the adapter first", adapter.display()
    )]
    TokensTwice {
        /// The adapter's folder.
        adapter: PathBuf,
    },
}

impl Base {
    /// Opens the model of a run's configuration. `seed`: of random weights.
    ///
    /// # Errors
    /// [`BaseError`].
    pub fn open(source: &ModelSource, seed: u64) -> Result<Self, BaseError> {
        match source {
            ModelSource::Builtin => builtin::base(),
            ModelSource::Pretrained { path, tokenizer } => {
                let config_text = read_config(&path.join("config.json"))?;
                let config = parse_config(&config_text, &path.join("config.json"))?;
                let checkpoint = Checkpoint::open(path, &config)?;
                let tokenizer = TextTokenizer::from_dir(tokenizer)?;
                let name = shown(path).display().to_string();
                let weights = Weights::Checkpoint(checkpoint);
                let base = Self::new(config, config_text, tokenizer, name, weights)?;
                Ok(Self { folder: Some(path.clone()), ..base })
            }
            ModelSource::Scratch { config: path, tokenizer } => {
                let config_text = read_config(path)?;
                let config = parse_config(&config_text, path)?;
                let tokenizer = TextTokenizer::from_dir(tokenizer)?;
                let name = shown(path).display().to_string();
                Self::new(config, config_text, tokenizer, name, Weights::Random { seed })
            }
        }
    }

    /// Opens the model of `--model`: a folder, or `builtin`.
    ///
    /// # Errors
    /// [`BaseError`].
    pub fn open_path(path: &Path) -> Result<Self, BaseError> {
        if path == Path::new(BUILTIN) && !path.exists() {
            return builtin::base();
        }
        let path: PathBuf = path.into();
        Self::open(&ModelSource::Pretrained { path: path.clone(), tokenizer: path }, 0)
    }

    pub(crate) fn from_checkpoint(
        config: ModelConfig,
        config_text: String,
        tokenizer: TextTokenizer,
        name: String,
        checkpoint: Checkpoint,
    ) -> Result<Self, BaseError> {
        Self::new(config, config_text, tokenizer, name, Weights::Checkpoint(checkpoint))
    }

    fn new(
        config: ModelConfig,
        config_text: String,
        tokenizer: TextTokenizer,
        name: String,
        weights: Weights,
    ) -> Result<Self, BaseError> {
        let (found, model) = (tokenizer.vocab_size(), config.vocab_size);
        if found > model {
            return Err(BaseError::Vocabulary { name, tokenizer: found, model });
        }
        tracing::info!(model = name, "model opened");
        Ok(Self {
            stored_vocabulary: config.vocab_size,
            config,
            config_text,
            tokenizer,
            name,
            folder: None,
            added_tokens: Vec::new(),
            weights,
        })
    }

    /// The model on a device, frozen, its weights in the given form; linear layers that are stored quantized stay quantized.
    ///
    /// # Errors
    /// [`BaseError::Load`].
    pub fn build<B: QuantBackend>(
        &self,
        form: WeightForm<'_>,
        device: &B::Device,
    ) -> Result<CausalLm<B>, BaseError> {
        if let Some(quantization) = form.quantization {
            refuse_unknown_skips(&self.config, quantization)?;
        }
        match &self.weights {
            Weights::Checkpoint(checkpoint) => {
                let stored =
                    ModelConfig { vocab_size: self.stored_vocabulary, ..self.config.clone() };
                let model = weights::from_checkpoint(&stored, checkpoint, form, device)?;
                Ok(model.grow_vocabulary(self.config.vocab_size))
            }
            Weights::Random { seed } => {
                form.check::<B>(device)?;
                let model = weights::random_in(&self.config, form.dtype, *seed, device);
                Ok(match form.quantization {
                    Some(quantization) => model.quantize(quantization),
                    None => model,
                })
            }
        }
    }

    /// The model on a device with the weights of another folder, which must be complete and dense.
    ///
    /// # Errors
    /// [`BaseError::Load`].
    pub fn build_from<B: QuantBackend>(
        &self,
        folder: &Path,
        device: &B::Device,
    ) -> Result<CausalLm<B>, BaseError> {
        let checkpoint = Checkpoint::open(folder, &self.config)?;
        Ok(weights::from_checkpoint(&self.config, &checkpoint, WeightForm::default(), device)?)
    }

    /// Starts hashing its configuration and weights.
    pub fn begin_hashing(&self) -> Hashing {
        let mut known = vec![HashedFile::of_bytes("config.json", self.config_text.as_bytes())];
        let paths = match &self.weights {
            Weights::Checkpoint(_) if self.folder.is_none() => {
                known.push(builtin::weights());
                Vec::new()
            }
            Weights::Checkpoint(checkpoint) => checkpoint.paths().map(Path::to_owned).collect(),
            Weights::Random { seed } => {
                known.push(HashedFile::of_bytes("random weights", &seed.to_le_bytes()));
                Vec::new()
            }
        };
        Hashing::begin(known, paths)
    }

    /// The model on a device, with an optional adapter.
    ///
    /// # Errors
    /// [`BaseError`].
    pub fn build_with<B: QuantBackend>(
        &self,
        adapter: Option<&Path>,
        form: WeightForm<'_>,
        device: &B::Device,
    ) -> Result<CausalLm<B>, BaseError> {
        let mut model = self.build::<B>(form, device)?;
        if let Some(folder) = adapter {
            model = adapted(model, &AdapterFolder::open(folder)?, device)?;
        }
        Ok(model)
    }

    /// The dtype of the base's files.
    pub fn stored_dtype(&self) -> FloatDtype {
        match &self.weights {
            Weights::Checkpoint(checkpoint) => checkpoint.dtype(),
            Weights::Random { .. } => FloatDtype::F32,
        }
    }
}

/// Refuses misspelled names of layers.
fn refuse_unknown_skips(
    config: &ModelConfig,
    quantization: &Quantization,
) -> Result<(), BaseError> {
    let layers: Vec<String> = config.linears().map(|(path, _)| path).collect();
    let is_known = |skip: &str| {
        let alone = Quantization { skip_modules: vec![skip.into()], ..quantization.clone() };
        // Always dense; transformers lists it even if it is tied.
        skip == "lm_head" || layers.iter().any(|layer| alone.skips(layer))
    };
    let unknown: Vec<String> =
        quantization.skip_modules.iter().filter(|skip| !is_known(skip)).cloned().collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut available: Vec<String> =
        layers.iter().map(|layer| layer.rsplit('.').next().unwrap_or(layer).to_owned()).collect();
    available.sort_unstable();
    available.dedup();
    Err(BaseError::UnknownSkip { unknown, available })
}

fn read_config(path: &Path) -> Result<String, LoadError> {
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError::Unreadable {
        path: path.into(),
        reason: format!("{e}. Expected a Hugging Face model folder with a config.json"),
    });
    Ok(text?)
}

fn parse_config(text: &str, path: &Path) -> Result<ModelConfig, LoadError> {
    Ok(ModelConfig::parse(text, path)?)
}
