//! The built-in example: a tiny chat model and its data, embedded in the program. `assets/README.md` describes how they are
//! made.

use std::path::Path;

use emberlm_data::{DataError, Format, SourcedRow, TextTokenizer, TokenizerFiles, parse_rows};
use emberlm_model::ModelConfig;
use emberlm_model::weights::{Checkpoint, LoadError};
use emberlm_quant::TensorFile;

use crate::base::file_hash::HashedFile;
use crate::base::{BUILTIN, Base, BaseError};

/// Configuration of `emberlm train` without arguments.
pub const RUN: &str = include_str!("../../../assets/example.toml");

const CONFIG: &str = include_str!("../../../assets/config.json");
const WEIGHTS: &[u8] = include_bytes!("../../../assets/model.safetensors");
const TRAIN: &str = include_str!("../../../assets/train.jsonl");
const HELDOUT: &str = include_str!("../../../assets/heldout.jsonl");
const PROMPTS: &str = include_str!("../../../assets/prompts.json");
const TOKENIZER: TokenizerFiles<'static> = TokenizerFiles {
    tokenizer_json: include_bytes!("../../../assets/tokenizer.json"),
    tokenizer_config: Some(include_bytes!("../../../assets/tokenizer_config.json")),
    special_tokens_map: Some(include_bytes!("../../../assets/special_tokens_map.json")),
    chat_template: Some(include_str!("../../../assets/chat_template.jinja")),
    generation_config: Some(include_bytes!("../../../assets/generation_config.json")),
};

/// The base model.
///
/// # Errors
/// [`BaseError`], if the program was built from damaged assets.
pub fn base() -> Result<Base, BaseError> {
    let config =
        ModelConfig::parse(CONFIG, Path::new("built-in config.json")).map_err(LoadError::from)?;
    let file =
        TensorFile::from_static("built-in model.safetensors", WEIGHTS).map_err(LoadError::from)?;
    let checkpoint = Checkpoint::from_files(vec![file], &config, Path::new(BUILTIN))?;
    let tokenizer = TextTokenizer::from_parts(TOKENIZER)?;
    Base::from_checkpoint(config, CONFIG.into(), tokenizer, BUILTIN.into(), checkpoint)
}

/// The hash of its weights.
pub fn weights() -> HashedFile {
    HashedFile::of_bytes("built-in model.safetensors", WEIGHTS)
}

/// Training data.
///
/// # Errors
/// [`DataError`], if the program was built from damaged assets.
pub fn train_rows() -> Result<Vec<SourcedRow>, DataError> {
    parse_rows(TRAIN, "built-in train.jsonl", Format::Auto)
}

/// Evaluation data.
///
/// # Errors
/// As [`train_rows`].
pub fn heldout_rows() -> Result<Vec<SourcedRow>, DataError> {
    parse_rows(HELDOUT, "built-in heldout.jsonl", Format::Auto)
}

/// Prompts answered before and after training.
pub fn prompts() -> Vec<String> {
    // A test checks that the file parses.
    serde_json::from_str(PROMPTS).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_are_three_prompts() {
        assert_eq!(super::prompts().len(), 3);
    }
}
