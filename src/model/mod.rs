//! Transformer math: what each unit computes forward and backward, over views of whole parameters.
//!
//! A family describes itself as data ([`ModelSpec`]) for the planner and computes its units when told to.
//! Must not know: ranks, slices, schedules, where parameters come from.

pub mod gpt2;
pub mod init;
pub mod layers;
pub mod llama;
pub mod logits;
pub mod rms_head;
#[cfg(test)]
mod tests;
pub mod token_embedding;
pub mod unit;
pub mod work;

use crate::backend::ops::{AttentionShape, CachedWork};
use crate::backend::{Buf, Ops, View, ViewMut};
use crate::config::{self, Deck, ModelSection, ReduceWhen};
use crate::dtype::DType;
use crate::params::{ModelSpec, Piece, Precision, UnitId, UnitRole};

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

/// A family of models: what its units are, and what they compute. Its kernels are those of any device.
///
/// Dispatch is static: scratch is asked of a device's type, before there is a device, which no object could do. The one
/// `match` is made by `families!`.
pub trait Family: Sized {
    /// A model of a deck whose sizes of a micro-batch are `dims`.
    fn new(model: &ModelSection, dims: Dims) -> Self;
    /// Its sizes.
    fn dims(&self) -> &Dims;
    /// Shape of a block's attention.
    fn attention_shape(&self) -> AttentionShape;
    /// The model as data.
    fn spec<D: Ops>(&self, precision: Precision) -> ModelSpec;
    /// The forward of the embedding.
    fn embedding<D: Ops>(&self, dev: &D, params: &[View<'_>], io: ForwardIo<'_>);
    /// The backward of the embedding, which needs no parameters.
    fn embedding_backward<D: Ops>(&self, dev: &D, io: BackwardIo<'_>);
    /// These pieces of the forward of a block.
    fn block<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: ForwardIo<'_>);
    /// These pieces of the backward of a block, last piece first.
    fn block_backward<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: BackwardIo<'_>);
    /// The head: losses, and in training its backward.
    fn loss<D: Ops>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>);
}

/// The list of families: the enum of them, which one a deck asks for, and calls of [`Family`] for whichever it is.
macro_rules! families {
    ($($(#[$meta:meta])* $Name:ident($Type:ty),)+) => {
        /// A model of one of the families.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum AnyFamily { $($(#[$meta])* $Name($Type),)+ }

        impl AnyFamily {
            /// The family that a deck asks for.
            fn new(model: &ModelSection, dims: Dims) -> Self {
                match model.family {
                    $(config::Family::$Name => AnyFamily::$Name(<$Type as Family>::new(model, dims)),)+
                }
            }
        }

        /// An expression over the [`Family`] that an [`AnyFamily`] is.
        macro_rules! of_family {
            ($any:expr, $family:ident => $body:expr) => {
                match $any { $(AnyFamily::$Name($family) => $body,)+ }
            };
        }
    };
}

families! {
    /// GPT-2.
    Gpt2(gpt2::Gpt2),
    /// Llama.
    Llama(llama::Llama),
}

/// A model for one micro-batch shape.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// Its sizes.
    pub dims: Dims,
    /// What computes it.
    pub family: AnyFamily,
}

/// Rows of a sequence that come after others, whose projections are kept: generating text.
pub struct Cached<'a> {
    /// Position of the first of the new rows.
    pub first: usize,
    /// Projections of all rows so far, (T_max, (H + 2 Hkv) * D); those of the new rows are added. None for the embedding.
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
    /// Full gradients, one per parameter of the unit, padded; overwritten, or accumulated into where another unit
    /// that uses the same parameter has been there before.
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

impl Model {
    /// The model of a deck for micro-batches on devices of type `D`.
    pub fn of_deck<D: Ops>(deck: &Deck) -> Model {
        Model::of_rows::<D>(deck, deck.train.micro_batch_size, deck.model.seq_len)
    }

    /// The same parameters for `b` sequences of `t` tokens.
    pub fn of_rows<D: Ops>(deck: &Deck, b: usize, t: usize) -> Model {
        Model::new::<D>(&deck.model, b, t, precision(deck))
    }

    /// A model of these sizes and types for `b` sequences of `t` tokens.
    pub fn new<D: Ops>(m: &ModelSection, b: usize, t: usize, precision: Precision) -> Model {
        let dims = Dims {
            b,
            t,
            t_max: m.seq_len,
            c: m.d_model,
            n_heads: m.n_head,
            d_head: m.d_model / m.n_head,
            vocab: m.vocab_size,
            n_layer: m.n_layer,
        };
        let family = AnyFamily::new(m, dims);
        let spec = of_family!(&family, family => family.spec::<D>(precision));
        Model { spec, dims, family }
    }

    /// Shape of a block's attention.
    pub fn attention_shape(&self) -> AttentionShape {
        of_family!(&self.family, family => family.attention_shape())
    }

    /// Runs the forward of an embedding or block.
    pub fn forward<D: Ops>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: ForwardIo<'_>) {
        let unit = &self.spec.units[unit];
        of_family!(&self.family, family => match unit.role {
            UnitRole::Embedding => family.embedding(dev, params, io),
            UnitRole::Block => family.block(dev, unit.pieces, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        })
    }

    /// Runs the backward of an embedding or block.
    pub fn backward<D: Ops>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: BackwardIo<'_>) {
        let unit = &self.spec.units[unit];
        of_family!(&self.family, family => match unit.role {
            UnitRole::Embedding => family.embedding_backward(dev, io),
            UnitRole::Block => family.block_backward(dev, unit.pieces, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        })
    }

    /// Runs the head: losses, and in training its backward.
    pub fn loss<D: Ops>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        of_family!(&self.family, family => family.loss(dev, params, io))
    }
}

/// Element types of a deck's run. Activations are of the type that is computed with; full gradients of the type they
/// travel in, or f32 where they are held over micro-steps.
pub fn precision(deck: &Deck) -> Precision {
    let zero = &deck.zero;
    let grad = if zero.reduce == ReduceWhen::LastMicroStep { DType::F32 } else { zero.reduce_dtype };
    Precision { param: zero.param_dtype, activation: zero.param_dtype, grad }
}
