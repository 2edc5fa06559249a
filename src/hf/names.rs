//! Which tensor of theirs is which part of which parameter of ours.
//!
//! Must not know: files, values.

use crate::params::{ModelSpec, ParamSpec};
use std::ops::Range;

/// One tensor of theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Their name.
    pub name: String,
    /// Their shape.
    pub shape: Vec<usize>,
    /// The parameter of ours it belongs to, by index.
    pub param: usize,
    /// The rows of ours that it is.
    pub rows: Range<usize>,
    /// Theirs is `[in, out]` where ours is `[out, in]`.
    pub is_transposed: bool,
}

impl Tensor {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every tensor of a GPT-2 as `GPT2LMHeadModel` saves it: linear layers are `Conv1D`, `[in, out]`; the tied head is not saved.
pub fn gpt2(spec: &ModelSpec) -> Vec<Tensor> {
    let tensor = |(param, ours): (usize, &ParamSpec)| {
        let is_transposed = ours.name.contains(".attn.c_") || ours.name.contains(".mlp.c_");
        let is_transposed = is_transposed && ours.shape.len() == 2;
        let mut shape = ours.shape.clone();
        if is_transposed {
            shape.reverse();
        }
        Tensor { name: format!("transformer.{}", ours.name), shape, param, rows: 0..ours.shape[0], is_transposed }
    };
    spec.params.iter().enumerate().map(tensor).collect()
}

/// Another name under which a file may have a tensor: the first GPT-2 files have no `transformer.` before it.
pub fn without_prefix(name: &str) -> Option<&str> {
    name.strip_prefix("transformer.")
}

/// Tensors that hold no weights: the causal masks that older versions saved.
pub fn is_mask(name: &str) -> bool {
    name.starts_with("h.") | name.starts_with("transformer.h.")
        && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))
}
