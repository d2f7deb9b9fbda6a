//! Whether colours are printed: in a terminal, unless `NO_COLOR` is set or `CLICOLOR` is 0; elsewhere if `CLICOLOR_FORCE`
//! is set. As in clap's own messages.

use anstream::{AutoStream, ColorChoice};

/// To stdout.
pub(super) fn on_stdout() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// To stderr.
pub(super) fn on_stderr() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}
