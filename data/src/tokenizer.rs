//! The tokenizer of a model: text to tokens and back, conversations to text.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Encoding, PostProcessor, PostProcessorWrapper, Tokenizer};

use crate::error::{DataError, TemplateError};
use crate::files::{
    CHAT_TEMPLATE, CONFIG, FileSet, GENERATION, MORE_TEMPLATES, SPECIAL_TOKENS, TOKENIZER,
    TokenizerFiles,
};
use crate::row::Message;
use crate::template::{ChatTemplates, Rendered, TemplateSource, values};

/// A tokenizer with its chat template, as in a Hugging Face folder.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    templates: Option<ChatTemplates>,
    /// Special tokens at the start and end of a document.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    vocab_size: usize,
    generation_eos: Vec<u32>,
    files: FileSet,
}

/// Tokens and their byte ranges in the text.
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    pub(crate) offsets: Vec<(usize, usize)>,
}

/// Keys of the special tokens that a template can use.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl std::fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("pad", &self.pad)
            .field("has_chat_template", &self.templates.is_some())
            .finish_non_exhaustive()
    }
}

impl TextTokenizer {
    /// Reads the tokenizer of a Hugging Face folder.
    ///
    /// # Errors
    /// A folder without `tokenizer.json`; an invalid file; a syntax error in a chat template.
    pub fn from_dir(dir: &Path) -> Result<Self, DataError> {
        Self::load(FileSet::from_dir(dir)?)
    }

    /// Reads a tokenizer from files in memory.
    ///
    /// # Errors
    /// As [`TextTokenizer::from_dir`].
    pub fn from_parts(parts: TokenizerFiles<'_>) -> Result<Self, DataError> {
        Self::load(FileSet::from_parts(parts))
    }

    /// The tokenizer with another chat template, which is saved as `chat_template.jinja`.
    ///
    /// # Errors
    /// A syntax error in the template.
    pub fn with_chat_template(self, template: &str) -> Result<Self, DataError> {
        let mut files = self.files;
        files.set(CHAT_TEMPLATE, template.as_bytes().to_vec());
        Self::load(files)
    }

    pub(crate) fn load(files: FileSet) -> Result<Self, DataError> {
        let wrong = |error: String| {
            files.fault(
                TOKENIZER,
                format!("invalid tokenizer: {error}. Download the file again; a Git LFS pointer instead of the file is a common cause"),
            )
        };
        let json = files.get(TOKENIZER).unwrap_or_default();
        let mut tokenizer =
            Tokenizer::from_bytes(json).map_err(|error| wrong(error.to_string()))?;
        // Some files contain settings for truncation or padding.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| wrong(error.to_string()))?;

        let config = files.object(CONFIG)?;
        let map = files.object(SPECIAL_TOKENS)?;
        let generation = files.object(GENERATION)?;
        add_tokens(&mut tokenizer, &config, &map, &files)?;

        let named = |key: &str| token_text(config.get(key)).or_else(|| token_text(map.get(key)));
        let id = |key: &str| named(key).and_then(|text| tokenizer.token_to_id(&text));
        let generation_eos = ids(generation.get("eos_token_id"));
        let bos = id("bos_token").or_else(|| ids(generation.get("bos_token_id")).first().copied());
        let eos = id("eos_token").or_else(|| generation_eos.first().copied());
        let pad = id("pad_token").or_else(|| ids(generation.get("pad_token_id")).first().copied());

        // A post-processor adds special tokens, but may also trim offsets, which would falsify the mask: only the tokens
        // it adds are kept.
        let post = tokenizer.get_post_processor().cloned();
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let (mut prefix, mut suffix) = frame(&tokenizer, post.as_ref()).map_err(wrong)?;
        let flag = |key: &str| config.get(key).and_then(Value::as_bool);
        if let (Some(wanted), Some(bos)) = (flag("add_bos_token"), bos) {
            prefix.retain(|id| *id != bos);
            if wanted {
                prefix.insert(0, bos);
            }
        }
        if let (Some(wanted), Some(eos)) = (flag("add_eos_token"), eos) {
            suffix.retain(|id| *id != eos);
            if wanted {
                suffix.push(eos);
            }
        }

        let added = tokenizer.get_added_tokens_decoder();
        let vocab_size = added
            .keys()
            .map(|id| *id as usize + 1)
            .fold(tokenizer.get_vocab_size(false), usize::max);
        // Some tokenizers add runs of spaces, which never end a turn.
        let mut added: Vec<String> = added
            .into_values()
            .map(|token| token.content)
            .filter(|text| !text.trim().is_empty())
            .collect();
        added.sort();
        let variables =
            NAMED.iter().filter_map(|key| Some(((*key).to_owned(), named(key)?))).collect();
        let sources = template_sources(&files, &config)?;
        let templates = if sources.is_empty() {
            None
        } else {
            Some(ChatTemplates::new(sources, variables, added)?)
        };
        Ok(Self {
            tokenizer,
            templates,
            prefix,
            suffix,
            bos,
            eos,
            pad,
            vocab_size,
            generation_eos,
            files,
        })
    }

    /// Tokens of a text, without added special tokens; special tokens written in the text are recognized.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        Ok(self.encoded(text).map_err(DataError::Tokenizer)?.ids)
    }

    /// Tokens of a document as from transformers' `tokenizer(text)`: with the special tokens the tokenizer adds.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode_document(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let body = self.encode(text)?;
        Ok([&self.prefix, &body, &self.suffix].into_iter().flatten().copied().collect())
    }

    pub(crate) fn encoded(&self, text: &str) -> Result<Encoded, String> {
        let encoding = self.tokenizer.encode(text, false).map_err(|error| error.to_string())?;
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// Special tokens at the start of a document.
    pub(crate) fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Special tokens at the end of a document.
    pub(crate) fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, DataError> {
        self.tokenizer
            .decode(ids, skip_special)
            .map_err(|error| DataError::Tokenizer(error.to_string()))
    }

    /// Number of token ids: the highest plus one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The token of an id.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Texts of the special tokens, sorted. Content that contains one is tokenized as that token.
    pub fn special_tokens(&self) -> Vec<String> {
        let added = self.tokenizer.get_added_tokens_decoder().into_values();
        let mut texts: Vec<String> = added
            .filter(|token| token.special && !token.content.is_empty())
            .map(|token| token.content)
            .collect();
        texts.sort();
        texts
    }

    /// The end-of-text token.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// The beginning-of-text token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The padding token.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }

    pub(crate) fn inner(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn into_files(self) -> FileSet {
        self.files
    }

    /// The files the tokenizer was read from.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter()
    }

    /// Whether a chat template may use the date, so that a row's tokens depend on the day.
    pub(crate) fn uses_date(&self) -> bool {
        const FUNCTION: &[u8] = b"strftime_now";
        let calls = |bytes: &[u8]| bytes.windows(FUNCTION.len()).any(|part| part == FUNCTION);
        self.files.iter().any(|(name, bytes)| name != TOKENIZER && calls(bytes))
    }

    /// Whether conversations can be rendered.
    pub fn has_chat_template(&self) -> bool {
        self.templates.is_some()
    }

    /// Renders a conversation as transformers' `apply_chat_template` does. `strftime_now` returns today's date.
    ///
    /// # Errors
    /// No template, or one that rejects the conversation.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_on(messages, tools, add_generation_prompt, None)
    }

    /// As [`TextTokenizer::render`], with a given date (`YYYY-MM-DD`).
    ///
    /// # Errors
    /// No template, one that rejects the conversation, or an invalid date.
    pub fn render_on(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        date: Option<&str>,
    ) -> Result<String, TemplateError> {
        self.templates()?
            .conversation(tools, date)?
            .render(&values(messages), add_generation_prompt)
    }

    /// Renders a whole conversation and determines the parts to train on: the assistant's turns, from the end of the
    /// header to the end of the end-of-turn mark.
    ///
    /// # Errors
    /// As [`TextTokenizer::render_on`], and a template whose turns can't be determined.
    pub fn render_with_loss_spans(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        date: Option<&str>,
    ) -> Result<Rendered, TemplateError> {
        self.templates()?.conversation(tools, date)?.render_with_loss_spans(&values(messages), None)
    }

    /// As [`TextTokenizer::render_with_loss_spans`], only for the `chosen` turns (indices of messages).
    pub(crate) fn render_chosen(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        date: Option<&str>,
        chosen: &[usize],
    ) -> Result<Rendered, TemplateError> {
        self.templates()?
            .conversation(tools, date)?
            .render_with_loss_spans(&values(messages), Some(chosen))
    }

    fn templates(&self) -> Result<&ChatTemplates, TemplateError> {
        self.templates.as_ref().ok_or(TemplateError::Missing)
    }

    /// Tokens that stop generation: those of `generation_config.json`, the end-of-text token, and the token that ends an
    /// assistant's turn in the chat template.
    pub fn stop_ids(&self) -> BTreeSet<u32> {
        let mut stops: BTreeSet<u32> =
            self.generation_eos.iter().copied().chain(self.eos).collect();
        if let Some(templates) = &self.templates
            && let Ok(marks) = templates.turn_marks()
        {
            let ends = [&marks.end_last, &marks.end_inner];
            stops.extend(
                ends.iter().filter_map(|end| self.token_to_id(templates.ending_token(end)?)),
            );
        }
        stops
    }

    /// Writes the files the tokenizer was read from, unchanged. The folder is created if needed.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), DataError> {
        self.files.save(dir)
    }
}

/// Adds the tokens that the configuration has and `tokenizer.json` lacks.
fn add_tokens(
    tokenizer: &mut Tokenizer,
    config: &Map<String, Value>,
    map: &Map<String, Value>,
    files: &FileSet,
) -> Result<(), DataError> {
    let mut declared: Vec<(u32, AddedToken)> = Vec::new();
    for (key, value) in
        config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
    {
        let wrong = || {
            files.fault(
                CONFIG,
                format!("added_tokens_decoder[{key}]: expected an id and {{content, …}}"),
            )
        };
        let id = u32::from_str(key).map_err(|_| wrong())?;
        let flag = |name: &str| value.get(name).and_then(Value::as_bool);
        let text = token_text(Some(value)).ok_or_else(wrong)?;
        let special = flag("special").unwrap_or(false);
        let token = AddedToken::from(text, special)
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .single_word(flag("single_word").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special));
        declared.push((id, token));
    }
    declared.sort_by_key(|(id, _)| *id);
    let known: BTreeSet<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    for (id, token) in declared.into_iter().filter(|(_, token)| !known.contains(&token.content)) {
        let text = token.content.clone();
        if token.special {
            tokenizer.add_special_tokens(&[token]);
        } else {
            tokenizer.add_tokens(&[token]);
        }
        let got = tokenizer.token_to_id(&text);
        if got != Some(id) {
            let got = got.map_or("none".to_owned(), |id| id.to_string());
            return Err(files.fault(
                CONFIG,
                format!("added_tokens_decoder: expected id {id} for `{text}`, found {got} in tokenizer.json. The two files belong to different models"),
            ));
        }
    }
    // Named special tokens: a token of the vocabulary becomes one that is recognized in text.
    let more = [config, map]
        .into_iter()
        .filter_map(|source| source.get("additional_special_tokens")?.as_array())
        .flatten();
    let names = NAMED.iter().flat_map(|key| [config.get(*key), map.get(*key)]).flatten();
    let names: Vec<String> =
        names.chain(more).filter_map(|value| token_text(Some(value))).collect();
    for text in names.into_iter().filter(|text| !known.contains(text)) {
        if tokenizer.token_to_id(&text).is_some() {
            tokenizer.add_special_tokens(&[AddedToken::from(text, true)]);
        }
    }
    Ok(())
}

/// A token as a string or as `{content}`.
fn token_text(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// One id, or a list of them.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The special tokens that the post-processor adds before and after a text.
fn frame(
    tokenizer: &Tokenizer,
    post: Option<&PostProcessorWrapper>,
) -> Result<(Vec<u32>, Vec<u32>), String> {
    let Some(post) = post else { return Ok((Vec::new(), Vec::new())) };
    let body = tokenizer.encode("a", false).map_err(|error| error.to_string())?;
    let count = body.len();
    let inner: Vec<u32> = body.get_ids().to_vec();
    let framed: Encoding = post.process(body, None, true).map_err(|error| error.to_string())?;
    let framed = framed.get_ids();
    let at = (0..=framed.len().saturating_sub(count))
        .find(|at| framed[*at..].starts_with(&inner))
        .ok_or("its post_processor does more than adding tokens before and after a text")?;
    Ok((framed[..at].to_vec(), framed[at + count..].to_vec()))
}

/// The chat templates; files take precedence over the configuration.
fn template_sources(
    files: &FileSet,
    config: &Map<String, Value>,
) -> Result<Vec<TemplateSource>, DataError> {
    let mut sources: Vec<TemplateSource> = Vec::new();
    let mut add = |name: &str, text: &str, file: &str| {
        if sources.iter().all(|known| known.name != name) {
            sources.push(TemplateSource {
                name: name.to_owned(),
                text: text.to_owned(),
                file: files.shown(file),
            });
        }
    };
    if let Some(text) = files.text(CHAT_TEMPLATE)? {
        add("default", text, CHAT_TEMPLATE);
        for file in files.under(MORE_TEMPLATES) {
            let name = file
                .trim_start_matches(MORE_TEMPLATES)
                .trim_matches('/')
                .trim_end_matches(".jinja");
            add(name, files.text(file)?.unwrap_or_default(), file);
        }
        return Ok(sources);
    }
    let wrong =
        || files.fault(CONFIG, "chat_template: expected a string, or a list of {name, template}");
    match config.get("chat_template") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => add("default", text, CONFIG),
        Some(Value::Array(list)) => {
            for entry in list {
                let name = entry.get("name").and_then(Value::as_str).ok_or_else(wrong)?;
                let text = entry.get("template").and_then(Value::as_str).ok_or_else(wrong)?;
                add(name, text, CONFIG);
            }
        }
        Some(_) => return Err(wrong()),
    }
    Ok(sources)
}
