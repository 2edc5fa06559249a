//! A product of square matrices on this rank's device: what `device` measures, and what collectives overlap
//! with.

use crate::backend::ops::LinearShape;
use crate::backend::{Backend, Buf, Ops};
use crate::dtype::DType;
use crate::error::Result;
use crate::harness::Cluster;

/// Operands and result.
pub struct SquareProduct {
    shape: LinearShape,
    /// f32, (n, n).
    pub out: Buf,
    /// The first operand, (n, n).
    pub inp: Buf,
    /// The second operand transposed, (n, n).
    pub weight: Buf,
    work: Buf,
}

impl SquareProduct {
    /// Buffers for the product of two `n x n` matrices of `dtype`, all 0; sums and result in f32. Collective.
    pub fn new<B: Backend>(cluster: &Cluster<'_, B>, n: usize, dtype: DType) -> Result<Self> {
        let shape = LinearShape { rows: n, n_in: n, n_out: n };
        let work_numel = B::Device::linear_forward_work_numel(shape, DType::F32, dtype, dtype);
        let sizes = [(n * n, DType::F32), (n * n, dtype), (n * n, dtype), (work_numel, DType::F32)];
        let Ok([out, inp, weight, work]) = <[Buf; 4]>::try_from(cluster.buffers(&sizes)?) else {
            unreachable!("four were asked for")
        };
        Ok(SquareProduct { shape, out, inp, weight, work })
    }

    /// Multiplies. Overwrites `out`.
    pub fn multiply<D: Ops>(&mut self, device: &D) {
        let SquareProduct { shape, out, inp, weight, work } = self;
        device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), *shape);
    }
}
