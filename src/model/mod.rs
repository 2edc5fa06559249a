//! Transformer math: what each unit computes forward and backward, over views of whole parameters.
//!
//! A family describes itself as data ([`ModelSpec`]) for the planner and computes its units when told to.
//! Must not know: ranks, slices, schedules, where parameters come from.

pub mod gpt2;
pub mod init;
pub mod llama;
pub mod logits;
#[cfg(test)]
mod tests;
pub mod work;

use crate::backend::ops::{AttentionShape, CachedWork};
use crate::backend::{Buf, Device, Ops, View, ViewMut};
use crate::config::{self, Deck, ReduceWhen};
use crate::dtype::DType;
use crate::params::{ModelSpec, Precision, UnitId, UnitRole};

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

/// What a model computes, with the sizes of its family alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// Llama.
    Llama(llama::Shape),
}

/// A model for one micro-batch shape.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// Its sizes.
    pub dims: Dims,
    /// Its family.
    pub family: Family,
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
        let m = &deck.model;
        let dims =
            Dims { b, t, t_max: m.seq_len, c: m.d_model, n_heads: m.n_head, vocab: m.vocab_size, n_layer: m.n_layer };
        let family = match m.family {
            config::Family::Gpt2 => Family::Gpt2,
            config::Family::Llama => Family::Llama(llama::Shape {
                n_kv_heads: m.n_kv_head,
                d_ff: m.d_ff,
                rope_theta: m.rope_theta as f32,
                norm_eps: m.norm_eps as f32,
                tied: m.tied,
            }),
        };
        Model::new::<D>(dims, family, precision(deck))
    }

    /// A model of these sizes and types.
    pub fn new<D: Ops>(dims: Dims, family: Family, precision: Precision) -> Model {
        let spec = match &family {
            Family::Gpt2 => gpt2::spec::<D>(&dims, precision),
            Family::Llama(shape) => llama::spec::<D>(&dims, shape, precision),
        };
        Model { spec, dims, family }
    }

    /// Runs the forward of an embedding or block.
    pub fn forward<D: Device>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: ForwardIo<'_>) {
        match (&self.family, self.spec.units[unit].role) {
            (Family::Gpt2, UnitRole::Embedding) => gpt2::embedding::forward(dev, &self.dims, params, io),
            (Family::Gpt2, UnitRole::Block) => gpt2::block::forward(dev, &self.dims, params, io),
            (Family::Llama(_), UnitRole::Embedding) => llama::embedding::forward(dev, &self.dims, params, io),
            (Family::Llama(shape), UnitRole::Block) => llama::block::forward(dev, &self.dims, shape, params, io),
            (_, UnitRole::Head) => panic!("the head is visited for its loss"),
        }
    }

    /// Shape of a block's attention.
    pub fn attention_shape(&self) -> AttentionShape {
        match &self.family {
            Family::Gpt2 => gpt2::block::attention_shape(&self.dims),
            Family::Llama(shape) => llama::block::attention_shape(&self.dims, shape),
        }
    }

    /// Runs the backward of an embedding or block.
    pub fn backward<D: Device>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: BackwardIo<'_>) {
        match (&self.family, self.spec.units[unit].role) {
            (Family::Gpt2, UnitRole::Embedding) => gpt2::embedding::backward(dev, &self.dims, io),
            (Family::Gpt2, UnitRole::Block) => gpt2::block::backward(dev, &self.dims, params, io),
            (Family::Llama(shape), UnitRole::Embedding) => llama::embedding::backward(dev, &self.dims, shape, io),
            (Family::Llama(shape), UnitRole::Block) => llama::block::backward(dev, &self.dims, shape, params, io),
            (_, UnitRole::Head) => panic!("the head is visited for its loss"),
        }
    }

    /// Runs the head: losses, and in training its backward.
    pub fn loss<D: Device>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        match &self.family {
            Family::Gpt2 => gpt2::head::loss(dev, &self.dims, params, io),
            Family::Llama(shape) => llama::head::loss(dev, &self.dims, shape, params, io),
        }
    }
}

/// Element types of a deck's run. Activations are of the type that is computed with; full gradients of the type they
/// travel in, or f32 where they are held over micro-steps.
pub fn precision(deck: &Deck) -> Precision {
    let zero = &deck.zero;
    let grad = if zero.reduce == ReduceWhen::LastMicroStep { DType::F32 } else { zero.reduce_dtype };
    Precision { param: zero.param_dtype, activation: zero.param_dtype, grad }
}

/// Attention of a block's rows: of whole sequences, or of new rows over those that are kept.
fn attend<D: Device>(
    dev: &D,
    out: &mut Buf,
    lse: &mut Buf,
    qkv: View<'_>,
    work: &mut Buf,
    shape: AttentionShape,
    cached: Option<Cached<'_>>,
) {
    let Some(Cached { first, qkv: kept, work: scratch }) = cached else {
        return dev.attention_forward(out.view_mut(), lse.view_mut(), qkv, work.view_mut(), shape);
    };
    let kept = kept.expect("a block keeps the projections of its rows");
    assert_eq!(shape.b, 1, "one text is generated at a time");
    let (row, all) = (shape.qkv_row(), first + shape.t);
    dev.cast(kept.view_mut().range(first * row..all * row), qkv);
    let so_far = AttentionShape { t: all, ..shape };
    dev.attention_cached(out.view_mut(), kept.view().range(0..all * row), scratch, so_far, shape.t);
}

/// A gradient buffer without its padding.
fn dense(buf: &mut Buf, numel: usize) -> ViewMut<'_> {
    buf.view_mut().range(0..numel)
}
