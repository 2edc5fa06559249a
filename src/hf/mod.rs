//! Weights in the form of the Hugging Face ecosystem: safetensors files, its names and shapes, its
//! config.json.
//!
//! | file | lives there |
//! | --- | --- |
//! | [`names`] | which of their tensors is which part of which of our parameters |
//! | [`config_json`] | a model's sizes in their form, both ways |
//! | [`tensors`] | safetensors files: headers by the crate, values read in place |
//! | [`export`](mod@export), [`import`](mod@import) | from a checkpoint, and to one |
//!
//! An export holds one parameter in memory (twice, if it is transposed), an import blocks of one. Must not
//! know: MPI, devices, the command line.

pub mod config_json;
pub mod export;
pub mod import;
pub mod names;
pub mod tensors;

pub use export::{Exported, export};
pub use import::{Imported, import};
