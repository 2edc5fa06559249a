//! What visits of units read and write, and the sizes that every family has.
//!
//! Must not know: families, layers.

use crate::backend::ops::CachedWork;
use crate::backend::{Buf, View, ViewMut};

/// Sizes of one micro-batch that every family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Sequences (B).
    pub b: usize,
    /// Tokens per sequence (T).
    pub t: usize,
    /// Tokens of the longest sequence that the parameters know.
    pub t_max: usize,
    /// Width (C).
    pub c: usize,
    /// Attention heads (H).
    pub n_heads: usize,
    /// Channels of a head (D).
    pub d_head: usize,
    /// Vocabulary (V).
    pub vocab: usize,
    /// Transformer blocks (L).
    pub n_layer: usize,
}

impl Dims {
    /// Tokens of a micro-batch: B * T.
    pub fn rows(&self) -> usize {
        self.b * self.t
    }
}

/// Rows of a sequence that come after others, whose projections are kept: generating text.
pub struct Cached<'a> {
    /// Position of the first of the new rows.
    pub first: usize,
    /// Projections of all rows so far, (T_max, (H + 2 Hkv) * D); those of the new rows are added. None for
    /// the embedding.
    pub qkv: Option<&'a mut Buf>,
    /// Scratch of attention.
    pub work: CachedWork<'a>,
}

/// What a forward visit reads and writes.
pub struct ForwardIo<'a> {
    /// Token ids, (B, T).
    pub tokens: View<'a>,
    /// Residual stream written by the unit before; none for the embedding.
    pub input: Option<View<'a>>,
    /// Residual stream, (B, T, C); overwritten.
    pub out: ViewMut<'a>,
    /// The unit's saved tensors; overwritten.
    pub saved: &'a mut [Buf],
    /// The unit's scratch.
    pub work: &'a mut [Buf],
    /// Where the rows follow others; none where they are whole sequences.
    pub cached: Option<Cached<'a>>,
}

/// What a backward visit reads and writes.
pub struct BackwardIo<'a> {
    /// Token ids, (B, T).
    pub tokens: View<'a>,
    /// The unit's input in forward; none for the embedding.
    pub input: Option<View<'a>>,
    /// What forward saved.
    pub saved: &'a [Buf],
    /// The unit's scratch.
    pub work: &'a mut [Buf],
    /// Gradient of the unit's output in, of its input out, (B, T, C).
    pub dresidual: ViewMut<'a>,
    /// Full gradients, one per parameter of the unit, padded; overwritten, or accumulated into where another
    /// unit that uses the same parameter has been there before.
    pub grads: &'a mut [Buf],
}

/// What the head's visit reads and writes.
pub struct LossIo<'a> {
    /// Target ids, (B, T).
    pub targets: View<'a>,
    /// Residual stream of the last block, (B, T, C).
    pub input: View<'a>,
    /// Cross-entropy of each token in nats, (B, T); overwritten.
    pub losses: ViewMut<'a>,
    /// The head's scratch.
    pub work: &'a mut [Buf],
    /// In training: where gradients go.
    pub backward: Option<LossGrad<'a>>,
}

/// Outputs of the head's backward.
pub struct LossGrad<'a> {
    /// Factor of dlogits: 1 / tokens of the global batch.
    pub scale: f32,
    /// Gradient of the residual stream, (B, T, C); overwritten.
    pub dresidual: ViewMut<'a>,
    /// Full gradients, one per parameter of the head, padded; overwritten.
    pub grads: &'a mut [Buf],
}
