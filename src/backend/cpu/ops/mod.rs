//! The kernels: one file per family, on slices; here they are given their slices.

mod adamw;
mod attention;
mod cross_entropy;
mod elementwise;
mod embedding;
mod layer_norm;
mod linear;
mod reduce;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod test_support;

use super::CpuDevice;
use super::host::{f32s, f32s_mut, u32s};
use crate::backend::buffer::{View, ViewMut};
use crate::backend::ops::{AdamwStep, AttentionShape, LinearShape, Ops};
use crate::exact_sum::ExactSum;

impl Ops for CpuDevice {
    fn embedding_forward(&self, out: ViewMut<'_>, tokens: View<'_>, wte: View<'_>, wpe: View<'_>, t: usize) {
        embedding::forward(self, f32s_mut(out), u32s(tokens), f32s(wte), f32s(wpe), t);
    }

    fn embedding_backward(&self, dwte: ViewMut<'_>, dwpe: ViewMut<'_>, dout: View<'_>, tokens: View<'_>, t: usize) {
        embedding::backward(self, f32s_mut(dwte), f32s_mut(dwpe), f32s(dout), u32s(tokens), t);
    }

    fn layer_norm_forward(
        &self,
        out: ViewMut<'_>,
        mean: ViewMut<'_>,
        rstd: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        bias: View<'_>,
    ) {
        layer_norm::forward(self, f32s_mut(out), f32s_mut(mean), f32s_mut(rstd), f32s(inp), f32s(weight), f32s(bias));
    }

    fn layer_norm_backward(
        &self,
        dinp: ViewMut<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
        dout: View<'_>,
        inp: View<'_>,
        weight: View<'_>,
        mean: View<'_>,
        rstd: View<'_>,
        work: ViewMut<'_>,
    ) {
        let (dinp, dweight, dbias, work) = (f32s_mut(dinp), f32s_mut(dweight), f32s_mut(dbias), f32s_mut(work));
        let (dout, inp, weight, mean, rstd) = (f32s(dout), f32s(inp), f32s(weight), f32s(mean), f32s(rstd));
        layer_norm::backward(self, dinp, dweight, dbias, dout, inp, weight, mean, rstd, work);
    }

    fn layer_norm_work_numel(rows: usize, c: usize) -> usize {
        layer_norm::work_numel(rows, c)
    }

    fn linear_forward(
        &self,
        out: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        shape: LinearShape,
    ) {
        linear::forward(self, f32s_mut(out), f32s(inp), f32s(weight), bias.map(f32s), shape);
    }

    fn linear_backward_input(&self, dinp: ViewMut<'_>, dout: View<'_>, weight: View<'_>, shape: LinearShape) {
        linear::backward_input(self, f32s_mut(dinp), f32s(dout), f32s(weight), shape);
    }

    fn linear_backward_weight(
        &self,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
        dout: View<'_>,
        inp: View<'_>,
        shape: LinearShape,
        accumulate: bool,
    ) {
        let dbias = dbias.map(f32s_mut);
        linear::backward_weight(self, f32s_mut(dweight), dbias, f32s(dout), f32s(inp), shape, accumulate);
    }

    fn gelu_forward(&self, out: ViewMut<'_>, inp: View<'_>) {
        elementwise::gelu_forward(self, f32s_mut(out), f32s(inp));
    }

    fn gelu_backward(&self, dout_to_dinp: ViewMut<'_>, inp: View<'_>) {
        elementwise::gelu_backward(self, f32s_mut(dout_to_dinp), f32s(inp));
    }

    fn add(&self, out: ViewMut<'_>, a: View<'_>, b: View<'_>) {
        elementwise::add(self, f32s_mut(out), f32s(a), f32s(b));
    }

    fn cast(&self, out: ViewMut<'_>, inp: View<'_>) {
        f32s_mut(out).copy_from_slice(f32s(inp));
    }

    fn accumulate(&self, out: ViewMut<'_>, inp: View<'_>) {
        f32s_mut(out).iter_mut().zip(f32s(inp)).for_each(|(o, &i)| *o += i);
    }

    fn attention_forward(
        &self,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        qkv: View<'_>,
        work: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        attention::forward(self, f32s_mut(out), f32s_mut(lse), f32s(qkv), f32s_mut(work), shape);
    }

    fn attention_backward(
        &self,
        dqkv: ViewMut<'_>,
        dout: View<'_>,
        qkv: View<'_>,
        out: View<'_>,
        lse: View<'_>,
        work: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        attention::backward(self, f32s_mut(dqkv), f32s(dout), f32s(qkv), f32s(out), f32s(lse), f32s_mut(work), shape);
    }

    fn attention_forward_work_numel(shape: AttentionShape) -> usize {
        attention::forward_work_numel(shape)
    }

    fn attention_backward_work_numel(shape: AttentionShape) -> usize {
        attention::backward_work_numel(shape)
    }

    fn cross_entropy(&self, logits: ViewMut<'_>, losses: ViewMut<'_>, targets: View<'_>, dlogits_scale: Option<f32>) {
        cross_entropy::cross_entropy(self, f32s_mut(logits), f32s_mut(losses), u32s(targets), dlogits_scale);
    }

    fn sum(&self, inp: View<'_>) -> f64 {
        reduce::sum(f32s(inp))
    }

    fn sum_of_squares(&self, inp: View<'_>) -> ExactSum {
        reduce::sum_of_squares(self, f32s(inp))
    }

    fn adamw(&self, param: ViewMut<'_>, m: ViewMut<'_>, v: ViewMut<'_>, grad: View<'_>, step: &AdamwStep) {
        adamw::adamw(self, f32s_mut(param), f32s_mut(m), f32s_mut(v), f32s(grad), step);
    }
}
