//! Shapes: small ones to check on, which divide nothing, and large ones to time on.

/// Sizes of the shapes that kernels are timed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Rows of activations.
    pub rows: usize,
    /// Tokens per sequence; divides `rows`.
    pub t: usize,
    /// Width.
    pub c: usize,
    /// Heads; divides `c`.
    pub n_heads: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Calls of each kernel, of which the best counts.
    pub n_calls: usize,
}

impl Scale {
    /// GPT-2 124M on micro-batches of 16 sequences.
    pub const GPT2: Scale = Scale { rows: 16 * 1024, t: 1024, c: 768, n_heads: 12, vocab: 50257, n_calls: 10 };
    /// Small enough for a CPU to finish at once.
    pub const SMALL: Scale = Scale { rows: 64, t: 16, c: 48, n_heads: 3, vocab: 97, n_calls: 1 };
}

/// Rows of a check.
pub(super) const ROWS: usize = 39;
/// Tokens per sequence of a check.
pub(super) const T: usize = 13;
/// Width of a check.
pub(super) const C: usize = 72;

/// Tolerance for one rounding to bf16.
pub(super) const ONE_ROUNDING: f64 = 1.0 / 256.0;
