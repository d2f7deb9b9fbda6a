//! `--verbose` and `RUST_LOG`: logs on stderr.

use std::io;

use clap::{ArgAction, Args};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Level of the log.
#[derive(Debug, Clone, PartialEq, Args)]
pub(super) struct Verbosity {
    /// Log decisions to stderr; -vv: in more detail (or set RUST_LOG)
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    verbose: u8,
}

impl Verbosity {
    /// Starts logging to stderr, if it is requested.
    pub(super) fn start_log(&self) {
        let targets = match (self.verbose, std::env::var("RUST_LOG")) {
            (0, Err(_)) => return,
            (0, Ok(directives)) => match directives.parse::<Targets>() {
                Ok(targets) => targets,
                Err(error) => {
                    eprintln!("warning: RUST_LOG is ignored: {error}");
                    return;
                }
            },
            (1, _) => Targets::new().with_target("emberlm", Level::INFO),
            _ => Targets::new().with_target("emberlm", Level::DEBUG),
        };
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(false)
            .without_time()
            // Its own message about a closed stderr would panic.
            .log_internal_errors(false)
            .with_filter(targets);
        // Someone who embeds the command line may have started a log of their own.
        let _ = tracing_subscriber::registry().with(lines).try_init();
    }
}
