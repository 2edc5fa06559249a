//! The one way to standard output and standard error, but for a bar that redraws itself and a terminal that
//! was taken over: what others wrote may stand in any line, so what would control a terminal is escaped in
//! all of them.
//!
//! Must not know: what is said.

use std::io::{self, ErrorKind, Write};

use crate::foreign::shown;

/// A text and a line end on standard output. A pipe that was closed is no error: whoever read it has had
/// enough.
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

/// A text and a line end on standard error, as far as it can be written: it may be closed.
pub fn err(text: &str) {
    writeln!(io::stderr().lock(), "{}", shown(text)).ok();
}
