//! What a command of one process ends with.
//!
//! Must not know: which command.

use crate::error::Exit;

/// The text and the exit code of a command.
pub(super) struct Said {
    /// For standard output; nothing is printed where it is empty.
    pub text: String,
    /// The exit code.
    pub exit: Exit,
}

impl From<String> for Said {
    fn from(text: String) -> Self {
        Said { text, exit: Exit::Finished }
    }
}
