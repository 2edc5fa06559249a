//! All output to standard output and standard error, except for a redrawing bar and a terminal in raw mode:
//! any line may contain external text, so terminal control characters are escaped in all of them.
//!
//! Must not know: the content.

use std::io::{self, ErrorKind, Write};

use crate::foreign::shown;

/// Prints a text and a newline to standard output. A closed pipe is not an error: its reader has finished.
///
/// # Errors
/// The operating system's.
pub fn out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", shown(text)).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Prints a text and a newline to standard error, which may be closed.
pub fn err(text: &str) {
    writeln!(io::stderr().lock(), "{}", shown(text)).ok();
}
