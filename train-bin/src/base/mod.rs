//! The model that a command starts from: a Hugging Face folder, the built-in example, or random weights.

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
        /// The folder of the tokenizer: by default that of the `config.json`.
        tokenizer: PathBuf,
    },
}

/// What `--model` takes for the model in the program.
pub const BUILTIN: &str = "builtin";

/// A base model that has been opened: configuration, tokenizer, and weights that are read when it is built.
pub struct Base {
    /// What the model is.
    pub config: ModelConfig,
    /// The text of its `config.json`.
    pub config_text: String,
    /// Its tokenizer.
    pub tokenizer: TextTokenizer,
    /// What an adapter's configuration calls it.
    pub name: String,
    /// The folder it lies in, if it does.
    pub folder: Option<PathBuf>,
    /// Tokens that were added to its vocabulary and are to be trained, in order.
    pub added_tokens: Vec<usize>,
    /// Rows of the embedding in its files; it may have grown since.
    pub(crate) stored_vocabulary: usize,
    weights: Weights,
}

enum Weights {
    Checkpoint(Checkpoint),
    Random { seed: u64 },
}

/// Why a base model can't be opened or built.
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
    /// Layers to be left dense that the model doesn't have.
    #[error(
        "no linear layer of this model is called {}; it has: {}. Layers to skip are named whole, or by parts of their names from dot to dot",
        unknown.join(", "),
        available.join(", ")
    )]
    UnknownSkip {
        /// The names.
        unknown: Vec<String>,
        /// The last parts of the layers' names.
        available: Vec<String>,
    },
    /// A tokenizer that makes tokens which the model doesn't know.
    #[error(
        "{name}: the tokenizer has {tokenizer} tokens and the model only {model}: they don't belong together. Take both from one folder"
    )]
    Vocabulary {
        /// The model.
        name: String,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// Tokens of an adapter that the model has no place for.
    #[error(
        "the adapter brings rows of tokens {}: expected rows of `embed_tokens`, and of `lm_head` where the model has a head of its own, for tokens below {vocabulary}", found.join(", ")
    )]
    AdapterTokens {
        /// What it brings that doesn't fit.
        found: Vec<String>,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// An adapter on the head beside rows of the head that are trained by themselves.
    #[error(
        "tokens were added, so rows of lm_head are trained by themselves, and lora.target_modules puts an adapter on lm_head too: PEFT knows only one of them. Leave lm_head out of lora.target_modules"
    )]
    HeadAdapter,
    /// An adapter's tokens and others.
    #[error(
        "{} brings tokens of its own along, and model.add_tokens would add more. Remove model.add_tokens; to add further tokens, merge the adapter first", adapter.display()
    )]
    TokensTwice {
        /// The adapter's folder.
        adapter: PathBuf,
    },
}

impl Base {
    /// Opens what a run's configuration names. `seed` is for random weights.
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

    /// Opens what `--model` names: a folder, or `builtin`.
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

    /// The model on a device, all frozen, its weights held as asked for; linear layers that are stored quantized stay so.
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

    /// The model on a device with the weights of another folder, which are all there and dense.
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

    /// Begins to hash its configuration and its weights.
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

    /// The model on a device, with an adapter if one is named.
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

    /// The float type that the base's files are stored in.
    pub fn stored_dtype(&self) -> FloatDtype {
        match &self.weights {
            Weights::Checkpoint(checkpoint) => checkpoint.dtype(),
            Weights::Random { .. } => FloatDtype::F32,
        }
    }
}

/// A typing error in a list of layers must not pass unseen.
fn refuse_unknown_skips(
    config: &ModelConfig,
    quantization: &Quantization,
) -> Result<(), BaseError> {
    let tensors = config.tensors();
    let layers: Vec<&str> = tensors
        .iter()
        .filter(|(key, shape)| shape.len() == 2 && key.starts_with("model.layers."))
        .filter_map(|(key, _)| key.strip_suffix(".weight"))
        .collect();
    let is_known = |skip: &str| {
        let alone = Quantization { skip_modules: vec![skip.into()], ..quantization.clone() };
        // Dense always, and listed by transformers also where it is tied and no layer of its own.
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
