//! The sizes of a model with a gated hidden layer and rotated heads.

use crate::config::ModelSection;

/// What such a model has beside [`Dims`](crate::model::visit::Dims).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Key/value heads (Hkv); divides the attention heads.
    pub n_kv_heads: usize,
    /// Width of the hidden layer (F).
    pub d_ff: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// The head is the token embedding.
    pub tied: bool,
}

impl Shape {
    /// Of a deck.
    pub fn of_deck(model: &ModelSection) -> Self {
        Shape {
            n_kv_heads: model.n_kv_head,
            d_ff: model.d_ff,
            rope_theta: model.rope_theta as f32,
            norm_eps: model.norm_eps as f32,
            tied: model.tied,
        }
    }
}
