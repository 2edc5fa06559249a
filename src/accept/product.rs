//! A product of square matrices on this rank's device: what `device` measures and what collectives hide behind.

use super::lab::Lab;
use crate::backend::ops::LinearShape;
use crate::backend::{Backend, Buf, Ops};
use crate::dtype::DType;
use crate::error::Result;

/// Its operands and its result.
pub struct Product {
    shape: LinearShape,
    /// f32, (n, n).
    pub out: Buf,
    /// Of the product's type, (n, n).
    pub inp: Buf,
    /// Its columns in rows, likewise.
    pub weight: Buf,
    work: Buf,
}

impl Product {
    /// `n x n` times `n x n` with operands of `dtype`, all 0; sums and result in f32. Collective.
    pub fn new<B: Backend>(lab: &Lab<'_, B>, n: usize, dtype: DType) -> Result<Self> {
        let shape = LinearShape { rows: n, n_in: n, n_out: n };
        let work_numel = B::Device::linear_forward_work_numel(shape, DType::F32, dtype, dtype);
        let sizes = [(n * n, DType::F32), (n * n, dtype), (n * n, dtype), (work_numel, DType::F32)];
        let Ok([out, inp, weight, work]) = <[Buf; 4]>::try_from(lab.buffers(&sizes)?) else {
            unreachable!("four were asked for")
        };
        Ok(Product { shape, out, inp, weight, work })
    }

    /// Multiplies. Overwrites `out`.
    pub fn multiply<B: Backend>(&mut self, lab: &Lab<'_, B>) {
        let Product { shape, out, inp, weight, work } = self;
        lab.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), *shape);
    }
}
