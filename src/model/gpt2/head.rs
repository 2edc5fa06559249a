//! Final LayerNorm, tied head and loss of GPT-2: the last unit. What follows the norm is every family's
//! (`logits.rs`).

use crate::backend::{Ops, View};
use crate::dtype::DType;
use crate::model::layers::{LayerNorm, Residual, Rows, Table};
use crate::model::logits::{self, Projection};
use crate::model::unit::{NORMAL, scratch, unit};
use crate::model::visit::{Dims, LossIo};

unit! {
    /// The head.
    Head {
        /// Final LayerNorm.
        ln_f: LayerNorm<LnF reads Residual>,
        /// The output matrix, (V, C): the token embedding.
        output: Table<Output>,
    }
}

scratch! {
    /// Scratch of the visit, training or not, beside what the norm writes.
    Work<D>(dims: &Dims, precision) {
        /// (chunk_rows, V): a chunk of logits, then their gradients.
        logits: (logits::chunk_rows(dims) * dims.vocab, DType::F32),
        /// (B * T, C): the gradient of the normed rows.
        dnormed: (dims.rows() * dims.c, precision.activation),
        /// Of the norm.
        layer_norm_work: (D::layer_norm_work_numel(dims.rows(), dims.c), DType::F32),
        /// Of products.
        linear_work: (logits::work_numel::<D>(dims, precision), DType::F32),
    }
}

impl Head {
    /// Of these sizes.
    pub fn new(dims: &Dims) -> Self {
        Head {
            ln_f: LayerNorm::new("ln_f", dims.rows(), dims.c),
            output: Table::new("wte", dims.vocab, dims.c, NORMAL),
        }
    }

    /// Writes the loss of each token; in training also every gradient of the head and of its input.
    pub fn loss<D: Ops>(&self, dev: &D, dims: &Dims, params: &[View<'_>], io: LossIo<'_>) {
        let (saved, work) = io.work.split_at_mut(self.n_saved());
        let Work { logits, mut dnormed, layer_norm_work, linear_work } = Work::of(work);
        let (x, mut backward) = (Rows::input(io.input), io.backward);
        let mut head = self.bind_forward(params, saved);
        head.ln_f.forward(dev, x);

        let grad = backward.as_mut().map(|b| (b.scale, self.grads(b.grads).output.weight));
        let normed = head.ln_f.out().view();
        let projection = Projection { normed, logits, dnormed: dnormed.reborrow(), work: linear_work };
        logits::chunks(dev, dims, head.output.weight(), projection, io.targets, io.losses, grad);

        if let Some(mut b) = backward {
            dev.fill_bytes(b.dresidual.reborrow(), 0);
            let mut head = self.bind_backward(params, saved, b.grads);
            head.ln_f.backward_add(dev, b.dresidual, dnormed.as_view(), x, layer_norm_work);
        }
    }
}
