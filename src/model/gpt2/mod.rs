//! GPT-2 as data: parameters, units and initial values (Radford et al. 2019; residual projections scaled by
//! 1/sqrt(2 L)).

pub mod block;
pub mod embedding;
pub mod head;
mod transformers;

use super::family::Family;
use super::unit::{SpecBuilder, Visits};
use super::visit::{BackwardIo, Dims, ForwardIo, LossIo};
use crate::backend::ops::AttentionShape;
use crate::backend::{Ops, View};
use crate::config::ModelSection;
use crate::model::transformers::{Tensor, Theirs};
use crate::params::{ModelSpec, ParamId, ParamSpec, Piece, Precision, UnitRole};
use serde_json::Value;

/// A GPT-2, head tied to the token embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpt2 {
    dims: Dims,
    embedding: embedding::Embedding,
    block: block::Block,
    head: head::Head,
}

impl Family for Gpt2 {
    fn new(_: &ModelSection, dims: Dims) -> Self {
        let (embedding, block, head) =
            (embedding::Embedding::new(&dims), block::Block::new(&dims), head::Head::new(&dims));
        Gpt2 { dims, embedding, block, head }
    }

    fn attention_shape(&self) -> AttentionShape {
        self.block.attention.shape()
    }

    fn spec<D: Ops>(&self, precision: Precision) -> ModelSpec {
        let mut model = SpecBuilder::new(&self.dims, precision);
        let backward_work = embedding::BackwardWork::specs::<D>(&self.dims, precision);
        let visits = Visits { backward_work, ..Visits::default() };
        model.unit("embed", "", UnitRole::Embedding, &self.embedding, visits);
        let visits = Visits {
            pieces: &Piece::OF_BLOCK,
            forward_work: block::ForwardWork::specs::<D>(&self.block, precision),
            backward_work: block::BackwardWork::specs::<D>(&self.block, precision),
        };
        for i in 0..self.dims.n_layer {
            let name = format!("h.{i}");
            model.unit(&name, &format!("{name}."), UnitRole::Block, &self.block, visits.clone());
        }
        let visits =
            Visits { backward_work: head::Work::specs::<D>(&self.dims, precision), ..Visits::default() };
        model.unit("head", "", UnitRole::Head, &self.head, visits);
        model.finish(self.attention_shape().out_row(), Some(("lm_head.weight", "wte.weight")))
    }

    fn embedding<D: Ops>(&self, dev: &D, params: &[View<'_>], io: ForwardIo<'_>) {
        self.embedding.forward(dev, &self.dims, params, io);
    }

    fn embedding_backward<D: Ops>(&self, dev: &D, io: BackwardIo<'_>) {
        self.embedding.backward(dev, &self.dims, io);
    }

    fn block<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: ForwardIo<'_>) {
        self.block.forward(dev, pieces, params, io);
    }

    fn block_backward<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: BackwardIo<'_>) {
        self.block.backward(dev, pieces, params, io);
    }

    fn loss<D: Ops>(&self, dev: &D, params: &[View<'_>], io: LossIo<'_>) {
        self.head.loss(dev, &self.dims, params, io);
    }

    fn transformers_tensors(&self, param: ParamId, ours: &ParamSpec) -> Vec<Tensor> {
        vec![transformers::tensor(param, ours)]
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
    use crate::params::ModelSpec;

    fn spec(sizes: &str) -> ModelSpec {
        let deck = format!("run.dir = 'r'\ndata.train = ['a.u16']\ntrain.steps = 1\n{sizes}");
        Model::of_deck::<CpuDevice>(&Deck::parse(&deck, &[], "a test").unwrap()).spec
    }

    #[test]
    fn gpt2_124m_has_the_published_number_of_parameters() {
        assert_eq!(spec("model.preset = 'gpt2-124m'").numel(), 124_439_808);
    }

    #[test]
    fn every_parameter_belongs_to_a_unit_and_only_wte_to_two() {
        let spec = spec("[model]\nn_layer = 3\nn_head = 2\nd_model = 8\nseq_len = 8\nvocab_size = 11");
        for (p, param) in spec.params.iter().enumerate() {
            let users = spec.units.iter().filter(|u| u.params.contains(&p)).count();
            assert_eq!(users, if param.name == "wte.weight" { 2 } else { 1 }, "{}", param.name);
        }
    }
}
