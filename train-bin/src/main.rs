//! The command line: parses, calls the library, prints.

#[macro_use]
mod output;

mod command;

use std::process::ExitCode;

use clap::Parser;
use emberlm::cli::{Cli, Command};
use emberlm::config::ConfigError;
use emberlm_data::DataError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code for wrong usage, as clap's own.
const WRONG_USAGE: u8 = 2;

/// mimalloc's option for the milliseconds after which it hands freed memory back to the system (`mi_option_purge_delay`).
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Keeps freed memory for the next step: it needs as much again, and the kernel would first have to clear every page
/// (measured: a third of a training step).
fn keep_freed_memory() {
    // SAFETY: sets a number in the allocator; -1 means never.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

fn main() -> ExitCode {
    keep_freed_memory();
    let result = match Cli::parse().command {
        Command::Train(args) => command::train::run(&args),
        Command::Reproduce(args) => command::reproduce::run(&args),
        Command::Plan(args) => command::plan::run(&args),
        Command::Eval(args) => command::eval::run(&args),
        Command::Generate(args) => command::generate::run(&args),
        Command::Chat(args) => command::generate::chat(&args),
        Command::Data(args) => match command::data::run(&args.command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Bench(args) => command::bench::run(&args),
        Command::Report(args) => command::report::run(&args),
        Command::LrFind(args) => command::lr_find::run(&args),
        Command::Merge(args) => command::merge::run(&args),
        Command::Quantize(args) => command::quantize::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let is_setting =
                matches!(error.downcast_ref::<DataError>(), Some(DataError::Setting { .. }));
            let is_usage =
                is_setting || error.is::<ConfigError>() || error.is::<command::WrongUsage>();
            if is_usage { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
