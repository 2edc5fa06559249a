//! The kernels a model is made of, as a trait: each one's shapes, and whether its output is overwritten or
//! accumulated into. Shapes trail the argument in a comment.
//!
//! Numbers are f32 or bf16 as each view says, within what a kernel's arguments allow: `f32` in the comment of
//! an argument means f32 alone. Every kernel computes in f32 and rounds once, to nearest even, when it
//! stores; where it has to round more often, its documentation says so.
//!
//! Rule 8 binds every implementation: the bits of a result depend on the shapes and the values alone, never
//! on the number of threads or ranks. Row reductions use chunks fixed by shape.

use super::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::optimizers::{OptimStates, UpdateStep};

pub use crate::work::{AttentionShape, LinearShape};

/// How rows of a projection are turned by their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// Position of the first row of each sequence.
    pub first: usize,
    /// Base of the frequencies: channels i and i + D / 2 turn by `theta^(-2i/D)` radians per position.
    pub theta: f32,
    /// Turn back, which is also the gradient.
    pub inverse: bool,
}

/// Some columns of a matrix: where they begin in its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Elements of a row.
    pub row: usize,
    /// The first column.
    pub first: usize,
}

/// Scratch of [`Ops::attention_cached`] for a sequence of up to T rows.
pub struct CachedWork<'a> {
    /// (T, H * D), of the type of the projection.
    pub out: ViewMut<'a>,
    /// (H, T) f32.
    pub lse: ViewMut<'a>,
    /// (attention_forward_work_numel) f32.
    pub work: ViewMut<'a>,
}

/// Kernels on f32 and bf16 numbers and u32 token ids.
pub trait Ops {
    /// `out[b,t,:] = wte[tokens[b,t],:] + wpe[t,:]`, the second where there are learned positions. Overwrites
    /// `out`.
    fn embedding_forward(
        &self,
        out: ViewMut<'_>,      // (rows, C)
        tokens: View<'_>,      // (rows) u32, each < V
        wte: View<'_>,         // (V, C)
        wpe: Option<View<'_>>, // (T_max, C), T_max >= t, of the type of wte
        t: usize,              // tokens per sequence; rows = B * t
    );

    /// Gradients of [`Ops::embedding_forward`], rows added in token order. Accumulates into `dwte` (the tied
    /// head has been there before); overwrites `dwpe`, rows at and after `t` with zeros.
    ///
    /// A bf16 `dwte` is rounded once here, after all rows of a token, and was rounded once before by whoever
    /// wrote it. A caller who wants one rounding in all holds it in f32 to the end and then casts.
    fn embedding_backward(
        &self,
        dwte: ViewMut<'_>,         // (V, C)
        dwpe: Option<ViewMut<'_>>, // (T_max, C)
        dout: View<'_>,            // (rows, C)
        tokens: View<'_>,          // (rows) u32
        work: ViewMut<'_>,         // (embedding_backward_work_numel) u32
        t: usize,
    );

    /// Scratch elements (u32) of [`Ops::embedding_backward`]; without positions `dwpe` is as `dwte`.
    fn embedding_backward_work_numel(rows: usize, dwte: DType, dwpe: DType) -> usize
    where
        Self: Sized;

    /// Layer normalisation over the last dimension, eps 1e-5, biased variance. Overwrites `out`, `mean`,
    /// `rstd`.
    fn layer_norm_forward(
        &self,
        out: ViewMut<'_>,  // (rows, C)
        mean: ViewMut<'_>, // (rows) f32
        rstd: ViewMut<'_>, // (rows) f32
        inp: View<'_>,     // (rows, C)
        weight: View<'_>,  // (C)
        bias: View<'_>,    // (C), of the type of weight
    );

    /// `sum = a + b`, rounded, and [`Ops::layer_norm_forward`] of it: the same bits as the two apart.
    /// Overwrites `sum`, `out`, `mean`, `rstd`.
    #[allow(clippy::too_many_arguments)]
    fn add_layer_norm_forward(
        &self,
        mut sum: ViewMut<'_>, // (rows, C)
        out: ViewMut<'_>,     // (rows, C)
        mean: ViewMut<'_>,    // (rows) f32
        rstd: ViewMut<'_>,    // (rows) f32
        a: View<'_>,          // (rows, C)
        b: View<'_>,          // (rows, C)
        weight: View<'_>,     // (C)
        bias: View<'_>,       // (C)
    ) {
        self.add(sum.reborrow(), a, b);
        self.layer_norm_forward(out, mean, rstd, sum.as_view(), weight, bias);
    }

    /// Gradients of [`Ops::layer_norm_forward`]. Accumulates into `dinp` (the residual path has been there
    /// before); overwrites `dweight` and `dbias`. `dinp` has the type of `inp`, `dbias` that of `dweight`.
    #[allow(clippy::too_many_arguments)]
    fn layer_norm_backward(
        &self,
        dinp: ViewMut<'_>,    // (rows, C)
        dweight: ViewMut<'_>, // (C)
        dbias: ViewMut<'_>,   // (C)
        dout: View<'_>,       // (rows, C)
        inp: View<'_>,        // (rows, C)
        weight: View<'_>,     // (C)
        mean: View<'_>,       // (rows) f32
        rstd: View<'_>,       // (rows) f32
        work: ViewMut<'_>,    // (layer_norm_work_numel) f32
    );

    /// Scratch elements of [`Ops::layer_norm_backward`].
    fn layer_norm_work_numel(rows: usize, c: usize) -> usize
    where
        Self: Sized;

    /// `out = inp / sqrt(mean(inp^2) + eps) * weight` over the last dimension (arXiv:1910.07467). Overwrites
    /// `out` and `rstd`.
    fn rms_norm_forward(
        &self,
        out: ViewMut<'_>,  // (rows, C)
        rstd: ViewMut<'_>, // (rows) f32
        inp: View<'_>,     // (rows, C)
        weight: View<'_>,  // (C)
        eps: f32,
    );

    /// Gradients of [`Ops::rms_norm_forward`]. Accumulates into `dinp`, which has the type of `inp`;
    /// overwrites `dweight`.
    #[allow(clippy::too_many_arguments)]
    fn rms_norm_backward(
        &self,
        dinp: ViewMut<'_>,    // (rows, C)
        dweight: ViewMut<'_>, // (C)
        dout: View<'_>,       // (rows, C)
        inp: View<'_>,        // (rows, C)
        weight: View<'_>,     // (C)
        rstd: View<'_>,       // (rows) f32
        work: ViewMut<'_>,    // (rms_norm_work_numel) f32
    );

    /// Scratch elements of [`Ops::rms_norm_backward`].
    fn rms_norm_work_numel(rows: usize, c: usize) -> usize
    where
        Self: Sized;

    /// Turns the query and key heads of `qkv` by their positions, in place (arXiv:2104.09864, rotate-half).
    fn rope(
        &self,
        qkv: ViewMut<'_>,  // (B, T, (H + 2 Hkv) * D), D even
        work: ViewMut<'_>, // (rope_work_numel) f32
        shape: AttentionShape,
        rotation: Rotation,
    );

    /// Scratch elements of [`Ops::rope`].
    fn rope_work_numel(shape: AttentionShape) -> usize
    where
        Self: Sized;

    /// `out = silu(gate) * up` of rows `[gate | up]` (arXiv:2002.05202). Overwrites `out`.
    fn swiglu_forward(
        &self,
        out: ViewMut<'_>,  // (rows, F)
        gate_up: View<'_>, // (rows, 2F)
        f: usize,
    );

    /// Gradient of [`Ops::swiglu_forward`]. Overwrites `dgate_up`.
    fn swiglu_backward(
        &self,
        dgate_up: ViewMut<'_>, // (rows, 2F)
        dout: View<'_>,        // (rows, F)
        gate_up: View<'_>,     // (rows, 2F)
        f: usize,
    );

    /// `out = inp * weight^T + bias`. Overwrites `out`.
    fn linear_forward(
        &self,
        out: ViewMut<'_>,       // (rows, n_out)
        inp: View<'_>,          // (rows, n_in)
        weight: View<'_>,       // (n_out, n_in)
        bias: Option<View<'_>>, // (n_out), of the type of weight
        work: ViewMut<'_>,      // (linear_forward_work_numel) f32
        shape: LinearShape,
    );

    /// `dinp = dout * weight`. Overwrites `dinp`. A device may round an f32 `dout` to a bf16 `weight`'s type
    /// before it multiplies.
    fn linear_backward_input(
        &self,
        dinp: ViewMut<'_>, // (rows, n_in)
        dout: View<'_>,    // (rows, n_out)
        weight: View<'_>,  // (n_out, n_in)
        work: ViewMut<'_>, // (linear_backward_input_work_numel) f32
        shape: LinearShape,
    );

    /// `dweight (+)= dout^T * inp`, `dbias = column sums of dout`. Overwrites, or adds to `dweight` where
    /// `accumulate` (row chunks of the head); `dbias` is always overwritten. A bf16 `dweight` is rounded once
    /// per call: who accumulates over several calls holds it in f32 and casts after the last. A device may
    /// round an f32 `dout` to a bf16 `inp`'s type before it multiplies.
    #[allow(clippy::too_many_arguments)]
    fn linear_backward_weight(
        &self,
        dweight: ViewMut<'_>,       // (n_out, n_in)
        dbias: Option<ViewMut<'_>>, // (n_out)
        dout: View<'_>,             // (rows, n_out)
        inp: View<'_>,              // (rows, n_in)
        work: ViewMut<'_>,          // (linear_backward_weight_work_numel) f32
        shape: LinearShape,
        accumulate: bool,
    );

    /// Scratch elements of [`Ops::linear_forward`] for these types; 0 where all is f32.
    fn linear_forward_work_numel(shape: LinearShape, out: DType, inp: DType, weight: DType) -> usize
    where
        Self: Sized;

    /// Scratch elements of [`Ops::linear_backward_input`] for these types; 0 where all is f32.
    fn linear_backward_input_work_numel(shape: LinearShape, dinp: DType, dout: DType, weight: DType) -> usize
    where
        Self: Sized;

    /// Scratch elements of [`Ops::linear_backward_weight`] for these types; 0 where all is f32.
    fn linear_backward_weight_work_numel(
        shape: LinearShape,
        dweight: DType,
        dout: DType,
        inp: DType,
    ) -> usize
    where
        Self: Sized;

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

    /// `pre = inp * weight^T + bias`, `out = gelu(pre)`. Overwrites both. A device that computes them
    /// together may give GELU the sum before it is rounded to the type of `pre`.
    #[allow(clippy::too_many_arguments)]
    fn linear_gelu_forward(
        &self,
        out: ViewMut<'_>,     // (rows, n_out)
        mut pre: ViewMut<'_>, // (rows, n_out)
        inp: View<'_>,        // (rows, n_in)
        weight: View<'_>,     // (n_out, n_in)
        bias: View<'_>,       // (n_out), of the type of weight
        work: ViewMut<'_>,    // (linear_forward_work_numel) f32
        shape: LinearShape,
    ) {
        self.linear_forward(pre.reborrow(), inp, weight, Some(bias), work, shape);
        self.gelu_forward(out, pre.as_view());
    }

    /// `dinp = (dout * weight) * GELU'(pre)`, where the layer's input was `gelu(pre)`. Overwrites `dinp`. A
    /// device that computes them together may round once where [`Ops::linear_backward_input`] and
    /// [`Ops::gelu_backward`] round twice.
    fn linear_gelu_backward_input(
        &self,
        mut dinp: ViewMut<'_>, // (rows, n_in)
        dout: View<'_>,        // (rows, n_out)
        weight: View<'_>,      // (n_out, n_in)
        pre: View<'_>,         // (rows, n_in)
        work: ViewMut<'_>,     // (linear_backward_input_work_numel) f32
        shape: LinearShape,
    ) {
        self.linear_backward_input(dinp.reborrow(), dout, weight, work, shape);
        self.gelu_backward(dinp, pre);
    }

    /// Sets every byte of `dst`: 0 for zeros, 0xff for f32/bf16 NaN (use after release then shows).
    fn fill_bytes(&self, dst: ViewMut<'_>, byte: u8);

    /// `out = a + b`. Overwrites `out`.
    fn add(
        &self,
        out: ViewMut<'_>, // (n)
        a: View<'_>,      // (n)
        b: View<'_>,      // (n)
    );

    /// `out += inp`, for sums of gradients over micro-steps. Accumulates.
    fn accumulate(
        &self,
        out: ViewMut<'_>, // (n) f32
        inp: View<'_>,    // (n)
    );

    /// `out = inp` in the type of `out`: exact from bf16 to f32, rounded to nearest even the other way; NaN
    /// stays NaN. Overwrites `out`.
    fn cast(
        &self,
        out: ViewMut<'_>, // (n)
        inp: View<'_>,    // (n)
    );

    /// Copies `n` columns of every row of one matrix to columns of another. Overwrites those.
    fn copy_columns(
        &self,
        out: ViewMut<'_>, // (rows, to.row)
        to: Columns,
        inp: View<'_>, // (rows, from.row), of the type of out
        from: Columns,
        n: usize,
    );

    /// Causal softmax attention, scale `1/sqrt(d_head)`. Overwrites `out` and `lse`. `out` has the type of
    /// `qkv`.
    fn attention_forward(
        &self,
        out: ViewMut<'_>,  // (B, T, H * D)
        lse: ViewMut<'_>,  // (B, H, T) f32: log-sum-exp of the scaled scores
        qkv: View<'_>,     // (B, T, (H + 2 Hkv) * D)
        work: ViewMut<'_>, // (attention_forward_work_numel) f32
        shape: AttentionShape,
    );

    /// [`Ops::attention_forward`] of the last `n` rows of one sequence, of which all rows of `qkv` are known:
    /// what generating text needs. Overwrites `out`. A device without such a kernel computes every row
    /// again.
    fn attention_cached(
        &self,
        out: ViewMut<'_>, // (n, H * D)
        qkv: View<'_>,    // (T, (H + 2 Hkv) * D)
        scratch: CachedWork<'_>,
        shape: AttentionShape, // B = 1
        n: usize,
    ) {
        let numel = shape.t * shape.out_row();
        let (mut whole, lse) = (scratch.out.range(0..numel), scratch.lse.range(0..shape.n_heads * shape.t));
        self.attention_forward(whole.reborrow(), lse, qkv, scratch.work, shape);
        self.cast(out, whole.as_view().range(numel - n * shape.out_row()..numel));
    }

    /// Gradient of [`Ops::attention_forward`]; the probabilities are recomputed from `lse`. Overwrites
    /// `dqkv`. `dqkv`, `dout`, `qkv` and `out` have one type.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        dqkv: ViewMut<'_>, // (B, T, (H + 2 Hkv) * D)
        dout: View<'_>,    // (B, T, H * D)
        qkv: View<'_>,     // (B, T, (H + 2 Hkv) * D)
        out: View<'_>,     // (B, T, H * D)
        lse: View<'_>,     // (B, H, T) f32
        work: ViewMut<'_>, // (attention_backward_work_numel) f32
        shape: AttentionShape,
    );

    /// Scratch elements of [`Ops::attention_forward`] on activations of `dtype`.
    fn attention_forward_work_numel(shape: AttentionShape, dtype: DType) -> usize
    where
        Self: Sized;

    /// Scratch elements of [`Ops::attention_backward`] on activations of `dtype`.
    fn attention_backward_work_numel(shape: AttentionShape, dtype: DType) -> usize
    where
        Self: Sized;

    /// Softmax cross-entropy of each row: `losses[i] = logsumexp(logits[i,:]) - logits[i, targets[i]]` in
    /// nats. Overwrites `losses`; where `dlogits_scale` is given, overwrites `logits` with `(softmax(logits)
    /// - onehot(target)) * scale` (scale = 1 / tokens of the global batch).
    fn cross_entropy(
        &self,
        logits: ViewMut<'_>, // (rows, V) f32: logits in, dlogits out
        losses: ViewMut<'_>, // (rows) f32
        targets: View<'_>,   // (rows) u32, each < V
        dlogits_scale: Option<f32>,
    );

    /// One update of a slice by the optimizer of `step` (`optimizers/` has the formulas). Updates `master`
    /// and `states` in place; `states` are those that the optimizer keeps in this run.
    ///
    /// In mixed precision `param` is the bf16 slice that is gathered and computed with: overwritten with the
    /// updated master weights, rounded.
    fn update(
        &self,
        master: ViewMut<'_>,              // (n) f32
        states: OptimStates<ViewMut<'_>>, // (n) f32 each
        grad: View<'_>,                   // (n)
        step: &UpdateStep,
        param: Option<ViewMut<'_>>, // (n) bf16
    );
}
