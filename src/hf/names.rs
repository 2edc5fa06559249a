//! Which of their tensors is which part of which of our parameters.
//!
//! Must not know: files, values.

pub use crate::model::transformers::Tensor;

use crate::model::Model;

/// Prefixes of names in a file of a model with its head.
const PREFIXES: [&str; 2] = ["transformer.", "model."];

/// Every tensor of a model as its class in `transformers` saves it, in the order of our parameters; a tied
/// head is not saved.
pub fn of_model(model: &Model) -> Vec<Tensor> {
    model.transformers_tensors()
}

/// An alternative name of a tensor: a model saved without its head has no prefix, like the first GPT-2 files.
pub fn without_prefix(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Tensors without weights: the causal masks and rotary frequencies that older versions saved.
pub fn is_derived(name: &str) -> bool {
    let bare = without_prefix(name).unwrap_or(name);
    bare.starts_with("h.") && (bare.ends_with(".attn.bias") || bare.ends_with(".attn.masked_bias"))
        || bare.ends_with(".rotary_emb.inv_freq")
}
