//! `emberlm data tokenizer`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_data::{BpeOptions, train_tokenizer};

use super::rows_args::{FaultArgs, RowsArgs};

/// Train a byte-level BPE tokenizer, which transformers loads too
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm data tokenizer 'corpus/*.txt' --vocab-size 16000 --out tokenizer")]
pub(crate) struct TokenizerArgs {
    /// The rows.
    #[command(flatten)]
    pub(crate) rows: RowsArgs,
    /// Handling of invalid rows.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// Folder for tokenizer.json, tokenizer_config.json and chat_template.jinja
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Vocabulary size, special tokens included
    #[arg(long, value_name = "N", default_value_t = 32_000)]
    pub(crate) vocab_size: usize,
    /// Minimum frequency of a pair to be merged
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) min_frequency: u64,
    /// Special token in addition to <|endoftext|>, <|im_start|> and <|im_end|>; repeatable
    #[arg(long, value_name = "TOKEN", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) special: Vec<String>,
    /// `model_max_length` in tokenizer_config.json
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub(crate) model_max_length: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &TokenizerArgs) -> Result<ExitCode> {
    let (files, read) = args.rows.read()?;
    let options = BpeOptions {
        vocab_size: args.vocab_size,
        min_frequency: args.min_frequency,
        special_tokens: args.special.clone(),
        model_max_length: args.model_max_length,
    };
    let takes = args.faults.rejects(&args.rows.reading)?;
    let report = train_tokenizer(&files, &read, &options, takes, &args.out)?;
    if args.json {
        println!("{}", serde_json::to_value(&report)?);
    } else {
        println!(
            "{} tokens, trained on {} bytes of {} rows; saved to {}",
            report.vocab_size,
            report.bytes,
            report.rows,
            args.out.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
