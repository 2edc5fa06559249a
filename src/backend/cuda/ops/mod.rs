//! The kernels of the model on the device: each checks types and shapes, decides on a grid and launches. One
//! file for each family of kernels; products of matrices are cuBLASLt's (`linear.rs`).

mod attention;
mod bias;
mod cross_entropy;
pub(super) mod cublaslt;
mod elementwise;
mod embedding;
mod linear;
mod norm;
mod rope;
pub(super) mod tiles;
mod update;

use super::device::CudaDevice;
use crate::backend::ops::{AttentionShape, Columns, LinearShape, Ops, Rotation};
use crate::backend::{Queue, View, ViewMut};
use crate::dtype::DType;
use crate::optimizers::{OptimStates, UpdateStep};

impl Ops for CudaDevice {
    fn embedding_forward(
        &self,
        out: ViewMut<'_>,
        tokens: View<'_>,
        wte: View<'_>,
        wpe: Option<View<'_>>,
        t: usize,
    ) {
        embedding::forward(self, out, tokens, wte, wpe, t);
    }

    fn embedding_backward(
        &self,
        dwte: ViewMut<'_>,
        dwpe: Option<ViewMut<'_>>,
        dout: View<'_>,
        tokens: View<'_>,
        work: ViewMut<'_>,
        t: usize,
    ) {
        embedding::backward(self, dwte, dwpe, dout, tokens, work, t);
    }

    fn embedding_backward_work_numel(rows: usize, _dwte: DType, _dwpe: DType) -> usize {
        rows
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
        norm::layer_norm_forward(self, out, mean, rstd, inp, weight, bias);
    }

    fn add_layer_norm_forward(
        &self,
        sum: ViewMut<'_>,
        out: ViewMut<'_>,
        mean: ViewMut<'_>,
        rstd: ViewMut<'_>,
        a: View<'_>,
        b: View<'_>,
        weight: View<'_>,
        bias: View<'_>,
    ) {
        norm::add_layer_norm_forward(self, sum, out, mean, rstd, a, b, weight, bias);
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
        norm::layer_norm_backward(self, dinp, [dweight, dbias], dout, inp, weight, mean, rstd, work);
    }

    fn layer_norm_work_numel(rows: usize, c: usize) -> usize {
        2 * bias::work_numel(rows, c)
    }

    fn rms_norm_forward(
        &self,
        out: ViewMut<'_>,
        rstd: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        eps: f32,
    ) {
        norm::rms_norm_forward(self, out, rstd, inp, weight, eps);
    }

    fn rms_norm_backward(
        &self,
        dinp: ViewMut<'_>,
        dweight: ViewMut<'_>,
        dout: View<'_>,
        inp: View<'_>,
        weight: View<'_>,
        rstd: View<'_>,
        work: ViewMut<'_>,
    ) {
        norm::rms_norm_backward(self, dinp, dweight, dout, inp, weight, rstd, work);
    }

    fn rms_norm_work_numel(rows: usize, c: usize) -> usize {
        bias::work_numel(rows, c)
    }

    fn rope(&self, qkv: ViewMut<'_>, _work: ViewMut<'_>, shape: AttentionShape, rotation: Rotation) {
        rope::rope(self, qkv, shape, rotation);
    }

    fn rope_work_numel(_shape: AttentionShape) -> usize {
        0
    }

    fn swiglu_forward(&self, out: ViewMut<'_>, gate_up: View<'_>, f: usize) {
        elementwise::swiglu_forward(self, out, gate_up, f);
    }

    fn swiglu_backward(&self, dgate_up: ViewMut<'_>, dout: View<'_>, gate_up: View<'_>, f: usize) {
        elementwise::swiglu_backward(self, dgate_up, dout, gate_up, f);
    }

    fn linear_forward(
        &self,
        out: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        work: ViewMut<'_>,
        shape: LinearShape,
    ) {
        linear::forward(self, out, inp, weight, bias, work, shape);
    }

    fn linear_backward_input(
        &self,
        dinp: ViewMut<'_>,
        dout: View<'_>,
        weight: View<'_>,
        work: ViewMut<'_>,
        shape: LinearShape,
    ) {
        linear::backward_input(self, dinp, dout, weight, work, shape);
    }

    fn linear_backward_weight(
        &self,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
        dout: View<'_>,
        inp: View<'_>,
        work: ViewMut<'_>,
        shape: LinearShape,
        accumulate: bool,
    ) {
        linear::backward_weight(self, dweight, dbias, dout, inp, work, shape, accumulate);
    }

    fn linear_forward_work_numel(shape: LinearShape, out: DType, inp: DType, weight: DType) -> usize {
        linear::forward_work_numel(shape, out, inp, weight)
    }

    fn linear_backward_input_work_numel(
        shape: LinearShape,
        dinp: DType,
        dout: DType,
        weight: DType,
    ) -> usize {
        linear::backward_input_work_numel(shape, dinp, dout, weight)
    }

    fn linear_backward_weight_work_numel(
        shape: LinearShape,
        dweight: DType,
        dout: DType,
        inp: DType,
    ) -> usize {
        linear::backward_weight_work_numel(shape, dweight, dout, inp)
    }

    fn gelu_forward(&self, out: ViewMut<'_>, inp: View<'_>) {
        elementwise::gelu_forward(self, out, inp);
    }

    fn gelu_backward(&self, dout_to_dinp: ViewMut<'_>, inp: View<'_>) {
        elementwise::gelu_backward(self, dout_to_dinp, inp);
    }

    fn linear_gelu_forward(
        &self,
        out: ViewMut<'_>,
        pre: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        bias: View<'_>,
        work: ViewMut<'_>,
        shape: LinearShape,
    ) {
        linear::gelu_forward(self, out, pre, inp, weight, bias, work, shape);
    }

    fn linear_gelu_backward_input(
        &self,
        dinp: ViewMut<'_>,
        dout: View<'_>,
        weight: View<'_>,
        pre: View<'_>,
        work: ViewMut<'_>,
        shape: LinearShape,
    ) {
        linear::gelu_backward_input(self, dinp, dout, weight, pre, work, shape);
    }

    fn fill_bytes(&self, dst: ViewMut<'_>, byte: u8) {
        self.fill_bytes_on(Queue::Compute, dst, byte);
    }

    fn add(&self, out: ViewMut<'_>, a: View<'_>, b: View<'_>) {
        elementwise::add(self, out, a, b);
    }

    fn accumulate(&self, out: ViewMut<'_>, inp: View<'_>) {
        elementwise::accumulate(self, out, inp);
    }

    fn cast(&self, out: ViewMut<'_>, inp: View<'_>) {
        elementwise::cast(self, out, inp);
    }

    fn copy_columns(&self, out: ViewMut<'_>, to: Columns, inp: View<'_>, from: Columns, n: usize) {
        elementwise::copy_columns(self, out, to, inp, from, n);
    }

    fn attention_forward(
        &self,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        qkv: View<'_>,
        _work: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        attention::forward(self, out, lse, qkv, shape);
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
        attention::backward(self, dqkv, dout, qkv, out, lse, work, shape);
    }

    fn attention_forward_work_numel(_shape: AttentionShape, _dtype: DType) -> usize {
        0
    }

    fn attention_backward_work_numel(shape: AttentionShape, _dtype: DType) -> usize {
        attention::backward_work_numel(shape)
    }

    fn cross_entropy(
        &self,
        logits: ViewMut<'_>,
        losses: ViewMut<'_>,
        targets: View<'_>,
        dlogits_scale: Option<f32>,
    ) {
        cross_entropy::cross_entropy(self, logits, losses, targets, dlogits_scale);
    }

    fn update(
        &self,
        master: ViewMut<'_>,
        states: OptimStates<ViewMut<'_>>,
        grad: View<'_>,
        step: &UpdateStep,
        param: Option<ViewMut<'_>>,
    ) {
        update::update(self, master, states, grad, step, param);
    }
}
