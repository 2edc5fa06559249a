//! From text to token files, and from tokens back to text.
//!
//! | file | lives there |
//! | --- | --- |
//! | [`tokenizer`] | bytes, GPT-2's pairs, a `tokenizer.json`: encode, decode, where a text may be cut |
//! | `subwords`, `byte_pairs` | what a tokenizer of words does; GPT-2's and those of files, from crates |
//! | [`documents`] | documents out of files that may be larger than memory |
//! | [`token_files`] | one or many token files, written so that a kill costs nothing |
//! | [`tokenize_job`] | what is to be made of what, and what of it is there already |
//! | [`tokenize`](mod@tokenize) | the whole way: read, encode on all cores, split, write, go on after a kill |
//!
//! Must not know: MPI, models; of decks only the name of a tokenizer.

#[cfg(feature = "text")]
mod byte_pairs;
pub mod documents;
mod subwords;
pub mod token_files;
pub mod tokenize;
pub mod tokenize_job;
pub mod tokenizer;

pub use documents::{Documents, Layout};
pub use subwords::TextFault;
pub use tokenizer::TextTokenizer;
