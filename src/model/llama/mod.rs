//! Llama as data: parameters, units and initial values (arXiv:2302.13971, arXiv:2407.21783). Projections that
//! read the same rows are one parameter, `qkv_proj` and `gate_up_proj`, so that one product does each.
//!
//! Residual projections begin scaled by 1/sqrt(2 L), as this program's GPT-2 has them.

pub mod block;
pub mod shape;
mod transformers;

use shape::Shape;

use super::family::Family;
use super::unit::{SpecBuilder, Visits};
use super::visit::{BackwardIo, Dims, ForwardIo, LossIo};
use super::{rms_head, token_embedding};
use crate::backend::ops::AttentionShape;
use crate::backend::{Ops, View};
use crate::config::ModelSection;
use crate::model::transformers::{Tensor, Theirs, of_gated};
use crate::params::{ModelSpec, ParamId, ParamSpec, Piece, Precision, UnitRole};
use serde_json::Value;

/// A Llama.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama {
    dims: Dims,
    shape: Shape,
    embedding: token_embedding::Embedding,
    block: block::Block,
    head: rms_head::Head,
}

impl Family for Llama {
    fn new(model: &ModelSection, dims: Dims) -> Self {
        let shape = Shape::of_deck(model);
        Llama {
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
        let Llama { dims, block, .. } = self;
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

#[cfg(test)]
mod tests {
    use crate::backend::cpu::CpuDevice;
    use crate::config::Deck;
    use crate::model::Model;

    fn preset(name: &str) -> Model {
        let deck = format!("run.dir = 'r'\ndata.train = ['a.u32']\ntrain.steps = 1\nmodel.preset = '{name}'");
        Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap())
    }

    #[test]
    fn presets_have_the_published_numbers_of_parameters() {
        // Meta's model cards say 8B and 1.23B; the digits are those of the published weights.
        assert_eq!(preset("llama3-8b").spec.numel(), 8_030_261_248);
        assert_eq!(preset("llama-1b").spec.numel(), 1_235_814_400);
        for (name, numel) in [
            ("llama-3b", 3_212_749_824),
            ("llama2-7b", 6_738_415_616),
            ("llama2-13b", 13_015_864_320),
            ("llama2-70b", 68_976_648_192),
            ("llama3-70b", 70_553_706_496),
        ] {
            assert_eq!(preset(name).spec.numel(), numel, "{name}");
        }
        assert_eq!(preset("llama-tiny").spec.numel(), 853_120);
    }

    #[test]
    fn only_a_tied_embedding_belongs_to_two_units() {
        for (name, n_tied) in [("llama3-8b", 0), ("llama-1b", 1)] {
            let spec = preset(name).spec;
            let tied: Vec<usize> = (0..spec.params.len()).filter(|&p| spec.users()[p].len() == 2).collect();
            assert!(spec.users().iter().all(|users| !users.is_empty()));
            assert_eq!((tied.len(), spec.aliases.len()), (n_tied, n_tied), "{name}");
            // The head's matrix is summed over chunks of rows either way.
            assert!(spec.is_summed(*spec.units.last().unwrap().params.last().unwrap()), "{name}");
        }
    }

    #[test]
    fn flops_count_every_product_once() {
        // Llama 3 8B at 8192 tokens: 7.5e9 weights in products, and 12 * 32 * 8192 * 4096 of attention.
        let (spec, weights) = (preset("llama3-8b").spec, 8_030_261_248u64 - 128_256 * 4096 - 65 * 4096);
        assert_eq!(spec.flops_per_token, 6.0 * weights as f64 + 12.0 * 32.0 * 8192.0 * 4096.0);
    }
}
