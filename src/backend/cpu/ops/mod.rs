//! The kernels: one file per family, on slices; here they are given their slices.

mod attention;
mod attention_cached;
#[cfg(test)]
mod bf16_tests;
mod cross_entropy;
mod elementwise;
mod embedding;
mod layer_norm;
mod linear;
pub(super) mod reduce;
mod rms_norm;
mod rope;
mod row_sums;
mod swiglu;
#[cfg(test)]
pub(super) mod test_support;
mod update;

use super::CpuDevice;
use super::host::{bytes_mut, elements, elements_mut, f32s, f32s_mut, u32s, u32s_mut};
use super::product;
use crate::backend::buffer::{View, ViewMut};
use crate::backend::ops::{AttentionShape, CachedWork, Columns, LinearShape, Ops, Rotation};
use crate::dtype::DType;
use crate::optimizers::{OptimStates, UpdateStep};
use half::bf16;

/// `typed!([T = dtype, ...] expression)`: the expression with each `T` standing for the element type of that
/// name.
macro_rules! typed {
    ([] $body:expr) => { $body };
    ([$T:ident = $dtype:expr $(, $Ts:ident = $dtypes:expr)*] $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                typed!([$($Ts = $dtypes),*] $body)
            }
            DType::Bf16 => {
                type $T = bf16;
                typed!([$($Ts = $dtypes),*] $body)
            }
            DType::U32 => panic!("a kernel on numbers was given a view of token ids"),
        }
    };
}

impl Ops for CpuDevice {
    fn embedding_forward(
        &self,
        out: ViewMut<'_>,
        tokens: View<'_>,
        wte: View<'_>,
        wpe: Option<View<'_>>,
        t: usize,
    ) {
        typed!([A = out.dtype(), P = wte.dtype()] {
            let (out, wte, wpe) = (elements_mut::<A>(out), elements::<P>(wte), wpe.map(elements::<P>));
            embedding::forward(self, out, u32s(tokens), wte, wpe, t);
        });
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
        let dwpe_dtype = dwpe.as_ref().map_or(dwte.dtype(), |dwpe| dwpe.dtype());
        typed!([E = dwte.dtype(), W = dwpe_dtype, A = dout.dtype()] {
            let (dwte, dwpe) = (elements_mut::<E>(dwte), dwpe.map(elements_mut::<W>));
            let dout = elements::<A>(dout);
            embedding::backward(self, dwte, dwpe, dout, u32s(tokens), u32s_mut(work), t);
        });
    }

    fn embedding_backward_work_numel(rows: usize, dwte: DType, dwpe: DType) -> usize {
        embedding::backward_work_numel(rows, dwte, dwpe)
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
        let (mean, rstd) = (f32s_mut(mean), f32s_mut(rstd));
        typed!([A = out.dtype(), R = inp.dtype(), P = weight.dtype()] {
            let (out, inp) = (elements_mut::<A>(out), elements::<R>(inp));
            layer_norm::forward(self, out, mean, rstd, inp, elements::<P>(weight), elements::<P>(bias));
        });
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
        let (mean, rstd, work) = (f32s(mean), f32s(rstd), f32s_mut(work));
        typed!([R = inp.dtype(), A = dout.dtype(), P = weight.dtype()] {
            let (dinp, dout, inp) = (elements_mut::<R>(dinp), elements::<A>(dout), elements::<R>(inp));
            layer_norm::backward_input(self, dinp, dout, inp, elements::<P>(weight), mean, rstd, work);
        });
        typed!([G = dweight.dtype()] {
            let (dweight, dbias) = (elements_mut::<G>(dweight), elements_mut::<G>(dbias));
            layer_norm::backward_weight(self, dweight, dbias, work, mean.len());
        });
    }

    fn layer_norm_work_numel(rows: usize, c: usize) -> usize {
        layer_norm::work_numel(rows, c)
    }

    fn rms_norm_forward(
        &self,
        out: ViewMut<'_>,
        rstd: ViewMut<'_>,
        inp: View<'_>,
        weight: View<'_>,
        eps: f32,
    ) {
        let rstd = f32s_mut(rstd);
        typed!([A = out.dtype(), R = inp.dtype(), P = weight.dtype()] {
            let (inp, weight) = (elements::<R>(inp), elements::<P>(weight));
            rms_norm::forward(self, elements_mut::<A>(out), rstd, inp, weight, eps);
        });
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
        let (rstd, work) = (f32s(rstd), f32s_mut(work));
        typed!([R = inp.dtype(), A = dout.dtype(), P = weight.dtype()] {
            let (dinp, dout, inp) = (elements_mut::<R>(dinp), elements::<A>(dout), elements::<R>(inp));
            rms_norm::backward_input(self, dinp, dout, inp, elements::<P>(weight), rstd, work);
        });
        typed!([G = dweight.dtype()] {
            rms_norm::backward_weight(self, elements_mut::<G>(dweight), work, rstd.len());
        });
    }

    fn rms_norm_work_numel(rows: usize, c: usize) -> usize {
        rms_norm::work_numel(rows, c)
    }

    fn rope(&self, qkv: ViewMut<'_>, work: ViewMut<'_>, shape: AttentionShape, rotation: Rotation) {
        let work = f32s_mut(work);
        typed!([A = qkv.dtype()] rope::rope(self, elements_mut::<A>(qkv), work, shape, rotation));
    }

    fn rope_work_numel(shape: AttentionShape) -> usize {
        rope::work_numel(shape)
    }

    fn swiglu_forward(&self, out: ViewMut<'_>, gate_up: View<'_>, f: usize) {
        typed!([O = out.dtype(), I = gate_up.dtype()] {
            swiglu::forward(self, elements_mut::<O>(out), elements::<I>(gate_up), f);
        });
    }

    fn swiglu_backward(&self, dgate_up: ViewMut<'_>, dout: View<'_>, gate_up: View<'_>, f: usize) {
        typed!([G = dgate_up.dtype(), O = dout.dtype(), I = gate_up.dtype()] {
            let (dgate_up, dout) = (elements_mut::<G>(dgate_up), elements::<O>(dout));
            swiglu::backward(self, dgate_up, dout, elements::<I>(gate_up), f);
        });
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
        let work = f32s_mut(work);
        typed!([O = out.dtype(), I = inp.dtype(), P = weight.dtype()] {
            let (out, inp) = (elements_mut::<O>(out), elements::<I>(inp));
            linear::forward(self, out, inp, elements::<P>(weight), bias.map(elements::<P>), work, shape);
        });
    }

    fn linear_backward_input(
        &self,
        dinp: ViewMut<'_>,
        dout: View<'_>,
        weight: View<'_>,
        work: ViewMut<'_>,
        shape: LinearShape,
    ) {
        let work = f32s_mut(work);
        typed!([I = dinp.dtype(), O = dout.dtype(), P = weight.dtype()] {
            let (dinp, dout) = (elements_mut::<I>(dinp), elements::<O>(dout));
            linear::backward_input(self, dinp, dout, elements::<P>(weight), work, shape);
        });
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
        if let Some(dbias) = dbias {
            typed!([G = dbias.dtype(), O = dout.dtype()] {
                linear::backward_bias(self, elements_mut::<G>(dbias), elements::<O>(dout), shape);
            });
        }
        let work = f32s_mut(work);
        typed!([G = dweight.dtype(), O = dout.dtype(), I = inp.dtype()] {
            let (dweight, dout, inp) = (elements_mut::<G>(dweight), elements::<O>(dout), elements::<I>(inp));
            linear::backward_weight(self, dweight, dout, inp, work, shape, accumulate);
        });
    }

    fn linear_forward_work_numel(shape: LinearShape, out: DType, inp: DType, weight: DType) -> usize {
        product::work_numel(shape.rows, shape.n_out, shape.n_in, out, inp, weight)
    }

    fn linear_backward_input_work_numel(
        shape: LinearShape,
        dinp: DType,
        dout: DType,
        weight: DType,
    ) -> usize {
        product::work_numel(shape.rows, shape.n_in, shape.n_out, dinp, dout, weight)
    }

    fn linear_backward_weight_work_numel(
        shape: LinearShape,
        dweight: DType,
        dout: DType,
        inp: DType,
    ) -> usize {
        product::work_numel(shape.n_out, shape.n_in, shape.rows, dweight, dout, inp)
    }

    fn gelu_forward(&self, out: ViewMut<'_>, inp: View<'_>) {
        typed!([O = out.dtype(), I = inp.dtype()] {
            elementwise::gelu_forward(self, elements_mut::<O>(out), elements::<I>(inp));
        });
    }

    fn gelu_backward(&self, dout_to_dinp: ViewMut<'_>, inp: View<'_>) {
        typed!([O = dout_to_dinp.dtype(), I = inp.dtype()] {
            elementwise::gelu_backward(self, elements_mut::<O>(dout_to_dinp), elements::<I>(inp));
        });
    }

    fn fill_bytes(&self, dst: ViewMut<'_>, byte: u8) {
        bytes_mut(dst).fill(byte);
    }

    fn add(&self, out: ViewMut<'_>, a: View<'_>, b: View<'_>) {
        typed!([O = out.dtype(), A = a.dtype(), B = b.dtype()] {
            elementwise::add(self, elements_mut::<O>(out), elements::<A>(a), elements::<B>(b));
        });
    }

    fn accumulate(&self, out: ViewMut<'_>, inp: View<'_>) {
        typed!([I = inp.dtype()] elementwise::accumulate(self, f32s_mut(out), elements::<I>(inp)));
    }

    fn cast(&self, out: ViewMut<'_>, inp: View<'_>) {
        typed!([O = out.dtype(), I = inp.dtype()] {
            elementwise::cast(self, elements_mut::<O>(out), elements::<I>(inp));
        });
    }

    fn copy_columns(&self, out: ViewMut<'_>, to: Columns, inp: View<'_>, from: Columns, n: usize) {
        typed!([T = out.dtype()] {
            elementwise::copy_columns(self, elements_mut::<T>(out), to, elements::<T>(inp), from, n);
        });
    }

    fn attention_forward(
        &self,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        qkv: View<'_>,
        work: ViewMut<'_>,
        shape: AttentionShape,
    ) {
        let (lse, work) = (f32s_mut(lse), f32s_mut(work));
        typed!([A = qkv.dtype()] {
            attention::forward(self, elements_mut::<A>(out), lse, elements::<A>(qkv), work, shape);
        });
    }

    fn attention_cached(
        &self,
        out: ViewMut<'_>,
        qkv: View<'_>,
        scratch: CachedWork<'_>,
        shape: AttentionShape,
        n: usize,
    ) {
        let work = f32s_mut(scratch.work);
        typed!([A = qkv.dtype()] {
            attention_cached::forward(self, elements_mut::<A>(out), elements::<A>(qkv), work, shape, n);
        });
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
        let (lse, work) = (f32s(lse), f32s_mut(work));
        typed!([A = qkv.dtype()] {
            let (dqkv, dout, qkv) = (elements_mut::<A>(dqkv), elements::<A>(dout), elements::<A>(qkv));
            attention::backward(self, dqkv, dout, qkv, elements::<A>(out), lse, work, shape);
        });
    }

    fn attention_forward_work_numel(shape: AttentionShape, dtype: DType) -> usize {
        attention::forward_work_numel(shape, dtype)
    }

    fn attention_backward_work_numel(shape: AttentionShape, dtype: DType) -> usize {
        attention::backward_work_numel(shape, dtype)
    }

    fn cross_entropy(
        &self,
        logits: ViewMut<'_>,
        losses: ViewMut<'_>,
        targets: View<'_>,
        dlogits_scale: Option<f32>,
    ) {
        cross_entropy::cross_entropy(self, f32s_mut(logits), f32s_mut(losses), u32s(targets), dlogits_scale);
    }

    fn update(
        &self,
        master: ViewMut<'_>,
        states: OptimStates<ViewMut<'_>>,
        grad: View<'_>,
        step: &UpdateStep,
        param: Option<ViewMut<'_>>,
    ) {
        let (master, param) = (f32s_mut(master), param.map(elements_mut::<bf16>));
        let states = states.map(f32s_mut);
        typed!([G = grad.dtype()] update::update(self, master, states, elements::<G>(grad), step, param));
    }
}
