//! Qwen3, dense (arXiv:2505.09388): a Llama with RMSNorm on query and key heads, and with a `head_dim` that
//! is independent of `d_model / n_head`.

pub mod block;
#[cfg(test)]
mod tests;
mod transformers;

use super::family::Family;
use super::llama::shape::Shape;
use super::unit::{SpecBuilder, Visits};
use super::visit::{BackwardIo, Dims, ForwardIo, LossIo};
use super::{rms_head, token_embedding};
use crate::backend::ops::AttentionShape;
use crate::backend::{Ops, View};
use crate::config::ModelSection;
use crate::model::transformers::{Tensor, Theirs, of_gated};
use crate::params::{ModelSpec, ParamId, ParamSpec, Piece, Precision, UnitRole};
use serde_json::Value;

/// A Qwen3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Qwen3 {
    dims: Dims,
    shape: Shape,
    embedding: token_embedding::Embedding,
    block: block::Block,
    head: rms_head::Head,
}

impl Family for Qwen3 {
    fn new(model: &ModelSection, dims: Dims) -> Self {
        let shape = Shape::of_deck(model);
        Qwen3 {
            dims,
            shape,
            embedding: token_embedding::Embedding::new(&dims),
            block: block::Block::new(&dims, &shape),
            head: rms_head::Head::new(&dims, shape.norm_eps, shape.tied),
        }
    }

    fn attention_shape(&self) -> AttentionShape {
        self.block.attention.shape()
    }

    fn spec<D: Ops>(&self, precision: Precision) -> ModelSpec {
        let Qwen3 { dims, block, .. } = self;
        let mut model = SpecBuilder::new(dims, precision);
        let sizes = token_embedding::Sizes { rows: dims.rows(), tied: self.shape.tied };
        let backward_work = token_embedding::BackwardWork::specs::<D>(&sizes, precision);
        let visits = Visits { backward_work, ..Visits::default() };
        model.unit("embed", "", UnitRole::Embedding, &self.embedding, visits);
        let visits = Visits {
            pieces: &Piece::OF_BLOCK,
            forward_work: block::ForwardWork::specs::<D>(block, precision),
            backward_work: block::BackwardWork::specs::<D>(block, precision),
        };
        for i in 0..dims.n_layer {
            let name = format!("layers.{i}");
            model.unit(&name, &format!("{name}."), UnitRole::Block, block, visits.clone());
        }
        let visits =
            Visits { backward_work: rms_head::Work::specs::<D>(dims, precision), ..Visits::default() };
        model.unit("head", "", UnitRole::Head, &self.head, visits);
        let alias = self.shape.tied.then_some(("lm_head.weight", "embed_tokens.weight"));
        model.finish(self.attention_shape().out_row(), alias)
    }

    fn embedding<D: Ops>(&self, dev: &D, params: &[View<'_>], io: ForwardIo<'_>) {
        self.embedding.forward(dev, self.dims.t, params, io);
    }

    fn embedding_backward<D: Ops>(&self, dev: &D, io: BackwardIo<'_>) {
        self.embedding.backward(dev, self.dims.t, self.shape.tied, io);
    }

    fn block<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: ForwardIo<'_>) {
        self.block.forward(dev, self.shape.rope_theta, pieces, params, io);
    }

    fn block_backward<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: BackwardIo<'_>) {
        self.block.backward(dev, self.shape.rope_theta, pieces, params, io);
    }

    fn loss<D: Ops>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        self.head.loss(dev, &self.dims, params, io);
    }

    fn transformers_tensors(&self, param: ParamId, ours: &ParamSpec) -> Vec<Tensor> {
        let AttentionShape { n_heads, n_kv_heads, d_head, .. } = self.attention_shape();
        of_gated(param, ours, n_heads * d_head, n_kv_heads * d_head)
    }

    fn transformers_config(model: &ModelSection) -> Value {
        transformers::config(model)
    }

    fn read_transformers_config(theirs: &mut Theirs<'_>) {
        transformers::read_config(theirs);
    }
}
