//! The binary: the allocator, and the command line of the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    emberlm::cli::main()
}
