//! Printing that ends no run: whoever reads may be gone (`emberlm … | head`, a terminal that was closed), and std's macros
//! would panic then. These take their place in the whole program.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// To stdout, for results. A reader that is gone has seen enough; any other failure would lose a result, and is an error.
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

/// To stderr, for what is said on the way: there is nowhere to tell that it can't be said.
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
