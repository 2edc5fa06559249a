//! A pre-LayerNorm transformer block of GPT-2, forward and backward by hand.
//!
//! ```text
//! sum = x   + attn_proj(attention(c_attn(ln_1(x))))
//! out = sum + mlp_proj(gelu(c_fc(ln_2(sum))))
//! ```

use crate::backend::ops::{AttentionShape, LinearShape};
use crate::backend::{Ops, View};
use crate::dtype::DType;
use crate::model::layers::{
    Attention, LayerNorm, Linear, LinearBranch, LinearGelu, Residual, Rows, Sum, linear_backward_work,
    linear_forward_work,
};
use crate::model::unit::{NORMAL, Unit, residual_init, scratch, unit};
use crate::model::visit::{BackwardIo, Dims, ForwardIo};
use crate::params::Piece;

unit! {
    /// A block, its layers in the order of their parameters and of what they save.
    Block {
        /// LayerNorm before attention.
        ln_1: LayerNorm<Ln1 reads Residual>,
        /// Queries, keys and values.
        c_attn: Linear<CAttn reads Ln1>,
        /// Attention.
        attention: Attention<Attended reads CAttn>,
        /// The projection of attention's output.
        attn_proj: LinearBranch<AttnProj reads Attended>,
        /// The residual stream after attention.
        sum: Sum<AfterAttention>,
        /// LayerNorm before the hidden layer.
        ln_2: LayerNorm<Ln2 reads AfterAttention>,
        /// The hidden layer.
        c_fc: LinearGelu<CFc reads Ln2>,
        /// Its projection.
        mlp_proj: LinearBranch<MlpProj reads CFc>,
    }
}

scratch! {
    /// Scratch of a forward visit.
    ForwardWork<D>(block: &Block, precision) {
        /// (B * T, C): what a branch adds to the residual stream.
        branch: (block.rows() * block.c(), precision.activation),
        /// Scratch of attention.
        attention_work: (
            D::attention_forward_work_numel(block.attention.shape(), precision.activation),
            DType::F32
        ),
        /// Scratch of matrix products.
        linear_work: (linear_forward_work::<D>(&block.products(), precision), DType::F32),
    }
}

scratch! {
    /// Scratch of a backward visit.
    BackwardWork<D>(block: &Block, precision) {
        /// (B * T, 4 C): the gradient of the hidden layer, then of queries, keys and values.
        wide: (block.rows() * 4 * block.c(), precision.activation),
        /// (B * T, C): the gradient of normed rows and of attention's output.
        narrow: (block.rows() * block.c(), precision.activation),
        /// Scratch of attention.
        attention_work: (
            D::attention_backward_work_numel(block.attention.shape(), precision.activation),
            DType::F32
        ),
        /// Scratch of norms.
        layer_norm_work: (block.ln_1.work_numel::<D>(), DType::F32),
        /// Scratch of matrix products.
        linear_work: (linear_backward_work::<D>(&block.products(), precision), DType::F32),
    }
}

impl Block {
    /// A block of these sizes.
    pub fn new(dims: &Dims) -> Self {
        let (rows, c, residual) = (dims.rows(), dims.c, residual_init(dims.n_layer));
        let Dims { b, t, n_heads, d_head, .. } = *dims;
        let attention = AttentionShape { b, t, n_heads, n_kv_heads: n_heads, d_head };
        let linear = |n_in, n_out| LinearShape { rows, n_in, n_out };
        Block {
            ln_1: LayerNorm::new("ln_1", rows, c),
            c_attn: Linear::new("attn.c_attn", linear(c, attention.qkv_row()), NORMAL, true),
            attention: Attention::new(attention),
            attn_proj: LinearBranch::new("attn.c_proj", linear(attention.out_row(), c), residual, true),
            sum: Sum::new(rows * c),
            ln_2: LayerNorm::new("ln_2", rows, c),
            c_fc: LinearGelu::new("mlp.c_fc", linear(c, 4 * c), NORMAL, true),
            mlp_proj: LinearBranch::new("mlp.c_proj", linear(4 * c, c), residual, true),
        }
    }

    fn rows(&self) -> usize {
        self.mlp_proj.shape().rows
    }

    fn c(&self) -> usize {
        self.mlp_proj.shape().n_out
    }

    /// Reads the residual stream and writes it anew.
    pub fn forward<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], mut io: ForwardIo<'_>) {
        let Forward { ln_1, c_attn, attention, attn_proj, sum, ln_2, c_fc, mlp_proj } =
            &mut self.bind_forward(params, io.saved);
        let mut work = ForwardWork::of(io.work);
        let x = Rows::input(io.input.expect("a block has an input"));
        for piece in pieces {
            let linear_work = work.linear_work.reborrow();
            match piece {
                Piece::Enter => ln_1.forward(dev, x),
                Piece::Project => c_attn.forward(dev, ln_1.out(), linear_work),
                Piece::Attend => {
                    attention.forward(dev, c_attn.out(), work.attention_work.reborrow(), io.cached.take());
                }
                Piece::Out => attn_proj.forward(dev, work.branch.reborrow(), attention.out(), linear_work),
                Piece::Middle => ln_2.forward_of_sum(dev, sum, x, work.branch.as_view()),
                Piece::Mlp => {
                    c_fc.forward(dev, ln_2.out(), linear_work);
                    mlp_proj.forward(dev, work.branch.reborrow(), c_fc.out(), work.linear_work.reborrow());
                }
                Piece::Leave => dev.add(io.out.reborrow(), sum.out().view(), work.branch.as_view()),
            }
        }
    }

    /// Turns the gradient of the output into that of the input, in place, and writes the gradient of every
    /// parameter.
    pub fn backward<D: Ops>(&self, dev: &D, pieces: &[Piece], params: &[View<'_>], io: BackwardIo<'_>) {
        let Backward { ln_1, c_attn, attention, attn_proj, sum, ln_2, c_fc, mlp_proj } =
            &mut self.bind_backward(params, io.saved, io.grads);
        let BackwardWork { wide, narrow, attention_work, layer_norm_work, linear_work } =
            &mut BackwardWork::of(io.work);
        let x = Rows::input(io.input.expect("a block has an input"));
        let mut dres = io.dresidual;
        let dqkv = 0..self.c_attn.shape().out_numel();
        for piece in pieces.iter().rev() {
            match piece {
                // Both terms of `out = sum + branch` have the gradient of the output, which is in dres.
                Piece::Leave => {}
                Piece::Mlp => {
                    mlp_proj.backward_weight(dev, dres.as_view(), c_fc.out(), linear_work.reborrow());
                    let mut dc_fc = wide.reborrow();
                    let (dout, work) = (dres.as_view(), linear_work.reborrow());
                    mlp_proj.backward_gelu_input(dev, dc_fc.reborrow(), dout, c_fc, work);
                    c_fc.backward_weight(dev, dc_fc.as_view(), ln_2.out(), linear_work.reborrow());
                    let dln_2_out = narrow.reborrow();
                    c_fc.backward_input(dev, dln_2_out, dc_fc.as_view(), linear_work.reborrow());
                }
                Piece::Middle => {
                    let dln_2_out = narrow.as_view();
                    ln_2.backward_add(dev, dres.reborrow(), dln_2_out, sum.out(), layer_norm_work.reborrow());
                }
                Piece::Out => {
                    attn_proj.backward_weight(dev, dres.as_view(), attention.out(), linear_work.reborrow());
                    let dattended = narrow.reborrow();
                    attn_proj.backward_input(dev, dattended, dres.as_view(), linear_work.reborrow());
                }
                Piece::Attend => {
                    let (dqkv, dattended) = (wide.reborrow().range(dqkv.clone()), narrow.as_view());
                    attention.backward(dev, dqkv, dattended, c_attn.out(), attention_work.reborrow());
                }
                Piece::Project => {
                    let dqkv = wide.as_view().range(dqkv.clone());
                    c_attn.backward_weight(dev, dqkv, ln_1.out(), linear_work.reborrow());
                    let dln_1_out = narrow.reborrow();
                    c_attn.backward_input(dev, dln_1_out, dqkv, linear_work.reborrow());
                }
                Piece::Enter => {
                    let dln_1_out = narrow.as_view();
                    ln_1.backward_add(dev, dres.reborrow(), dln_1_out, x, layer_norm_work.reborrow());
                }
            }
        }
    }
}
