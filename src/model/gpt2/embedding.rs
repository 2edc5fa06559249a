//! Token and position embedding of GPT-2: the first unit.

use crate::backend::{Ops, View};
use crate::dtype::DType;
use crate::model::layers::Table;
use crate::model::unit::{NORMAL, scratch, unit};
use crate::model::visit::{BackwardIo, Dims, ForwardIo};
use crate::params::SHARED_GRAD;

unit! {
    /// The embedding.
    Embedding {
        /// Tokens, (V, C); the head as well.
        wte: Table<Wte>,
        /// Positions, (T_max, C).
        wpe: Table<Wpe>,
    }
}

scratch! {
    /// Scratch of a backward visit.
    BackwardWork<D>(dims: &Dims, precision) {
        /// Tokens and their rows in the order in which rows are added.
        token_order: (D::embedding_backward_work_numel(dims.rows(), SHARED_GRAD, precision.grad), DType::U32),
    }
}

impl Embedding {
    /// Of these sizes.
    pub fn new(dims: &Dims) -> Self {
        Embedding {
            wte: Table::new("wte", dims.vocab, dims.c, NORMAL),
            wpe: Table::new("wpe", dims.t_max, dims.c, NORMAL),
        }
    }

    /// Writes the residual stream.
    pub fn forward<D: Ops>(&self, dev: &D, dims: &Dims, params: &[View<'_>], io: ForwardIo<'_>) {
        let Forward { wte, wpe } = self.bind_forward(params, io.saved);
        let first = io.cached.map_or(0, |cached| cached.first);
        let positions = wpe.weight().range(first * dims.c..wpe.weight().numel());
        dev.embedding_forward(io.out, io.tokens, wte.weight(), Some(positions), dims.t);
    }

    /// Adds to the gradient of wte (the tied head has written it) and writes that of wpe. Needs no
    /// parameters.
    pub fn backward<D: Ops>(&self, dev: &D, dims: &Dims, io: BackwardIo<'_>) {
        let Grads { wte, wpe } = self.grads(io.grads);
        let BackwardWork { token_order } = BackwardWork::of(io.work);
        dev.embedding_backward(
            wte.weight,
            Some(wpe.weight),
            io.dresidual.as_view(),
            io.tokens,
            token_order,
            dims.t,
        );
    }
}
