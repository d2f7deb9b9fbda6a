//! Tokens added to the vocabulary of a base, by configuration or by an adapter.

use std::path::Path;

use emberlm_data::TextTokenizer;
use emberlm_lora::peft::AdapterFolder;
use emberlm_model::{CausalLm, ConfigError};
use emberlm_quant::QuantBackend;

use crate::base::{Base, BaseError};

impl Base {
    /// Adds tokens to the tokenizer and grows the vocabulary. Each new row is the mean of the existing rows. `init_from`: the
    /// adapter that training starts from.
    ///
    /// # Errors
    /// [`BaseError::Tokenizer`] for a token that exists already; [`BaseError::TokensTwice`].
    pub fn with_added_tokens(
        mut self,
        tokens: &[String],
        init_from: Option<&Path>,
    ) -> Result<Self, BaseError> {
        if tokens.is_empty() {
            return Ok(self);
        }
        if let Some(adapter) = init_from
            && AdapterFolder::open(adapter)?.least_vocabulary() > 0
        {
            return Err(BaseError::TokensTwice { adapter: adapter.into() });
        }
        let (tokenizer, ids) = self.tokenizer.with_added_tokens(tokens)?;
        self.tokenizer = tokenizer;
        self.added_tokens = ids.into_iter().map(|id| id as usize).collect();
        self.added_tokens.sort_unstable();
        let vocabulary = self.tokenizer.vocab_size();
        self.grow(vocabulary)
    }

    /// Prepares the base for the added tokens of an adapter, if it has any: grows the vocabulary, and uses the tokenizer in the
    /// adapter's folder, if there is one.
    ///
    /// # Errors
    /// [`BaseError::Adapter`], [`BaseError::Tokenizer`].
    pub fn for_adapter(mut self, adapter: Option<&Path>) -> Result<Self, BaseError> {
        let Some(folder) = adapter else { return Ok(self) };
        let least = AdapterFolder::open(folder)?.least_vocabulary();
        if least == 0 {
            return Ok(self);
        }
        if folder.join("tokenizer.json").is_file() {
            self.tokenizer = TextTokenizer::from_dir(folder)?;
        }
        let vocabulary = least.max(self.tokenizer.vocab_size());
        self.grow(vocabulary)
    }

    /// Grows the vocabulary to this many tokens, in `config.json` too.
    fn grow(mut self, vocabulary: usize) -> Result<Self, BaseError> {
        if vocabulary <= self.config.vocab_size {
            return Ok(self);
        }
        let unreadable = |error: serde_json::Error| {
            let (path, reason) = ("config.json".into(), error.to_string());
            emberlm_model::LoadError::from(ConfigError::Unreadable { path, reason })
        };
        let mut config: serde_json::Value =
            serde_json::from_str(&self.config_text).map_err(unreadable)?;
        config["vocab_size"] = vocabulary.into();
        self.config_text = format!("{config:#}\n");
        self.config.vocab_size = vocabulary;
        Ok(self)
    }
}

/// Applies an adapter to a model, and its rows of added tokens.
///
/// # Errors
/// [`BaseError::Adapter`]; [`BaseError::AdapterTokens`].
pub(crate) fn adapted<B: QuantBackend>(
    mut model: CausalLm<B>,
    adapter: &AdapterFolder,
    device: &B::Device,
) -> Result<CausalLm<B>, BaseError> {
    adapter.apply(model.linears_mut(), device)?;
    let [vocabulary, width] = model.model.embed_tokens.weight.dims();
    let tables = ["embed_tokens", "lm_head"];
    let misplaced = adapter.tokens.iter().filter(|(table, ids)| {
        !tables.contains(&table.as_str()) || ids.iter().any(|&id| id >= vocabulary)
    });
    let mut found: Vec<String> =
        misplaced.map(|(table, ids)| format!("{ids:?} of {table}")).collect();
    let of_embedding = adapter.tokens.get("embed_tokens");
    let of_head = adapter.tokens.get("lm_head");
    if model.lm_head.is_none() && of_head.is_some_and(|head| Some(head) != of_embedding) {
        found.push("of lm_head, which is the embedding here, and not of the embedding".into());
    }
    if !found.is_empty() {
        return Err(BaseError::AdapterTokens { found, vocabulary });
    }
    model.model.embed_tokens.tokens = adapter.token_rows("embed_tokens", width, device)?;
    if model.lm_head.is_some() {
        model.head_tokens = adapter.token_rows("lm_head", width, device)?;
    }
    Ok(model)
}
