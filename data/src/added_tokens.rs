//! Adding tokens to a tokenizer and to its files, in the format that transformers writes.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use crate::error::DataError;
use crate::files::{ADDED_TOKENS, CONFIG, FileSet, TOKENIZER};
use crate::tokenizer::TextTokenizer;

impl TextTokenizer {
    /// The tokenizer with added tokens, and their ids. They are recognized in any text, before all other tokenization,
    /// and are not special tokens: decoding keeps them. The files that [`TextTokenizer::save`] writes include them.
    ///
    /// # Errors
    /// A token that is empty, given twice, or already in the tokenizer.
    pub fn with_added_tokens(self, tokens: &[String]) -> Result<(Self, Vec<u32>), DataError> {
        let wrong = |expected: &str, found: &str| DataError::Setting {
            key: "model.add_tokens".into(),
            expected: expected.into(),
            found: found.into(),
            nearest: None,
        };
        let mut seen = BTreeSet::new();
        for token in tokens {
            if token.trim().is_empty() {
                return Err(wrong(
                    "tokens with at least one character other than white space",
                    token,
                ));
            }
            if let Some(id) = self.token_to_id(token) {
                return Err(wrong(
                    &format!("new tokens (the tokenizer already has it as token {id})"),
                    token,
                ));
            }
            if !seen.insert(token) {
                return Err(wrong("each token once", token));
            }
        }
        let mut tokenizer = self.inner().clone();
        let added: Vec<AddedToken> = tokens
            .iter()
            .map(|token| AddedToken::from(token.as_str(), false).normalized(false))
            .collect();
        tokenizer.add_tokens(&added);
        let ids: Vec<u32> =
            tokens.iter().filter_map(|token| tokenizer.token_to_id(token)).collect();
        let files = with_tokens(self.into_files(), tokens, &ids)?;
        let made = Self::load(files)?;
        let again: Vec<u32> = tokens.iter().filter_map(|token| made.token_to_id(token)).collect();
        if ids.len() != tokens.len() || again != ids {
            return Err(wrong("tokens that this tokenizer can add", &tokens.join(", ")));
        }
        Ok((made, ids))
    }
}

/// The tokenizer's files, with the tokens added to each file that lists added tokens.
fn with_tokens(mut files: FileSet, tokens: &[String], ids: &[u32]) -> Result<FileSet, DataError> {
    let entry = |token: &str| -> Map<String, Value> {
        let entry = json!({
            "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        });
        entry.as_object().cloned().unwrap_or_default()
    };
    let mut tokenizer = files.object(TOKENIZER)?;
    let list = tokenizer.entry("added_tokens").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else {
        return Err(files.fault(TOKENIZER, "added_tokens: expected a list"));
    };
    for (token, id) in tokens.iter().zip(ids) {
        let mut with_id = Map::from_iter([("id".to_owned(), json!(id))]);
        with_id.extend(entry(token));
        list.push(Value::Object(with_id));
    }
    files.set(TOKENIZER, text(&tokenizer));
    let mut config = files.object(CONFIG)?;
    if let Some(Value::Object(decoder)) = config.get_mut("added_tokens_decoder") {
        for (token, id) in tokens.iter().zip(ids) {
            decoder.insert(id.to_string(), Value::Object(entry(token)));
        }
        files.set(CONFIG, text(&config));
    }
    if files.get(ADDED_TOKENS).is_some() {
        let mut added = files.object(ADDED_TOKENS)?;
        added.extend(tokens.iter().zip(ids).map(|(token, id)| (token.clone(), json!(id))));
        files.set(ADDED_TOKENS, text(&added));
    }
    Ok(files)
}

fn text(object: &Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(object.clone())).into_bytes()
}
