//! The linear layer as products of cuBLASLt: bias, GELU and its derivative are computed with the product
//! where the library does it.
//!
//! Row-major matrices are the transposes of column-major ones, so operands change places: `out = inp *
//! weight^T` is computed as `out^T = weight * inp^T`. Both operands of a product have one type: f32 gradients
//! of logits are rounded to bf16 before they meet bf16 weights or activations. Work is `[workspace of the
//! library | rounded operand | f32 result]`.

use super::bias;
use super::cublaslt::{Epilogue, Operands, Product, WORKSPACE_BYTES};
use crate::backend::cuda::CudaDevice;
use crate::backend::ops::{LinearShape, Ops};
use crate::backend::{Queue, View, ViewMut};
use crate::dtype::DType;

/// The library's part of a work buffer, in f32 elements.
const WORKSPACE_NUMEL: usize = WORKSPACE_BYTES / 4;

/// Rows of the auxiliary matrix of an epilogue must be a multiple of this, in elements.
const AUX_ALIGN: usize = 8;

/// f32 elements that hold `numel` elements of bf16, on cache lines.
fn rounded_numel(numel: usize) -> usize {
    numel.div_ceil(2).next_multiple_of(16)
}

/// Of a backward for weights: column sums need scratch, too, before the product.
fn workspace_numel(shape: LinearShape) -> usize {
    WORKSPACE_NUMEL.max(bias::work_numel(shape.rows, shape.n_out).next_multiple_of(16))
}

/// Scratch of [`forward`].
pub fn forward_work_numel(_shape: LinearShape, out: DType, inp: DType, weight: DType) -> usize {
    assert_eq!(inp, weight, "activations and weights have one type");
    assert!(out == inp || out == DType::F32, "no product of {} to {}", inp.name(), out.name());
    WORKSPACE_NUMEL
}

/// Scratch of [`backward_input`].
pub fn backward_input_work_numel(shape: LinearShape, dinp: DType, dout: DType, weight: DType) -> usize {
    assert!(dinp == weight, "gradients of activations have the type of weights");
    WORKSPACE_NUMEL + if dout == weight { 0 } else { rounded_numel(shape.rows * shape.n_out) }
}

/// Scratch of [`backward_weight`].
pub fn backward_weight_work_numel(shape: LinearShape, dweight: DType, dout: DType, inp: DType) -> usize {
    let rounded = if dout == inp { 0 } else { rounded_numel(shape.rows * shape.n_out) };
    let result = if has_product(inp, dweight) { 0 } else { shape.n_out * shape.n_in };
    workspace_numel(shape) + rounded + result
}

/// Whether the library multiplies operands of type `inp` to a result of type `out`.
fn has_product(inp: DType, out: DType) -> bool {
    inp == out || out == DType::F32
}

/// `out = inp * weight^T + bias`. Overwrites `out`.
pub fn forward(
    device: &CudaDevice,
    out: ViewMut<'_>,
    inp: View<'_>,
    weight: View<'_>,
    bias: Option<View<'_>>,
    workspace: ViewMut<'_>,
    shape: LinearShape,
) {
    let epilogue = if bias.is_some() { Epilogue::Bias } else { Epilogue::None };
    let product = forward_product(shape, epilogue);
    multiply(device, product, Operands { a: weight, b: inp, out, bias, aux: None, workspace });
}

/// On the compute queue.
fn multiply(device: &CudaDevice, product: Product, operands: Operands<'_>) {
    device.cublaslt.multiply(device.streams.raw(Queue::Compute), product, operands);
}

fn forward_product(shape: LinearShape, epilogue: Epilogue) -> Product {
    let LinearShape { rows, n_in, n_out } = shape;
    Product { m: n_out, n: rows, k: n_in, transpose_a: true, transpose_b: false, accumulate: false, epilogue }
}

/// Whether GELU is computed with the product.
fn fuses_gelu(n: usize, dtype: DType) -> bool {
    dtype == DType::Bf16 && n.is_multiple_of(AUX_ALIGN)
}

/// `pre = inp * weight^T + bias`, `out = gelu(pre)`. Overwrites both. With the product, GELU sees the sum
/// before it is rounded.
#[allow(clippy::too_many_arguments)]
pub fn gelu_forward(
    device: &CudaDevice,
    out: ViewMut<'_>,
    mut pre: ViewMut<'_>,
    inp: View<'_>,
    weight: View<'_>,
    bias: View<'_>,
    workspace: ViewMut<'_>,
    shape: LinearShape,
) {
    if !fuses_gelu(shape.n_out, out.dtype()) {
        forward(device, pre.reborrow(), inp, weight, Some(bias), workspace, shape);
        return device.gelu_forward(out, pre.as_view());
    }
    let aux = Some(pre.addr());
    let product = forward_product(shape, Epilogue::BiasGelu);
    multiply(device, product, Operands { a: weight, b: inp, out, bias: Some(bias), aux, workspace });
}

/// `dinp = dout * weight`. Overwrites `dinp`.
pub fn backward_input(
    device: &CudaDevice,
    dinp: ViewMut<'_>,
    dout: View<'_>,
    weight: View<'_>,
    work: ViewMut<'_>,
    shape: LinearShape,
) {
    let (workspace, rest) = work.split_at(WORKSPACE_NUMEL);
    let (dout, _) = of_type(device, weight.dtype(), dout, rest);
    let product = backward_product(shape, Epilogue::None);
    let operands = Operands { a: weight, b: dout, out: dinp, bias: None, aux: None, workspace };
    multiply(device, product, operands);
}

fn backward_product(shape: LinearShape, epilogue: Epilogue) -> Product {
    let LinearShape { rows, n_in, n_out } = shape;
    Product {
        m: n_in,
        n: rows,
        k: n_out,
        transpose_a: false,
        transpose_b: false,
        accumulate: false,
        epilogue,
    }
}

/// `dinp = (dout * weight) * GELU'(pre)`, where `gelu(pre)` was the input of the layer. Overwrites `dinp`.
pub fn gelu_backward_input(
    device: &CudaDevice,
    mut dinp: ViewMut<'_>,
    dout: View<'_>,
    weight: View<'_>,
    pre: View<'_>,
    work: ViewMut<'_>,
    shape: LinearShape,
) {
    if !fuses_gelu(shape.n_in, dinp.dtype()) || dout.dtype() != weight.dtype() {
        backward_input(device, dinp.reborrow(), dout, weight, work, shape);
        return device.gelu_backward(dinp, pre);
    }
    let product = backward_product(shape, Epilogue::GeluBackward);
    let aux = Some(pre.addr());
    let operands = Operands { a: weight, b: dout, out: dinp, bias: None, aux, workspace: work };
    multiply(device, product, operands);
}

/// `dweight (+)= dout^T * inp`, `dbias = column sums of dout`.
#[allow(clippy::too_many_arguments)]
pub fn backward_weight(
    device: &CudaDevice,
    mut dweight: ViewMut<'_>,
    dbias: Option<ViewMut<'_>>,
    dout: View<'_>,
    inp: View<'_>,
    work: ViewMut<'_>,
    shape: LinearShape,
    accumulate: bool,
) {
    let LinearShape { rows, n_in, n_out } = shape;
    let (mut workspace, rest) = work.split_at(workspace_numel(shape));
    if let Some(dbias) = dbias {
        bias::backward(device, dbias, dout, workspace.reborrow(), rows, n_out);
    }
    let (dout, rest) = of_type(device, inp.dtype(), dout, rest);
    let epilogue = Epilogue::None;
    let product =
        Product { m: n_in, n: n_out, k: rows, transpose_a: false, transpose_b: true, accumulate, epilogue };
    if has_product(inp.dtype(), dweight.dtype()) {
        let operands = Operands { a: inp, b: dout, out: dweight, bias: None, aux: None, workspace };
        return multiply(device, product, operands);
    }
    // f32 operands, and a gradient that travels in bf16.
    let mut result = rest.range(0..n_out * n_in);
    if accumulate {
        device.cast(result.reborrow(), dweight.as_view());
    }
    let operands = Operands { a: inp, b: dout, out: result.reborrow(), bias: None, aux: None, workspace };
    multiply(device, product, operands);
    device.cast(dweight.reborrow(), result.as_view());
}

/// `inp` in a type, rounded into the beginning of `work` where it is of another one; and the rest of `work`.
fn of_type<'a>(
    device: &CudaDevice,
    dtype: DType,
    inp: View<'a>,
    work: ViewMut<'a>,
) -> (View<'a>, ViewMut<'a>) {
    if inp.dtype() == dtype {
        return (inp, work);
    }
    assert_eq!(dtype, DType::Bf16, "only gradients of logits are of another type");
    let (rounded, rest) = work.split_at(rounded_numel(inp.numel()));
    let mut rounded = rounded.reinterpret(dtype).range(0..inp.numel());
    device.cast(rounded.reborrow(), inp);
    (rounded.into_view(), rest)
}
