//! The files of a tokenizer: read from a folder or from memory, written back byte for byte.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::DataError;

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const CONFIG: &str = "tokenizer_config.json";
pub(crate) const SPECIAL_TOKENS: &str = "special_tokens_map.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
pub(crate) const GENERATION: &str = "generation_config.json";
pub(crate) const MORE_TEMPLATES: &str = "additional_chat_templates";

pub(crate) const ADDED_TOKENS: &str = "added_tokens.json";

/// Files that are only copied, for other programs.
const COMPANIONS: [&str; 4] = [ADDED_TOKENS, "vocab.json", "merges.txt", "tokenizer.model"];

/// A tokenizer's files held in memory, such as those of the built-in example.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json`
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<&'a [u8]>,
    /// `special_tokens_map.json`
    pub special_tokens_map: Option<&'a [u8]>,
    /// `chat_template.jinja`
    pub chat_template: Option<&'a str>,
    /// `generation_config.json`
    pub generation_config: Option<&'a [u8]>,
}

/// Files by name, unchanged.
#[derive(Debug, Clone)]
pub(crate) struct FileSet {
    /// The folder, as a prefix of names in messages.
    origin: String,
    files: Vec<(String, Vec<u8>)>,
}

impl FileSet {
    pub(crate) fn from_parts(parts: TokenizerFiles<'_>) -> Self {
        let files = [
            (TOKENIZER, Some(parts.tokenizer_json)),
            (CONFIG, parts.tokenizer_config),
            (SPECIAL_TOKENS, parts.special_tokens_map),
            (CHAT_TEMPLATE, parts.chat_template.map(str::as_bytes)),
            (GENERATION, parts.generation_config),
        ];
        Self {
            origin: String::new(),
            files: files
                .into_iter()
                .filter_map(|(name, bytes)| Some((name.to_owned(), bytes?.to_vec())))
                .collect(),
        }
    }

    pub(crate) fn from_dir(dir: &Path) -> Result<Self, DataError> {
        let mut names: Vec<String> = [TOKENIZER, CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE, GENERATION]
            .into_iter()
            .chain(COMPANIONS)
            .map(str::to_owned)
            .collect();
        if let Ok(entries) = fs::read_dir(dir.join(MORE_TEMPLATES)) {
            let mut more: Vec<String> = entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter(|name| name.ends_with(".jinja"))
                .map(|name| format!("{MORE_TEMPLATES}/{name}"))
                .collect();
            more.sort();
            names.extend(more);
        }
        if !dir.join(TOKENIZER).is_file() {
            return Err(no_tokenizer(dir));
        }
        let mut files = Vec::new();
        for name in names {
            let path = dir.join(&name);
            match fs::read(&path) {
                Ok(bytes) => files.push((name, bytes)),
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => return Err(DataError::Read { path, cause }),
            }
        }
        Ok(Self { origin: format!("{}/", dir.display()), files })
    }

    /// All files with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_slice())
    }

    pub(crate) fn set(&mut self, name: &str, bytes: Vec<u8>) {
        self.files.retain(|(known, _)| known != name);
        self.files.push((name.to_owned(), bytes));
    }

    /// Names of the files in a subfolder.
    pub(crate) fn under(&self, folder: &str) -> impl Iterator<Item = &str> {
        self.files
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(move |name| name.starts_with(folder))
    }

    /// The file's name for messages.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}{name}", self.origin)
    }

    pub(crate) fn fault(&self, name: &str, detail: impl Into<String>) -> DataError {
        DataError::TokenizerFile { file: self.shown(name), detail: detail.into() }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, DataError> {
        let text = self.get(name).map(std::str::from_utf8).transpose();
        text.map_err(|error| self.fault(name, format!("invalid UTF-8: {error}")))
    }

    /// The file as a JSON object; an absent file is an empty one.
    pub(crate) fn object(&self, name: &str) -> Result<serde_json::Map<String, Value>, DataError> {
        let Some(bytes) = self.get(name) else { return Ok(serde_json::Map::new()) };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(self.fault(name, "expected a JSON object. Download the file again")),
            Err(error) => {
                Err(self.fault(name, format!("invalid JSON: {error}. Download the file again")))
            }
        }
    }

    pub(crate) fn save(&self, dir: &Path) -> Result<(), DataError> {
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            let write = || {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                fs::write(&path, bytes)
            };
            write().map_err(|cause| DataError::Write { path: path.clone(), cause })?;
        }
        Ok(())
    }
}

fn no_tokenizer(dir: &Path) -> DataError {
    let mut found: Vec<String> = match fs::read_dir(dir) {
        Ok(entries) => {
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
        }
        Err(cause) => {
            return DataError::Read { path: dir.to_owned(), cause };
        }
    };
    found.sort();
    let sentencepiece = found.iter().any(|name| name == "tokenizer.model");
    let slow = found.iter().any(|name| name == "vocab.json");
    DataError::NoTokenizer {
        dir: dir.to_owned(),
        found: match found.as_slice() {
            [] => "nothing".into(),
            all if all.len() <= 12 => all.join(", "),
            some => format!("{}, … ({} files)", some[..12].join(", "), some.len()),
        },
        remedy: if sentencepiece || slow {
            "This is an older tokenizer format. To convert it, load the folder with transformers' AutoTokenizer and call save_pretrained, which writes tokenizer.json"
        } else {
            "Expected a Hugging Face model folder. Check the path, or download tokenizer.json from the model's page"
        },
    }
}
