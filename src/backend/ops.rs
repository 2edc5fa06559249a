//! The kernels a model is made of, as a trait: each one's shapes, and whether its output is overwritten or
//! accumulated into. Shapes trail the argument in a comment.
//!
//! Rule 8 binds every implementation: the bits of a result depend on the shapes and the values alone, never on
//! the number of threads or ranks. Row reductions use chunks fixed by shape.

use super::buffer::{View, ViewMut};
use crate::exact_sum::ExactSum;

/// Shape of causal self-attention over a fused projection.
///
/// A row of `qkv` is `[q: n_heads * d_head | k: n_kv_heads * d_head | v: n_kv_heads * d_head]`; query head `i` uses
/// kv head `i / (n_heads / n_kv_heads)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub b: usize,
    /// Tokens per sequence.
    pub t: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Channels per head.
    pub d_head: usize,
}

impl AttentionShape {
    /// Elements of one row of `qkv`.
    pub fn qkv_row(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.d_head
    }

    /// Elements of one row of the output.
    pub fn out_row(&self) -> usize {
        self.n_heads * self.d_head
    }
}

/// Shape of a linear layer `out = inp * weight^T + bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Rows of `inp` and `out` (B * T).
    pub rows: usize,
    /// Columns of `inp`.
    pub n_in: usize,
    /// Columns of `out`.
    pub n_out: usize,
}

/// Hyperparameters of one AdamW update, all decided on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamwStep {
    /// Learning rate of this step.
    pub lr: f32,
    /// First moment decay.
    pub beta1: f32,
    /// Second moment decay.
    pub beta2: f32,
    /// Added to the square root.
    pub eps: f32,
    /// Decoupled decay; 0 for parameters that do not decay.
    pub weight_decay: f32,
    /// `1 - beta1^step`, step counted from 1.
    pub bias_correction1: f32,
    /// `1 - beta2^step`.
    pub bias_correction2: f32,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
}

/// Kernels. Everything is f32 except token ids (u32).
pub trait Ops {
    /// `out[b,t,:] = wte[tokens[b,t],:] + wpe[t,:]`. Overwrites `out`.
    fn embedding_forward(
        &self,
        out: ViewMut<'_>, // (rows, C)
        tokens: View<'_>, // (rows) u32, each < V
        wte: View<'_>,    // (V, C)
        wpe: View<'_>,    // (T_max, C), T_max >= t
        t: usize,         // tokens per sequence; rows = B * t
    );

    /// Gradients of [`Ops::embedding_forward`], rows added in token order. Accumulates into `dwte` (the tied head
    /// has been there before); overwrites `dwpe`, rows at and after `t` with zeros.
    fn embedding_backward(
        &self,
        dwte: ViewMut<'_>, // (V, C)
        dwpe: ViewMut<'_>, // (T_max, C)
        dout: View<'_>,    // (rows, C)
        tokens: View<'_>,  // (rows) u32
        t: usize,
    );

    /// Layer normalisation over the last dimension, eps 1e-5, biased variance. Overwrites `out`, `mean`, `rstd`.
    fn layer_norm_forward(
        &self,
        out: ViewMut<'_>,  // (rows, C)
        mean: ViewMut<'_>, // (rows)
        rstd: ViewMut<'_>, // (rows)
        inp: View<'_>,     // (rows, C)
        weight: View<'_>,  // (C)
        bias: View<'_>,    // (C)
    );

    /// Gradients of [`Ops::layer_norm_forward`]. Accumulates into `dinp` (the residual path has been there before);
    /// overwrites `dweight` and `dbias`.
    #[allow(clippy::too_many_arguments)]
    fn layer_norm_backward(
        &self,
        dinp: ViewMut<'_>,    // (rows, C)
        dweight: ViewMut<'_>, // (C)
        dbias: ViewMut<'_>,   // (C)
        dout: View<'_>,       // (rows, C)
        inp: View<'_>,        // (rows, C)
        weight: View<'_>,     // (C)
        mean: View<'_>,       // (rows)
        rstd: View<'_>,       // (rows)
        work: ViewMut<'_>,    // (layer_norm_work_numel)
    );

    /// Scratch elements of [`Ops::layer_norm_backward`].
    fn layer_norm_work_numel(rows: usize, c: usize) -> usize
    where
        Self: Sized;

    /// `out = inp * weight^T + bias`. Overwrites `out`.
    fn linear_forward(
        &self,
        out: ViewMut<'_>,       // (rows, n_out)
        inp: View<'_>,          // (rows, n_in)
        weight: View<'_>,       // (n_out, n_in)
        bias: Option<View<'_>>, // (n_out)
        shape: LinearShape,
    );

    /// `dinp = dout * weight`. Overwrites `dinp`.
    fn linear_backward_input(
        &self,
        dinp: ViewMut<'_>, // (rows, n_in)
        dout: View<'_>,    // (rows, n_out)
        weight: View<'_>,  // (n_out, n_in)
        shape: LinearShape,
    );

    /// `dweight (+)= dout^T * inp`, `dbias = column sums of dout`. Overwrites, or adds to `dweight` where
    /// `accumulate` (row chunks of the head); `dbias` is always overwritten.
    fn linear_backward_weight(
        &self,
        dweight: ViewMut<'_>,       // (n_out, n_in)
        dbias: Option<ViewMut<'_>>, // (n_out)
        dout: View<'_>,             // (rows, n_out)
        inp: View<'_>,              // (rows, n_in)
        shape: LinearShape,
        accumulate: bool,
    );

    /// GELU, tanh form (arXiv:1606.08415). Overwrites `out`.
    fn gelu_forward(
        &self,
        out: ViewMut<'_>, // (n)
        inp: View<'_>,    // (n)
    );

    /// Multiplies the incoming gradient in place by GELU'(inp).
    fn gelu_backward(
        &self,
        dout_to_dinp: ViewMut<'_>, // (n)
        inp: View<'_>,             // (n), the input of the forward
    );

    /// `out = a + b`. Overwrites `out`.
    fn add(
        &self,
        out: ViewMut<'_>, // (n)
        a: View<'_>,      // (n)
        b: View<'_>,      // (n)
    );

    /// Causal softmax attention, scale `1/sqrt(d_head)`. Overwrites `out` and `lse`.
    fn attention_forward(
        &self,
        out: ViewMut<'_>,  // (B, T, H * D)
        lse: ViewMut<'_>,  // (B, H, T) log-sum-exp of the scaled scores
        qkv: View<'_>,     // (B, T, (H + 2 Hkv) * D)
        work: ViewMut<'_>, // (attention_forward_work_numel)
        shape: AttentionShape,
    );

    /// Gradient of [`Ops::attention_forward`]; the probabilities are recomputed from `lse`. Overwrites `dqkv`.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        dqkv: ViewMut<'_>, // (B, T, (H + 2 Hkv) * D)
        dout: View<'_>,    // (B, T, H * D)
        qkv: View<'_>,     // (B, T, (H + 2 Hkv) * D)
        out: View<'_>,     // (B, T, H * D)
        lse: View<'_>,     // (B, H, T)
        work: ViewMut<'_>, // (attention_backward_work_numel)
        shape: AttentionShape,
    );

    /// Scratch elements of [`Ops::attention_forward`].
    fn attention_forward_work_numel(shape: AttentionShape) -> usize
    where
        Self: Sized;

    /// Scratch elements of [`Ops::attention_backward`].
    fn attention_backward_work_numel(shape: AttentionShape) -> usize
    where
        Self: Sized;

    /// Softmax cross-entropy of each row: `losses[i] = logsumexp(logits[i,:]) - logits[i, targets[i]]` in nats.
    /// Overwrites `losses`; where `dlogits_scale` is given, overwrites `logits` with
    /// `(softmax(logits) - onehot(target)) * scale` (scale = 1 / tokens of the global batch).
    fn cross_entropy(
        &self,
        logits: ViewMut<'_>, // (rows, V): logits in, dlogits out
        losses: ViewMut<'_>, // (rows)
        targets: View<'_>,   // (rows) u32, each < V
        dlogits_scale: Option<f32>,
    );

    /// `out = inp` in the element type of `out`. Overwrites `out`.
    fn cast(
        &self,
        out: ViewMut<'_>, // (n)
        inp: View<'_>,    // (n)
    );

    /// `out += inp`. Accumulates into `out`.
    fn accumulate(
        &self,
        out: ViewMut<'_>, // (n) f32
        inp: View<'_>,    // (n)
    );

    /// Sum of the elements in f64, in the order of the elements. Waits for the result.
    fn sum(&self, inp: View<'_>) -> f64;

    /// Exact sum of the squares of the elements. Waits for the result.
    fn sum_of_squares(&self, inp: View<'_>) -> ExactSum;

    /// One AdamW update of a slice (arXiv:1711.05101), in PyTorch's order: decay first
    /// (`p *= 1 - lr * weight_decay`), then `p -= lr * m^ / (sqrt(v^) + eps)`. Updates `param`, `m`, `v` in place.
    fn adamw(
        &self,
        param: ViewMut<'_>, // (n)
        m: ViewMut<'_>,     // (n)
        v: ViewMut<'_>,     // (n)
        grad: View<'_>,     // (n)
        step: &AdamwStep,
    );
}
