//! A device that computes nothing: it writes down which kernels it is asked for, with the FLOPs and bytes
//! that their arguments say. What a model's code calls is what the forecast gives a time to.
//!
//! Must not know: models, how fast anything is.

use super::buffer::{Arena, Buf, Space, View, ViewMut};
use super::ops::{AttentionShape, Columns, LinearShape, Ops, Rotation};
use crate::dtype::DType;
use crate::optimizers::{OptimStates, UpdateStep};
use crate::work::{Kernel, Work};
use std::cell::RefCell;

/// Where every buffer begins; nothing is read or written there.
const BASE: u64 = 64;

/// The device.
#[derive(Debug, Default)]
pub struct Counting {
    works: RefCell<Vec<Work>>,
}

impl Counting {
    /// A buffer without memory.
    pub fn buf(numel: usize, dtype: DType) -> Buf {
        let arena = Arena::new(BASE, numel * dtype.bytes(), Space::Host, Box::new(()));
        Buf::new(&arena, 0, numel, dtype)
    }

    /// What was asked for since the last call.
    pub fn take(&self) -> Vec<Work> {
        self.works.take()
    }

    fn note(&self, work: Work) {
        self.works.borrow_mut().push(work);
    }

    /// A kernel that passes over `n_tensors` tensors like `one`.
    fn pass(&self, kernel: Kernel, one: View<'_>, n_tensors: usize) {
        self.note(Work::pass(kernel, one.dtype(), n_tensors * bytes(one)));
    }
}

fn bytes(view: View<'_>) -> usize {
    view.numel() * view.dtype().bytes()
}

impl Ops for Counting {
    fn embedding_forward(&self, out: ViewMut<'_>, _: View<'_>, _: View<'_>, _: Option<View<'_>>, _: usize) {
        self.pass(Kernel::EmbeddingForward, out.as_view(), 2);
    }

    fn embedding_backward(
        &self,
        dwte: ViewMut<'_>,
        dwpe: Option<ViewMut<'_>>,
        dout: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: usize,
    ) {
        let added = bytes(dout) + 2 * dout.numel() * dwte.dtype().bytes();
        let positions = dwpe.map_or(0, |dwpe| bytes(dwpe.as_view()));
        self.note(Work::pass(Kernel::EmbeddingBackward, dout.dtype(), added + positions));
    }

    fn embedding_backward_work_numel(_: usize, _: DType, _: DType) -> usize {
        0
    }

    fn layer_norm_forward(
        &self,
        out: ViewMut<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
    ) {
        self.pass(Kernel::NormForward, out.as_view(), 2);
    }

    fn layer_norm_backward(
        &self,
        dinp: ViewMut<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
    ) {
        self.pass(Kernel::NormBackward, dinp.as_view(), 4);
    }

    fn layer_norm_work_numel(_: usize, _: usize) -> usize {
        0
    }

    fn rms_norm_forward(&self, out: ViewMut<'_>, _: ViewMut<'_>, _: View<'_>, _: View<'_>, _: f32) {
        self.pass(Kernel::NormForward, out.as_view(), 2);
    }

    fn rms_norm_backward(
        &self,
        dinp: ViewMut<'_>,
        _: ViewMut<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
    ) {
        self.pass(Kernel::NormBackward, dinp.as_view(), 4);
    }

    fn rms_norm_work_numel(_: usize, _: usize) -> usize {
        0
    }

    fn rope(&self, qkv: ViewMut<'_>, _: ViewMut<'_>, _: AttentionShape, _: Rotation) {
        self.pass(Kernel::Rope, qkv.as_view(), 2);
    }

    fn rope_work_numel(_: AttentionShape) -> usize {
        0
    }

    fn swiglu_forward(&self, out: ViewMut<'_>, _: View<'_>, _: usize) {
        self.pass(Kernel::ActivationForward, out.as_view(), 3);
    }

    fn swiglu_backward(&self, _: ViewMut<'_>, dout: View<'_>, _: View<'_>, _: usize) {
        self.pass(Kernel::ActivationBackward, dout, 5);
    }

    fn linear_forward(
        &self,
        out: ViewMut<'_>,
        _: View<'_>,
        weight: View<'_>,
        _: Option<View<'_>>,
        _: ViewMut<'_>,
        shape: LinearShape,
    ) {
        self.note(shape.work(Kernel::LinearForward, weight.dtype(), out.dtype().bytes(), false));
    }

    fn linear_backward_input(
        &self,
        _: ViewMut<'_>,
        dout: View<'_>,
        weight: View<'_>,
        _: ViewMut<'_>,
        shape: LinearShape,
    ) {
        self.note(shape.work(Kernel::LinearBackwardInput, weight.dtype(), dout.dtype().bytes(), false));
    }

    fn linear_backward_weight(
        &self,
        _: ViewMut<'_>,
        _: Option<ViewMut<'_>>,
        dout: View<'_>,
        inp: View<'_>,
        _: ViewMut<'_>,
        shape: LinearShape,
        accumulate: bool,
    ) {
        self.note(shape.work(Kernel::LinearBackwardWeight, inp.dtype(), dout.dtype().bytes(), accumulate));
    }

    fn linear_forward_work_numel(_: LinearShape, _: DType, _: DType, _: DType) -> usize {
        0
    }

    fn linear_backward_input_work_numel(_: LinearShape, _: DType, _: DType, _: DType) -> usize {
        0
    }

    fn linear_backward_weight_work_numel(_: LinearShape, _: DType, _: DType, _: DType) -> usize {
        0
    }

    fn gelu_forward(&self, out: ViewMut<'_>, _: View<'_>) {
        self.pass(Kernel::ActivationForward, out.as_view(), 2);
    }

    fn gelu_backward(&self, dout_to_dinp: ViewMut<'_>, _: View<'_>) {
        self.pass(Kernel::ActivationBackward, dout_to_dinp.as_view(), 3);
    }

    fn fill_bytes(&self, dst: ViewMut<'_>, _: u8) {
        self.pass(Kernel::Stream, dst.as_view(), 1);
    }

    fn add(&self, out: ViewMut<'_>, _: View<'_>, _: View<'_>) {
        self.pass(Kernel::Stream, out.as_view(), 3);
    }

    fn accumulate(&self, out: ViewMut<'_>, inp: View<'_>) {
        self.note(Work::pass(Kernel::Stream, out.dtype(), 2 * bytes(out.as_view()) + bytes(inp)));
    }

    fn cast(&self, out: ViewMut<'_>, inp: View<'_>) {
        self.note(Work::pass(Kernel::Stream, out.dtype(), bytes(out.as_view()) + bytes(inp)));
    }

    fn copy_columns(&self, out: ViewMut<'_>, to: Columns, _: View<'_>, _: Columns, n: usize) {
        let numel = out.numel() / to.row.max(1) * n;
        self.note(Work::pass(Kernel::Stream, out.dtype(), 2 * numel * out.dtype().bytes()));
    }

    fn attention_forward(
        &self,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        qkv: View<'_>,
        _: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        self.note(shape.work(Kernel::AttentionForward, qkv.dtype()));
    }

    fn attention_backward(
        &self,
        _: ViewMut<'_>,
        _: View<'_>,
        qkv: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        self.note(shape.work(Kernel::AttentionBackward, qkv.dtype()));
    }

    fn attention_forward_work_numel(_: AttentionShape, _: DType) -> usize {
        0
    }

    fn attention_backward_work_numel(_: AttentionShape, _: DType) -> usize {
        0
    }

    fn cross_entropy(&self, logits: ViewMut<'_>, _: ViewMut<'_>, _: View<'_>, _: Option<f32>) {
        self.pass(Kernel::CrossEntropy, logits.as_view(), 2);
    }

    fn update(
        &self,
        _: ViewMut<'_>,
        _: OptimStates<ViewMut<'_>>,
        _: View<'_>,
        _: &UpdateStep,
        _: Option<ViewMut<'_>>,
    ) {
        panic!("a unit's visit updates no weights");
    }
}
