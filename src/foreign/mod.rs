//! External input: displaying its text, calling its parsers, recognizing its files.
//!
//! | file | lives there |
//! | --- | --- |
//! | `shown` | foreign text for a terminal, a log line, a page |
//! | `guard` | parsers that may panic on their input |
//! | `magic` | kinds of files by their first bytes |
//! | [`paths`] | paths that are not UTF-8, in documents |
//!
//! Must not know: the purpose of the text, the parsers and the files.

mod guard;
mod magic;
pub mod paths;
mod shown;

pub use guard::{guarded, is_guarded};
pub use magic::{FileKind, START_BYTES, kind_of, not_json, start_of, without_bom};
pub use shown::{on_a_line, shown};
