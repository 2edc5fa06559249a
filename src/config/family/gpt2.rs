//! GPT-2: derived sizes, and keys it does not support.

use super::family_rules::{FamilyRules, PresetSizes};
use crate::config::resolve::Resolver;

/// The epsilon of its norms.
const NORM_EPS: f64 = 1e-5;

pub(super) const RULES: FamilyRules = FamilyRules {
    d_ff: |d_model| 4 * d_model,
    rope_theta: 0.0,
    norm_eps: NORM_EPS,
    tied: true,
    free_head_dim: false,
    numel: |n| n.layers * 12 * n.c * n.c + (n.t + n.v) * n.c,
    widest: |n| (4 * n.c, "4 * model.d_model"),
    check,
};

/// Of a preset.
pub(super) const fn sizes(n_layer: usize, n_head: usize, d_model: usize) -> PresetSizes {
    PresetSizes {
        n_layer,
        n_head,
        n_kv_head: n_head,
        head_dim: d_model / n_head,
        d_model,
        d_ff: 4 * d_model,
        seq_len: 1024,
        vocab_size: 50257,
        rope_theta: 0.0,
        tied: true,
    }
}

fn check(deck: &mut Resolver) {
    let or_llama = "or model.family = \"llama\"";
    let (n_head, d_model) = (deck.integer("model.n_head"), deck.integer("model.d_model"));
    if let (Some(n_head), Some(n)) = (n_head, deck.integer("model.n_kv_head"))
        && n != n_head
    {
        let wants = format!(
            "model.n_head = {n_head}, because GPT-2 does not share key/value heads; \
                             {or_llama}"
        );
        deck.refuse("model.n_kv_head", wants);
    }
    if let (Some(d_model), Some(n)) = (d_model, deck.integer("model.d_ff"))
        && n != 4 * d_model
    {
        deck.refuse("model.d_ff", format!("4 * model.d_model = {}, as in GPT-2; {or_llama}", 4 * d_model));
    }
    if deck.float("model.rope_theta").is_some_and(|theta| theta != 0.0) {
        deck.refuse("model.rope_theta", format!("0, because GPT-2 learns its positions; {or_llama}"));
    }
    if deck.float("model.norm_eps").is_some_and(|eps| eps != NORM_EPS) {
        deck.refuse("model.norm_eps", format!("{NORM_EPS:?}, as in GPT-2; {or_llama}"));
    }
    if deck.choice::<bool>("model.tied") == Some(false) {
        deck.refuse("model.tied", format!("true, because GPT-2's head is its embedding; {or_llama}"));
    }
}
