//! What a family of models is: a trait that each implements in a directory of its own.
//!
//! Must not know: which families there are (`mod.rs` has the list).

use super::transformers::{Tensor, Theirs};
use super::visit::{BackwardIo, Dims, ForwardIo, LossIo};
use crate::backend::ops::AttentionShape;
use crate::backend::{Ops, View};
use crate::config::ModelSection;
use crate::params::{ModelSpec, ParamId, ParamSpec, Piece, Precision};

/// A family of models: what its units are, and what they compute. Its kernels are those of any device.
///
/// Dispatch is static: scratch is asked of a device's type, before there is a device, which no object could
/// do. The one `match` is made by `families!`.
pub trait Family: Sized {
    /// A model of a deck whose sizes of a micro-batch are `dims`.
    fn new(model: &ModelSection, dims: Dims) -> Self;
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
    /// The tensors that parameter number `param` is in `transformers`, whose `model_type` is the family's
    /// name in decks.
    fn transformers_tensors(&self, param: ParamId, ours: &ParamSpec) -> Vec<Tensor>;
    /// config.json for `transformers`, without the element type.
    fn transformers_config(model: &ModelSection) -> serde_json::Value;
    /// Reads a config.json of the family: sizes, and what this program's models do not have.
    fn read_transformers_config(theirs: &mut Theirs<'_>);
}
