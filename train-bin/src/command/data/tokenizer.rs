//! `emberlm data tokenizer`.

use std::process::ExitCode;

use anyhow::Result;
use emberlm::cli::data::TokenizerArgs;
use emberlm_data::{BpeOptions, train_tokenizer};

use super::{rejects, rows};

pub(super) fn run(args: &TokenizerArgs) -> Result<ExitCode> {
    let (files, read) = rows(&args.rows)?;
    let options = BpeOptions {
        vocab_size: args.vocab_size,
        min_frequency: args.min_frequency,
        special_tokens: args.special.clone(),
        model_max_length: args.model_max_length,
    };
    let takes = rejects(&args.rows.reading, &args.faults)?;
    let report = train_tokenizer(&files, &read, &options, takes, &args.out)?;
    if args.json {
        println!("{}", serde_json::to_value(&report)?);
    } else {
        println!(
            "{} tokens, trained on {} bytes of {} rows; saved in {}",
            report.vocab_size,
            report.bytes,
            report.rows,
            args.out.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
