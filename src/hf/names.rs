//! Which tensor of theirs is which part of which parameter of ours.
//!
//! Must not know: files, values.

use crate::model::{AnyFamily, Model};
use crate::params::ParamSpec;
use std::ops::Range;

/// What comes before a name where a file holds a model with its head.
const PREFIXES: [&str; 2] = ["transformer.", "model."];

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

/// Every tensor of a model as its class in `transformers` saves it, in the order of our parameters; a tied head is not saved.
pub fn of_model(model: &Model) -> Vec<Tensor> {
    let params = model.spec.params.iter().enumerate();
    match &model.family {
        AnyFamily::Gpt2(_) => params.map(|(param, ours)| gpt2(param, ours)).collect(),
        AnyFamily::Llama(_) => params.flat_map(|(param, ours)| llama(param, ours, model)).collect(),
    }
}

/// `GPT2LMHeadModel`: linear layers are `Conv1D`, `[in, out]`.
fn gpt2(param: usize, ours: &ParamSpec) -> Tensor {
    let is_linear = ours.name.contains(".attn.c_") || ours.name.contains(".mlp.c_");
    let is_transposed = is_linear && ours.shape.len() == 2;
    let mut shape = ours.shape.clone();
    if is_transposed {
        shape.reverse();
    }
    Tensor { name: format!("transformer.{}", ours.name), shape, param, rows: 0..ours.shape[0], is_transposed }
}

/// `LlamaForCausalLM`: layouts are ours, and the rotation is too; what we hold as rows of one matrix are several of theirs.
fn llama(param: usize, ours: &ParamSpec, model: &Model) -> Vec<Tensor> {
    let shape = model.attention_shape();
    let (q, kv) = (shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head);
    let parts: Vec<(String, usize)> = if let Some(layer) = ours.name.strip_suffix("qkv_proj.weight") {
        [("q", q), ("k", kv), ("v", kv)].map(|(part, n)| (format!("{layer}{part}_proj.weight"), n)).into()
    } else if let Some(layer) = ours.name.strip_suffix("gate_up_proj.weight") {
        ["gate", "up"].map(|part| (format!("{layer}{part}_proj.weight"), ours.shape[0] / 2)).into()
    } else {
        vec![(ours.name.clone(), ours.shape[0])]
    };
    let mut first = 0;
    let tensor = |(name, n): (String, usize)| {
        let rows = first..first + n;
        first += n;
        let mut shape = ours.shape.clone();
        shape[0] = n;
        let name = if name == "lm_head.weight" { name } else { format!("model.{name}") };
        Tensor { name, shape, param, rows, is_transposed: false }
    };
    parts.into_iter().map(tensor).collect()
}

/// Another name under which a file may have a tensor: a model saved without its head has no prefix before it, as the first
/// GPT-2 files have none.
pub fn without_prefix(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Tensors that hold no weights: the causal masks and rotary frequencies that older versions saved.
pub fn is_derived(name: &str) -> bool {
    let bare = without_prefix(name).unwrap_or(name);
    bare.starts_with("h.") && (bare.ends_with(".attn.bias") || bare.ends_with(".attn.masked_bias"))
        || bare.ends_with(".rotary_emb.inv_freq")
}
