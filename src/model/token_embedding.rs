//! A token embedding without positions: the first unit of families whose attention rotates.

use crate::backend::{Ops, View};
use crate::dtype::DType;
use crate::model::layers::Table;
use crate::model::unit::{NORMAL, scratch, unit};
use crate::model::visit::{BackwardIo, Dims, ForwardIo};
use crate::params::SHARED_GRAD;

/// Name of the layer.
pub const NAME: &str = "embed_tokens";

unit! {
    /// The embedding.
    Embedding {
        /// Tokens, (V, C); where it is tied the head as well.
        tokens: Table<Tokens>,
    }
}

/// What decides on the scratch of a backward visit.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows (B * T).
    pub rows: usize,
    /// The head is the embedding.
    pub tied: bool,
}

scratch! {
    /// Scratch of a backward visit.
    BackwardWork<D>(sizes: &Sizes, precision) {
        /// Tokens and their rows in the order in which rows are added.
        token_order: (
            {
                let grad = if sizes.tied { SHARED_GRAD } else { precision.grad };
                D::embedding_backward_work_numel(sizes.rows, grad, grad)
            },
            DType::U32
        ),
    }
}

impl Embedding {
    /// Of these sizes.
    pub fn new(dims: &Dims) -> Self {
        Embedding { tokens: Table::new(NAME, dims.vocab, dims.c, NORMAL) }
    }

    /// Writes the residual stream.
    pub fn forward<D: Ops>(&self, dev: &D, t: usize, params: &[View<'_>], io: ForwardIo<'_>) {
        let Forward { tokens } = self.bind_forward(params, io.saved);
        dev.embedding_forward(io.out, io.tokens, tokens.weight(), None, t);
    }

    /// Adds to the gradient of the embedding where the tied head has written it; else overwrites it. Needs no
    /// parameters.
    pub fn backward<D: Ops>(&self, dev: &D, t: usize, tied: bool, io: BackwardIo<'_>) {
        let Grads { mut tokens } = self.grads(io.grads);
        let BackwardWork { token_order } = BackwardWork::of(io.work);
        if !tied {
            dev.fill_bytes(tokens.weight.reborrow(), 0);
        }
        dev.embedding_backward(tokens.weight, None, io.dresidual.as_view(), io.tokens, token_order, t);
    }
}
