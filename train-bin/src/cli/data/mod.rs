//! `emberlm data …`: calls the data crate and prints.

mod cache;
mod check;
mod clean;
mod leak;
mod mask;
mod mix;
mod rows_args;
mod split;
mod tokenizer;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

/// Check, clean, split and mix data sets, train tokenizers
///
/// Files, folders and patterns are read: JSON Lines, JSON, CSV, TSV and text, each also compressed with gzip or zstd,
/// and Parquet.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

subcommands! {
    /// The commands, in the order of the help.
    DataCommand {
        Check(check::CheckArgs),
        Clean(clean::CleanArgs),
        Split(split::SplitArgs),
        Leak(leak::LeakArgs),
        Mask(mask::MaskArgs),
        Mix(mix::MixArgs),
        Tokenizer(tokenizer::TokenizerArgs),
        Cache(cache::CacheArgs),
    }
}

pub(super) fn run(args: &DataArgs) -> Result<ExitCode> {
    args.command.run()
}

#[cfg(test)]
mod tests;
