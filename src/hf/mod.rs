//! Weights as the Hugging Face ecosystem has them: safetensors files, its names and shapes, its config.json.
//!
//! | file | lives there |
//! | --- | --- |
//! | [`names`] | which tensor of theirs is which part of which parameter of ours |
//! | [`config_json`] | the sizes of a model in their words, both ways |
//! | [`tensors`] | safetensors files: headers by the crate, values read where they lie |
//! | [`export`](mod@export), [`import`](mod@import) | from a checkpoint, and to one |
//!
//! An export holds one parameter in memory (twice, where it is transposed), an import blocks of one. Must not
//! know: MPI, devices, the command line.

pub mod config_json;
pub mod export;
pub mod import;
pub mod names;
pub mod tensors;

pub use export::{Exported, export};
pub use import::{Imported, import};
