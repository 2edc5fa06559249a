//! Transformer math: what each unit computes forward and backward, over views of whole parameters.
//!
//! A family describes itself as data ([`ModelSpec`]) for the planner and computes its units when told to.
//! Must not know: ranks, slices, schedules, where parameters come from.

pub mod block;
pub mod embedding;
pub mod gpt2;
pub mod head;
pub mod init;
#[cfg(test)]
mod tests;

use crate::backend::{Buf, Device, View, ViewMut};
use crate::params::{ModelSpec, UnitId, UnitRole};

/// Sizes of one micro-batch of a GPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Sequences (B).
    pub b: usize,
    /// Tokens per sequence (T).
    pub t: usize,
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

/// A model for one micro-batch shape.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// Its sizes.
    pub dims: Dims,
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
    /// Runs the forward of an embedding or block.
    pub fn forward<D: Device>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: ForwardIo<'_>) {
        match self.spec.units[unit].role {
            UnitRole::Embedding => embedding::forward(dev, &self.dims, params, io),
            UnitRole::Block => block::forward(dev, &self.dims, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        }
    }

    /// Runs the backward of an embedding or block.
    pub fn backward<D: Device>(&self, dev: &D, unit: UnitId, params: &[View<'_>], io: BackwardIo<'_>) {
        match self.spec.units[unit].role {
            UnitRole::Embedding => embedding::backward(dev, &self.dims, io),
            UnitRole::Block => block::backward(dev, &self.dims, params, io),
            UnitRole::Head => panic!("the head is visited for its loss"),
        }
    }

    /// Runs the head: losses, and in training its backward.
    pub fn loss<D: Device>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        head::loss(dev, &self.dims, params, io);
    }
}
