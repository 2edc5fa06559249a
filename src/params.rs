//! The model as data: parameters, units, and the tensors each unit needs.
//!
//! `plan/` reads these to decide every byte before step 0; `model/` fills them in for a family and
//! computes; `zero/` moves the parameters. Must not know: ranks, buffers, kernels.

use crate::dtype::DType;
use smallvec::SmallVec;

/// Index into [`ModelSpec::params`].
pub type ParamId = usize;

/// Index into [`ModelSpec::units`].
pub type UnitId = usize;

/// One entry for each of a unit's parameters, gradients or other tensors. No family has more than sixteen, so
/// that a step passes such lists around without heap allocations; longer ones work too.
pub type PerTensor<T> = SmallVec<[T; 16]>;

/// How a parameter starts. Values are a function of (seed, name, element), never of the rank count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal {
        /// Standard deviation.
        std: f64,
    },
}

/// One parameter of the model: stored once, sliced once, however many units use it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Name in the model's conventions, e.g. `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape, row-major. Linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Weight decay applies (parameters of two or more dimensions).
    pub decay: bool,
}

impl ParamSpec {
    /// Number of elements, unpadded.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A tensor a unit needs, as data for the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Name within its unit, e.g. `ln_1.rstd`.
    pub name: String,
    /// Number of elements.
    pub numel: usize,
    /// Element type.
    pub dtype: DType,
}

impl TensorSpec {
    /// A tensor of any type.
    pub fn new(name: impl Into<String>, numel: usize, dtype: DType) -> Self {
        TensorSpec { name: name.into(), numel, dtype }
    }

    /// An f32 tensor.
    pub fn f32(name: impl Into<String>, numel: usize) -> Self {
        TensorSpec::new(name, numel, DType::F32)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.bytes()
    }
}

/// Element types of a model's compute. Statistics, logits and sums are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Gathered parameters.
    pub param: DType,
    /// Activations and their gradients.
    pub activation: DType,
    /// Full gradients that are written at once; those that are sums of parts are [`SHARED_GRAD`].
    pub grad: DType,
}

/// Element type of a full gradient that is a sum of parts ([`ModelSpec::is_summed`]): rounded once, for its
/// reduction.
pub const SHARED_GRAD: DType = DType::F32;

impl Precision {
    /// Everything in f32.
    pub const F32: Self = Precision { param: DType::F32, activation: DType::F32, grad: DType::F32 };
}

/// Position of a unit in the model: determines which visits the schedule makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitRole {
    /// First: reads tokens, writes the residual stream. Its backward needs no parameters.
    Embedding,
    /// In between: reads and writes the residual stream.
    Block,
    /// Last: turns the residual stream into a loss. In training its forward and backward are one visit.
    Head,
}

/// A part of a block's visit. On one rank a visit runs all of them in sequence; they are separated where
/// ranks that share a block would have to exchange rows, keys or partial sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// The norm before attention, on the rows of the residual stream.
    Enter,
    /// Queries, keys and values of these rows, with rotary positions applied.
    Project,
    /// Attention.
    Attend,
    /// The projection of attention's output, the first branch.
    Out,
    /// Adds the first branch to the residual stream, and applies the norm.
    Middle,
    /// The hidden layer and its projection, the second branch.
    Mlp,
    /// Adds the second branch to the residual stream.
    Leave,
}

impl Piece {
    /// The pieces of a block in the order of its forward; backward is the reverse.
    pub const OF_BLOCK: [Piece; 7] =
        [Piece::Enter, Piece::Project, Piece::Attend, Piece::Out, Piece::Middle, Piece::Mlp, Piece::Leave];
}

/// The group of parameters gathered and used together.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitSpec {
    /// Name, e.g. `embed`, `h.0`, `head`.
    pub name: String,
    /// Role in the model.
    pub role: UnitRole,
    /// Parameters it uses, in the order the unit's code indexes them. A tied parameter appears in two units.
    pub params: Vec<ParamId>,
    /// The pieces of a visit, in the order of forward; none if it is a single piece.
    pub pieces: &'static [Piece],
    /// Tensors written by forward and read by backward.
    pub saved: Vec<TensorSpec>,
    /// Scratch of one forward visit.
    pub forward_work: Vec<TensorSpec>,
    /// Scratch of one backward visit (for the head: of its one training visit).
    pub backward_work: Vec<TensorSpec>,
}

/// A whole model for one micro-batch shape.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Every parameter, each once.
    pub params: Vec<ParamSpec>,
    /// Units in forward order: one embedding, blocks, one head.
    pub units: Vec<UnitSpec>,
    /// Other names of stored parameters, e.g. (`lm_head.weight`, id of `wte.weight`).
    pub aliases: Vec<(String, ParamId)>,
    /// Element type of activations and their gradients.
    pub activation_dtype: DType,
    /// Elements of the residual stream of one micro-batch: B * T * C.
    pub residual_numel: usize,
    /// Tokens of one micro-batch: B * T.
    pub tokens_per_micro_batch: usize,
    /// Model FLOPs per token of one training step (forward + backward), for `mfu`.
    pub flops_per_token: f64,
}

impl ModelSpec {
    /// Name and shape of every parameter, in order.
    pub fn names_and_shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.params.iter().map(|p| (p.name.as_str(), p.shape.as_slice()))
    }

    /// Psi: the number of parameters, each counted once.
    pub fn numel(&self) -> usize {
        self.params.iter().map(ParamSpec::numel).sum()
    }

    /// Whether a parameter's full gradient is a sum of parts: of several units, or, for the head's matrix, of
    /// chunks of rows.
    pub fn is_summed(&self, param: ParamId) -> bool {
        let n_users = self.units.iter().filter(|unit| unit.params.contains(&param)).count();
        let of_head = |unit: &UnitSpec| unit.role == UnitRole::Head && unit.params.contains(&param);
        n_users > 1 || self.params[param].shape.len() >= 2 && self.units.iter().any(of_head)
    }

    /// The units that use each parameter, in forward order: one, or several if it is tied. In backward the
    /// last one starts the gradient and the first one completes it.
    pub fn users(&self) -> Vec<Vec<UnitId>> {
        let mut users = vec![Vec::new(); self.params.len()];
        for (u, unit) in self.units.iter().enumerate() {
            unit.params.iter().for_each(|&p| users[p].push(u));
        }
        users
    }
}
