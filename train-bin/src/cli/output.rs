//! Printing that never panics: the reader of a pipe may have exited (`emberlm … | head`), or the terminal been closed.
//! These macros replace std's in the whole command line.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// To stdout, for results. A closed pipe is ignored; any other failure would lose a result and exits with an error.
pub(crate) fn to_stdout(text: Arguments<'_>, end: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_fmt(text).and_then(|()| stdout.write_all(end.as_bytes()));
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        to_stderr(format_args!("error: standard output: {error}"), "\n");
        std::process::exit(1);
    }
}

/// To stderr, for progress and messages; failures are ignored, since they cannot be reported.
pub(crate) fn to_stderr(text: Arguments<'_>, end: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_fmt(text).and_then(|()| stderr.write_all(end.as_bytes()));
}

// A function can't take a format text and its arguments.
macro_rules! println {
    () => { $crate::cli::output::to_stdout(format_args!(""), "\n") };
    ($($text:tt)*) => { $crate::cli::output::to_stdout(format_args!($($text)*), "\n") };
}
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::output::to_stdout(format_args!($($text)*), "") };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::output::to_stderr(format_args!($($text)*), "\n") };
}
macro_rules! eprint {
    ($($text:tt)*) => { $crate::cli::output::to_stderr(format_args!($($text)*), "") };
}
