//! A pre-RMSNorm transformer block of Llama, forward and backward by hand.
//!
//! ```text
//! sum = x   + o_proj(attention(rope(qkv_proj(norm_1(x)))))
//! out = sum + down_proj(swiglu(gate_up_proj(norm_2(sum))))
//! ```

use super::shape::Shape;
use crate::backend::ops::{AttentionShape, LinearShape, Rotation};
use crate::backend::{Ops, View};
use crate::dtype::DType;
use crate::model::layers::{
    Attention, Linear, LinearBranch, Residual, RmsNorm, Rows, Sum, Swiglu, linear_backward_work,
    linear_forward_work,
};
use crate::model::unit::{NORMAL, Unit, residual_init, scratch, unit};
use crate::model::visit::{BackwardIo, Dims, ForwardIo};
use crate::params::Piece;

unit! {
    /// A block, its layers in the order of their parameters and of what they save.
    Block {
        /// RMSNorm before attention.
        norm_1: RmsNorm<Norm1 reads Residual>,
        /// Queries, keys and values; what it saves is rotated.
        qkv: Linear<Qkv reads Norm1>,
        /// Attention.
        attention: Attention<Attended reads Qkv>,
        /// The projection of attention's output.
        o_proj: LinearBranch<OProj reads Attended>,
        /// The residual stream after attention.
        sum: Sum<AfterAttention>,
        /// RMSNorm before the hidden layer.
        norm_2: RmsNorm<Norm2 reads AfterAttention>,
        /// Gate and up projections in one, (B * T, 2 F).
        gate_up: Linear<GateUp reads Norm2>,
        /// Its activation.
        swiglu: Swiglu<Activated reads GateUp>,
        /// Its projection.
        down: LinearBranch<Down reads Activated>,
    }
}

scratch! {
    /// Scratch of a forward visit.
    ForwardWork<D>(block: &Block, precision) {
        /// (B * T, C): what a branch adds to the residual stream.
        branch: (block.rows() * block.c(), precision.activation),
        /// Scratch of RoPE.
        rope_work: (D::rope_work_numel(block.attention.shape()), DType::F32),
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
        /// (B * T, the wider of 2 F and (H + 2 Hkv) * D): the gradient of gate and up, then of queries, keys
        /// and values.
        wide: (
            block.rows() * block.attention.shape().qkv_row().max(block.gate_up.shape().n_out),
            precision.activation
        ),
        /// (B * T, F): the gradient of the activated hidden layer.
        dswiglu: (block.rows() * block.down.shape().n_in, precision.activation),
        /// (B * T, C): the gradient of normed rows, and of attention's output.
        narrow: (block.rows() * block.c(), precision.activation),
        /// Scratch of RoPE.
        rope_work: (D::rope_work_numel(block.attention.shape()), DType::F32),
        /// Scratch of attention.
        attention_work: (
            D::attention_backward_work_numel(block.attention.shape(), precision.activation),
            DType::F32
        ),
        /// Scratch of norms.
        rms_norm_work: (block.norm_1.work_numel::<D>(), DType::F32),
        /// Scratch of matrix products.
        linear_work: (linear_backward_work::<D>(&block.products(), precision), DType::F32),
    }
}

impl Block {
    /// A block of these sizes.
    pub fn new(dims: &Dims, shape: &Shape) -> Self {
        let (rows, c, residual) = (dims.rows(), dims.c, residual_init(dims.n_layer));
        let &Shape { n_kv_heads, d_ff, norm_eps, .. } = shape;
        let Dims { b, t, n_heads, d_head, .. } = *dims;
        let attention = AttentionShape { b, t, n_heads, n_kv_heads, d_head };
        let linear = |n_in, n_out| LinearShape { rows, n_in, n_out };
        Block {
            norm_1: RmsNorm::new("input_layernorm", rows, c, norm_eps),
            qkv: Linear::new("self_attn.qkv_proj", linear(c, attention.qkv_row()), NORMAL, false),
            attention: Attention::new(attention),
            o_proj: LinearBranch::new("self_attn.o_proj", linear(attention.out_row(), c), residual, false),
            sum: Sum::new(rows * c),
            norm_2: RmsNorm::new("post_attention_layernorm", rows, c, norm_eps),
            gate_up: Linear::new("mlp.gate_up_proj", linear(c, 2 * d_ff), NORMAL, false),
            swiglu: Swiglu::new(rows, d_ff),
            down: LinearBranch::new("mlp.down_proj", linear(d_ff, c), residual, false),
        }
    }

    fn rows(&self) -> usize {
        self.down.shape().rows
    }

    fn c(&self) -> usize {
        self.down.shape().n_out
    }

    /// Reads the residual stream and writes it anew; rotary frequencies have the base `theta`.
    pub fn forward<D: Ops>(
        &self,
        dev: &D,
        theta: f32,
        pieces: &[Piece],
        params: &[View<'_>],
        mut io: ForwardIo<'_>,
    ) {
        let Forward { norm_1, qkv, attention, o_proj, sum, norm_2, gate_up, swiglu, down } =
            &mut self.bind_forward(params, io.saved);
        let mut work = ForwardWork::of(io.work);
        let x = Rows::input(io.input.expect("a block has an input"));
        for piece in pieces {
            let linear_work = work.linear_work.reborrow();
            match piece {
                Piece::Enter => norm_1.forward(dev, x),
                Piece::Project => {
                    qkv.forward(dev, norm_1.out(), linear_work);
                    let first = io.cached.as_ref().map_or(0, |cached| cached.first);
                    let rotation = Rotation { first, theta, inverse: false };
                    qkv.rotate(dev, work.rope_work.reborrow(), self.attention.shape(), rotation);
                }
                Piece::Attend => {
                    attention.forward(dev, qkv.out(), work.attention_work.reborrow(), io.cached.take())
                }
                Piece::Out => o_proj.forward(dev, work.branch.reborrow(), attention.out(), linear_work),
                Piece::Middle => {
                    sum.forward(dev, x, work.branch.as_view());
                    norm_2.forward(dev, sum.out());
                }
                Piece::Mlp => {
                    gate_up.forward(dev, norm_2.out(), linear_work);
                    swiglu.forward(dev, gate_up.out());
                    down.forward(dev, work.branch.reborrow(), swiglu.out(), work.linear_work.reborrow());
                }
                Piece::Leave => dev.add(io.out.reborrow(), sum.out().view(), work.branch.as_view()),
            }
        }
    }

    /// Turns the gradient of the output into that of the input, in place, and writes the gradient of every
    /// parameter.
    pub fn backward<D: Ops>(
        &self,
        dev: &D,
        theta: f32,
        pieces: &[Piece],
        params: &[View<'_>],
        io: BackwardIo<'_>,
    ) {
        let Backward { norm_1, qkv, attention, o_proj, sum, norm_2, gate_up, swiglu, down } =
            &mut self.bind_backward(params, io.saved, io.grads);
        let BackwardWork { wide, dswiglu, narrow, rope_work, attention_work, rms_norm_work, linear_work } =
            &mut BackwardWork::of(io.work);
        let x = Rows::input(io.input.expect("a block has an input"));
        let mut dres = io.dresidual;
        let (dgate_up, dqkv) = (0..self.gate_up.shape().out_numel(), 0..self.qkv.shape().out_numel());
        for piece in pieces.iter().rev() {
            match piece {
                // Both terms of `out = sum + branch` have the gradient of the output, which is in dres.
                Piece::Leave => {}
                Piece::Mlp => {
                    down.backward_weight(dev, dres.as_view(), swiglu.out(), linear_work.reborrow());
                    down.backward_input(dev, dswiglu.reborrow(), dres.as_view(), linear_work.reborrow());
                    let mut dgate_up = wide.reborrow().range(dgate_up.clone());
                    swiglu.backward(dev, dgate_up.reborrow(), dswiglu.as_view(), gate_up.out());
                    gate_up.backward_weight(dev, dgate_up.as_view(), norm_2.out(), linear_work.reborrow());
                    let dnorm_2_out = narrow.reborrow();
                    gate_up.backward_input(dev, dnorm_2_out, dgate_up.as_view(), linear_work.reborrow());
                }
                Piece::Middle => {
                    let dnorm_2_out = narrow.as_view();
                    norm_2.backward_add(
                        dev,
                        dres.reborrow(),
                        dnorm_2_out,
                        sum.out(),
                        rms_norm_work.reborrow(),
                    );
                }
                Piece::Out => {
                    o_proj.backward_weight(dev, dres.as_view(), attention.out(), linear_work.reborrow());
                    let dattended = narrow.reborrow();
                    o_proj.backward_input(dev, dattended, dres.as_view(), linear_work.reborrow());
                }
                Piece::Attend => {
                    let (dqkv, dattended) = (wide.reborrow().range(dqkv.clone()), narrow.as_view());
                    attention.backward(dev, dqkv, dattended, qkv.out(), attention_work.reborrow());
                }
                Piece::Project => {
                    let mut dqkv = wide.reborrow().range(dqkv.clone());
                    let shape = self.attention.shape();
                    qkv.rotate_back(dev, dqkv.reborrow(), rope_work.reborrow(), shape, theta);
                    qkv.backward_weight(dev, dqkv.as_view(), norm_1.out(), linear_work.reborrow());
                    let dnorm_1_out = narrow.reborrow();
                    qkv.backward_input(dev, dnorm_1_out, dqkv.as_view(), linear_work.reborrow());
                }
                Piece::Enter => {
                    let dnorm_1_out = narrow.as_view();
                    norm_1.backward_add(dev, dres.reborrow(), dnorm_1_out, x, rms_norm_work.reborrow());
                }
            }
        }
    }
}
