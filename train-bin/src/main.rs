//! The command line: parses, calls the library, prints.

mod command;

use std::process::ExitCode;

use clap::Parser;
use emberlm::cli::{Cli, Command};
use emberlm::config::ConfigError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code for wrong usage, as clap's own.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(args) => command::train::run(&args),
        Command::Eval(args) => command::eval::run(&args),
        Command::Generate(args) => command::generate::run(&args),
        Command::Chat(args) => command::generate::chat(&args),
        Command::Merge(args) => command::merge::run(&args),
        Command::Quantize(args) => command::quantize::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let is_usage = error.is::<ConfigError>() || error.is::<command::WrongUsage>();
            if is_usage { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
