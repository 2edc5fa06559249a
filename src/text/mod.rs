//! From text to token files, and from tokens back to text.
//!
//! | file | lives there |
//! | --- | --- |
//! | [`tokenizer`] | bytes, GPT-2's byte pairs, a `tokenizer.json`: encode, decode, where a text may be split |
//! | [`documents`] | documents from files that may be larger than memory |
//! | [`token_files`] | one or many token files, written so that a kill loses nothing |
//! | [`job`] | a job's inputs and outputs, and its progress |
//! | [`tokenize`](mod@tokenize) | the whole process: read, encode on all cores, split, write, resume after a kill |
//!
//! Must not know: MPI, models; of decks only the name of a tokenizer.

pub mod documents;
pub mod job;
pub mod token_files;
pub mod tokenize;
pub mod tokenizer;

pub use documents::{Documents, Layout};
pub use tokenizer::TextTokenizer;
