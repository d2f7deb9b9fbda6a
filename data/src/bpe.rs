//! Training a byte-level BPE tokenizer, as GPT-2 and Llama 3 use it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use serde::Serialize;
use serde_json::json;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::error::DataError;
use crate::files::{CHAT_TEMPLATE, CONFIG, TOKENIZER};
use crate::near::Part;
use crate::output::write_whole;
use crate::source::{ReadOptions, Rejects, for_each_batch};

/// Options of training a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpeOptions {
    /// Size of the vocabulary with special tokens: at least 256 plus their number.
    pub vocab_size: usize,
    /// Minimum occurrences of a pair to be merged.
    pub min_frequency: u64,
    /// Special tokens in addition to `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
    pub special_tokens: Vec<String>,
    /// `model_max_length` of `tokenizer_config.json`, in tokens.
    pub model_max_length: usize,
}

impl Default for BpeOptions {
    fn default() -> Self {
        Self {
            vocab_size: 32_000,
            min_frequency: 2,
            special_tokens: Vec::new(),
            model_max_length: 2048,
        }
    }
}

/// The report of training a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BpeReport {
    /// Rows that were read.
    pub rows: u64,
    /// Bytes of text in them.
    pub bytes: u64,
    /// Size of the vocabulary with special tokens.
    pub vocab_size: usize,
}

const END_OF_TEXT: &str = "<|endoftext|>";
const OPEN: &str = "<|im_start|>";
const CLOSE: &str = "<|im_end|>";

/// ChatML, with generation tags around the text to train on.
const TEMPLATE: &str = "\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}
            {{- message['content'] + '<|im_end|>' -}}
        {%- endgeneration -%}
        {{- '\\n' -}}
    {%- else -%}
        {{- message['content'] + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// Trains on all texts of the rows and writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`
/// (ChatML), which transformers can load. The texts are streamed; only the count of each distinct word is kept in memory.
///
/// # Errors
/// A file that cannot be opened or written; invalid rows that `rejects` does not skip; no text; a vocabulary too small.
pub fn train_tokenizer(
    files: &[PathBuf],
    read: &ReadOptions,
    options: &BpeOptions,
    mut rejects: Rejects,
    out: &Path,
) -> Result<BpeReport, DataError> {
    let specials = special_tokens(options)?;
    let trainer = trainer(options, &specials);
    let mut report = BpeReport { rows: 0, bytes: 0, vocab_size: 0 };
    let trained = train_on_rows(files, read, trainer, &mut rejects, &mut report)?;
    rejects.finish()?;
    if report.bytes == 0 {
        return Err(DataError::NothingToTrain("there is no text. Check the data files".into()));
    }
    let tokenizer = trained.map_err(DataError::Tokenizer)?;
    report.vocab_size = tokenizer.get_vocab_size(true);
    save(&tokenizer, &specials, options.model_max_length, out)?;
    Ok(report)
}

/// The special tokens, in the order of their ids.
///
/// # Errors
/// A vocabulary too small for them and the 256 bytes.
fn special_tokens(options: &BpeOptions) -> Result<Vec<String>, DataError> {
    let mut specials = [END_OF_TEXT, OPEN, CLOSE].map(str::to_owned).to_vec();
    specials.extend(options.special_tokens.iter().filter(|token| !token.is_empty()).cloned());
    specials.dedup();
    let least = 256 + specials.len();
    if options.vocab_size < least {
        return Err(DataError::Setting {
            key: "vocab-size".into(),
            expected: format!("at least {least}, for the bytes and the special tokens"),
            found: options.vocab_size.to_string(),
            nearest: None,
        });
    }
    Ok(specials)
}

fn trainer(options: &BpeOptions, specials: &[String]) -> BpeTrainer {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(options.vocab_size)
        .min_frequency(options.min_frequency)
        .initial_alphabet(alphabet.into_iter().collect())
        .special_tokens(specials.iter().map(|token| AddedToken::from(token, true)).collect())
        .build()
}

/// Trains on a separate thread while the rows are read, and counts rows and bytes in `report`. The inner error is the
/// trainer's.
fn train_on_rows(
    files: &[PathBuf],
    read: &ReadOptions,
    trainer: BpeTrainer,
    rejects: &mut Rejects,
    report: &mut BpeReport,
) -> Result<Result<Tokenizer, String>, DataError> {
    let (send, receive) = sync_channel::<String>(1024);
    thread::scope(|scope| {
        let training = scope.spawn(move || train(trainer, receive));
        let read = for_each_batch(files, read, |batch| {
            for row in batch {
                match row {
                    Err(fault) => rejects.take(fault)?,
                    Ok((row, _, _)) => {
                        report.rows += 1;
                        for (_, text) in Part::Row.texts(&row.row) {
                            report.bytes += text.len() as u64;
                            // Sending fails only if training failed; that error is returned below.
                            let _ = send.send(text.to_owned());
                        }
                    }
                }
            }
            Ok::<_, DataError>(())
        });
        drop(send);
        let trained =
            training.join().unwrap_or_else(|_| Err("the training thread panicked".into()));
        read.map(|()| trained)
    })
}

fn train(trainer: BpeTrainer, texts: Receiver<String>) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, false, true)));
    tokenizer.with_decoder(Some(ByteLevel::new(false, false, true)));
    tokenizer
        .train(&mut TrainerWrapper::from(trainer), texts.into_iter())
        .map_err(|error| error.to_string())?;
    Ok(tokenizer)
}

fn save(
    tokenizer: &Tokenizer,
    specials: &[String],
    model_max_length: usize,
    out: &Path,
) -> Result<(), DataError> {
    let json =
        tokenizer.to_string(true).map_err(|error| DataError::Tokenizer(error.to_string()))?;
    write_whole(&out.join(TOKENIZER), json.as_bytes())?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": null,
        "eos_token": CLOSE,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": specials,
        "clean_up_tokenization_spaces": false,
        "model_max_length": model_max_length,
    });
    let config = serde_json::to_string_pretty(&config).unwrap_or_default();
    write_whole(&out.join(CONFIG), config.as_bytes())?;
    write_whole(&out.join(CHAT_TEMPLATE), TEMPLATE.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Message;
    use crate::source::OnError;
    use crate::tokenizer::TextTokenizer;

    #[test]
    fn a_trained_tokenizer_loads_round_trips_and_is_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
        let files = [assets.join("world.txt"), assets.join("train.jsonl")];
        let options = BpeOptions { vocab_size: 600, ..BpeOptions::default() };
        let train = |name: &str| {
            let rejects = Rejects::new(OnError::Fail, None).unwrap();
            let out = dir.path().join(name);
            let read = ReadOptions::default();
            (train_tokenizer(&files, &read, &options, rejects, &out).unwrap(), out)
        };
        let (report, out) = train("a");
        assert_eq!(report.vocab_size, 600);
        let [a, b] = ["a", "b"].map(|name| {
            let (_, out) = train(name);
            std::fs::read(out.join(TOKENIZER)).unwrap()
        });
        assert!(a == b);
        let tokenizer = TextTokenizer::from_dir(&out).unwrap();
        let text = "The smith said: «Ünïcode, 漢字 and 😀\n\ttabs» <|im_end|>";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        assert_eq!(tokenizer.eos_id(), tokenizer.token_to_id(CLOSE));
        let messages = [Message::new("user", "a"), Message::new("assistant", "b")];
        let rendered = tokenizer.render_with_loss_spans(&messages, None, None).unwrap();
        assert_eq!(&rendered.text[rendered.loss_spans[0].clone()], "b<|im_end|>");
        let ids = tokenizer.encode("The smith").unwrap();
        assert!(ids.len() < 6, "nothing was merged: {ids:?}");
        let options = BpeOptions { vocab_size: 100, ..options };
        let rejects = Rejects::new(OnError::Fail, None).unwrap();
        assert!(train_tokenizer(&files, &ReadOptions::default(), &options, rejects, &out).is_err());
    }
}
