//! From text to token files, and from tokens back to text.
//!
//! | file | lives there |
//! | --- | --- |
//! | [`tokenizer`] | bytes, GPT-2's byte pairs, a `tokenizer.json`: encode, decode, where a text may be cut |
//! | [`documents`] | documents out of files that may be larger than memory |
//! | [`token_files`] | one or many token files, written so that a kill costs nothing |
//! | [`tokenize_job`] | what is to be made of what, and what of it is there already |
//! | [`tokenize`](mod@tokenize) | the whole way: read, encode on all cores, split, write, go on after a kill |
//!
//! Must not know: MPI, models; of decks only the word that names a tokenizer.

pub mod documents;
pub mod token_files;
pub mod tokenize;
pub mod tokenize_job;
pub mod tokenizer;

pub use documents::{Documents, Layout};
pub use tokenizer::TextTokenizer;
