//! The computation of a unit's visit, as data: kernels with their FLOPs and the bytes they move.
//!
//! `model/visit_kernels.rs` finds it out from the model's own code, `plan/forecast/` gives it a time,
//! `calibrate/` measures the same kernels. Must not know: how fast anything is.

use crate::dtype::DType;
use crate::optimizers::{BYTES_PER_STATE, OptimizerKind};

/// Kinds of kernels that differ in their limiting resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `out = inp * weight^T`.
    LinearForward,
    /// `dinp = dout * weight`.
    LinearBackwardInput,
    /// `dweight = dout^T * inp`.
    LinearBackwardWeight,
    /// Causal softmax attention.
    AttentionForward,
    /// Its gradient, probabilities computed again.
    AttentionBackward,
    /// LayerNorm or RMSNorm.
    NormForward,
    /// Their gradients.
    NormBackward,
    /// GELU or SwiGLU.
    ActivationForward,
    /// Their gradients.
    ActivationBackward,
    /// Softmax cross-entropy with its gradient.
    CrossEntropy,
    /// Rotary positions.
    Rope,
    /// Looking rows up.
    EmbeddingForward,
    /// Adding rows up, in token order.
    EmbeddingBackward,
    /// Adding, copying, casting, filling.
    Stream,
    /// The exact sum of squares of the gradient norm.
    SumOfSquares,
    /// The update of a slice by an optimizer.
    Update(OptimizerKind),
}

impl Kernel {
    /// Those used by every run; [`Kernel::all`] includes the optimizers'.
    const OF_EVERY_RUN: [Kernel; 15] = [
        Kernel::LinearForward,
        Kernel::LinearBackwardInput,
        Kernel::LinearBackwardWeight,
        Kernel::AttentionForward,
        Kernel::AttentionBackward,
        Kernel::NormForward,
        Kernel::NormBackward,
        Kernel::ActivationForward,
        Kernel::ActivationBackward,
        Kernel::CrossEntropy,
        Kernel::Rope,
        Kernel::EmbeddingForward,
        Kernel::EmbeddingBackward,
        Kernel::Stream,
        Kernel::SumOfSquares,
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let updates = OptimizerKind::ALL.iter().map(|&kind| Kernel::Update(kind));
        Kernel::OF_EVERY_RUN.into_iter().chain(updates)
    }

    /// The name in hardware files.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::LinearForward => "linear_forward",
            Kernel::LinearBackwardInput => "linear_backward_input",
            Kernel::LinearBackwardWeight => "linear_backward_weight",
            Kernel::AttentionForward => "attention_forward",
            Kernel::AttentionBackward => "attention_backward",
            Kernel::NormForward => "norm_forward",
            Kernel::NormBackward => "norm_backward",
            Kernel::ActivationForward => "activation_forward",
            Kernel::ActivationBackward => "activation_backward",
            Kernel::CrossEntropy => "cross_entropy",
            Kernel::Rope => "rope",
            Kernel::EmbeddingForward => "embedding_forward",
            Kernel::EmbeddingBackward => "embedding_backward",
            Kernel::Stream => "stream",
            Kernel::SumOfSquares => "sum_of_squares",
            Kernel::Update(kind) => kind.name(),
        }
    }
}

/// One call of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Which.
    pub kernel: Kernel,
    /// The element type of most operands.
    pub dtype: DType,
    /// Additions and multiplications of matrix products; 0 for passes over memory.
    pub flops: f64,
    /// Operands read and results written, each once.
    pub bytes: f64,
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

impl LinearShape {
    /// Elements of `out`.
    pub fn out_numel(self) -> usize {
        self.rows * self.n_out
    }

    /// One of the three linear kernels on operands of `dtype`; rows of `n_out` columns have `wide_bytes` per
    /// element, and an accumulated gradient of the weight is read and written in f32.
    pub fn work(self, kernel: Kernel, dtype: DType, wide_bytes: usize, accumulates: bool) -> Work {
        let (m, k, n) = (self.rows as f64, self.n_in as f64, self.n_out as f64);
        let size = dtype.bytes() as f64;
        let weight = n * k * if accumulates { 8.0 } else { size };
        Work {
            kernel,
            dtype,
            flops: 2.0 * m * n * k,
            bytes: m * k * size + weight + m * n * wide_bytes as f64,
        }
    }
}

/// Shape of causal self-attention over a fused projection.
///
/// A row of `qkv` is `[q: n_heads * d_head | k: n_kv_heads * d_head | v: n_kv_heads * d_head]`; query head
/// `i` uses kv head `i / (n_heads / n_kv_heads)`.
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
    /// Rows of `qkv` and of the output.
    pub fn rows(&self) -> usize {
        self.b * self.t
    }

    /// Elements of one row of `qkv`.
    pub fn qkv_row(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.d_head
    }

    /// Elements of one row of the output.
    pub fn out_row(&self) -> usize {
        self.n_heads * self.d_head
    }

    /// Forward (two products over the pairs of a query and a key not after it) or backward (five). Rows of
    /// projections and output are moved once; scores are not stored.
    pub fn work(self, kernel: Kernel, dtype: DType) -> Work {
        let AttentionShape { b, t, n_heads, d_head, .. } = self;
        let pairs = (b * n_heads) as f64 * (t as f64 * (t + 1) as f64 / 2.0);
        let products = if kernel == Kernel::AttentionBackward { 5.0 } else { 2.0 };
        let (row, out) = (self.qkv_row(), self.out_row());
        let numel = if kernel == Kernel::AttentionBackward { 2 * row + 2 * out } else { row + out };
        let bytes = (b * t * numel * dtype.bytes()) as f64;
        Work { kernel, dtype, flops: products * 2.0 * pairs * d_head as f64, bytes }
    }
}

impl Work {
    /// A pass over memory.
    pub fn pass(kernel: Kernel, dtype: DType, bytes: usize) -> Work {
        Work { kernel, dtype, flops: 0.0, bytes: bytes as f64 }
    }

    /// An optimizer's update of a slice of parameters of type `param`: fp32 weights and states are read and
    /// written, gradients read, and low-precision parameters written next to their masters.
    pub fn update(kind: OptimizerKind, n_states: usize, param: DType, grad: DType, numel: usize) -> Work {
        let rounded = if param == DType::F32 { 0 } else { param.bytes() };
        let bytes = 2 * BYTES_PER_STATE * (1 + n_states) + grad.bytes() + rounded;
        Work::pass(Kernel::Update(kind), param, numel * bytes)
    }
}

/// The kernels of the visits of one unit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnitWork {
    /// Its forward visit; none for the head.
    pub forward: Vec<Work>,
    /// Its backward visit without recomputation; for the head, its one training visit.
    pub backward: Vec<Work>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_counts_the_pairs_a_causal_mask_leaves() {
        let shape = AttentionShape { b: 2, t: 3, n_heads: 4, n_kv_heads: 2, d_head: 8 };
        // Three tokens see 1, 2 and 3 keys: 6 pairs; two products of 2 * d_head each.
        let forward = shape.work(Kernel::AttentionForward, DType::F32);
        assert_eq!(forward.flops, (2 * 4 * 6 * 2 * 2 * 8) as f64);
        assert_eq!(forward.bytes, (2 * 3 * (8 * 8 + 4 * 8) * 4) as f64);
        assert_eq!(shape.work(Kernel::AttentionBackward, DType::F32).flops, 2.5 * forward.flops);
    }

    #[test]
    fn a_product_that_adds_to_its_result_reads_and_writes_it_in_f32() {
        let shape = LinearShape { rows: 2, n_in: 3, n_out: 5 };
        let plain = shape.work(Kernel::LinearBackwardWeight, DType::Bf16, 4, false);
        assert_eq!((plain.flops, plain.bytes), (60.0, (2 * 3 * 2 + 15 * 2 + 10 * 4) as f64));
        assert_eq!(
            shape.work(Kernel::LinearBackwardWeight, DType::Bf16, 4, true).bytes - plain.bytes,
            15.0 * 6.0
        );
    }
}
