//! Ctrl-C and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Exit code after a second signal, as a shell's for SIGINT.
const INTERRUPTED: i32 = 130;

/// The first Ctrl-C or SIGTERM sets `interrupt`, by which a run stops after its step, and calls `on_first`; the second
/// calls `before_exit` and ends the process at once.
pub(super) fn stop_on_signal(
    interrupt: Arc<AtomicBool>,
    on_first: fn(),
    before_exit: fn(),
) -> Result<()> {
    ctrlc::set_handler(move || {
        if interrupt.swap(true, Ordering::Relaxed) {
            before_exit();
            std::process::exit(INTERRUPTED);
        }
        on_first();
    })
    .context("cannot listen for Ctrl-C")
}
