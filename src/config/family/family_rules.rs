//! What a family defines: sizes of presets, defaults and rejected keys; and rules shared by several families.
//!
//! Must not know: which families exist.

use crate::config::resolve::{Resolver, near_divisors};

/// The sizes of a preset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PresetSizes {
    /// Transformer blocks (L).
    pub n_layer: usize,
    /// Attention heads.
    pub n_head: usize,
    /// Key/value heads.
    pub n_kv_head: usize,
    /// Channels of a head (D).
    pub head_dim: usize,
    /// Width (C).
    pub d_model: usize,
    /// Width of the hidden layer (F).
    pub d_ff: usize,
    /// Tokens per sequence (T).
    pub seq_len: usize,
    /// Vocabulary (V).
    pub vocab_size: usize,
    /// Base of the rotary frequencies; 0 without.
    pub rope_theta: f64,
    /// The head is the token embedding.
    pub tied: bool,
}

/// The rules of a family for the keys of `[model]`.
pub(in crate::config) struct FamilyRules {
    /// Width of the hidden layer for a given width.
    pub d_ff: fn(i64) -> i64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The epsilon of its norms.
    pub norm_eps: f64,
    /// The head is the token embedding.
    pub tied: bool,
    /// The width of a head is independent of d_model and n_head: `model.head_dim` is free.
    pub free_head_dim: bool,
    /// Approximate parameter count, to check for overflow.
    pub numel: fn(&Numbers) -> u128,
    /// Row width of the widest hidden tensor, and its description.
    pub widest: fn(&Numbers) -> (u128, &'static str),
    /// Rejects keys the family does not support.
    pub check: fn(&mut Resolver),
}

/// Sizes for overflow checks.
pub(in crate::config) struct Numbers {
    /// Blocks.
    pub layers: u128,
    /// Width.
    pub c: u128,
    /// Width of attention's output, over all heads.
    pub heads: u128,
    /// Width of the hidden layer.
    pub f: u128,
    /// Tokens per sequence.
    pub t: u128,
    /// Vocabulary.
    pub v: u128,
}

/// Requirements of families with shared key/value heads and rotary positions.
pub(super) fn check_rotated(deck: &mut Resolver) {
    let n_head = deck.integer("model.n_head");
    if let (Some(n_head), Some(n)) = (n_head, deck.integer("model.n_kv_head"))
        && n_head % n != 0
    {
        let wants = format!("a divisor of model.n_head = {n_head}, {}", near_divisors(n_head, n));
        deck.refuse("model.n_kv_head", wants);
    }
    if let Some(head_dim) = deck.integer("model.head_dim")
        && head_dim % 2 != 0
    {
        let wants = "an even number of channels, because they are rotated in pairs; by default model.d_model \
                     / model.n_head";
        deck.refuse("model.head_dim", wants.into());
    }
    if deck.float("model.rope_theta") == Some(0.0) {
        let family = deck.choice::<String>("model.family").unwrap_or_default();
        deck.refuse("model.rope_theta", format!("above 0, e.g. 10000, for model.family = \"{family}\""));
    }
}

/// Parameters of a model with a gated hidden layer, as many key/value heads as heads, and an untied head.
pub(super) fn gated_numel(n: &Numbers) -> u128 {
    n.layers * (4 * n.heads + 3 * n.f) * n.c + 2 * n.v * n.c
}

/// The widest tensor of such a model.
pub(super) fn gated_widest(n: &Numbers) -> (u128, &'static str) {
    let attention = 3 * n.heads;
    if attention > 2 * n.f {
        (attention, "3 * model.n_head * model.head_dim")
    } else {
        (2 * n.f, "2 * model.d_ff")
    }
}
