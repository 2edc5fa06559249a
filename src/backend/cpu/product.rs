//! Matrix products whose operands are f32 or bf16, each on its own.
//!
//! All f32: one product by crate `gemm`, in place. Otherwise blocks of at most [`BLOCK`] x [`BLOCK`] of the
//! result: where an operand is bf16 they go through [`super::bf16_dot`] if the processor has it, which rounds
//! the other one if it must; everything else is converted to f32 block by block for `gemm`. Either way an
//! element is summed in f32, from its start value over the chunks of [Note: k chunks], and rounded once.
//! Blocks follow from the shape, and scratch is bounded whatever the shape.
//!
//! Must not know: views, operations.

use super::CpuDevice;
use super::bf16_dot;
use super::element::Element;
use super::matmul::{Mat, MatMut, Start, k_chunk, matmul};
use super::simd::{convert, has_bf16_dot};
use crate::dtype::DType;

/// Rows and columns of a block of the result. A converted element serves as many multiplications.
pub const BLOCK: usize = 1024;

/// Lines of one task that converts or fills.
const LINES: usize = 32;

/// Scratch elements of a product (m, k) x (k, n): none where all is f32. The same on every processor.
pub fn work_numel(m: usize, n: usize, k: usize, dst: DType, lhs: DType, rhs: DType) -> usize {
    let if_bf16 = |dtype: DType, numel: usize| if dtype == DType::Bf16 { numel } else { 0 };
    let (m, n, k) = (m.min(BLOCK), n.min(BLOCK), k_chunk(k));
    let converted = if_bf16(lhs, m * k) + if_bf16(rhs, n * k);
    let has_bf16 = [lhs, rhs].contains(&DType::Bf16);
    let packed = if has_bf16 { bf16_dot::packed_numel(m, n, k) } else { 0 };
    if_bf16(dst, m * n) + converted.max(packed)
}

/// `dst = start + lhs * rhs`. Overwrites `dst`, but for [`Start::Held`].
pub fn product<D: Element, L: Element, R: Element, B: Element>(
    device: &CpuDevice,
    mut dst: MatMut<'_, D>,
    start: Start<'_, B>,
    lhs: Mat<'_, L>,
    rhs: Mat<'_, R>,
    work: &mut [f32],
) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    assert_eq!((lhs.rows, rhs.rows, rhs.cols), (m, k, n), "shapes of a matrix product");
    let needed = work_numel(m, n, k, D::DTYPE, L::DTYPE, R::DTYPE);
    assert!(work.len() >= needed, "scratch of {} elements, {needed} needed", work.len());
    if let Start::Row(row) = start {
        assert_eq!(row.len(), n, "elements of the row added to {n} columns");
    }
    if let (Some(dst), Some(lhs), Some(rhs)) = (dst.as_f32(), lhs.as_f32(), rhs.as_f32()) {
        let held = fill(device, &dst, start);
        device.with_parallelism(|parallelism| matmul(dst, held, lhs, rhs, 1.0, parallelism));
        return;
    }
    for cols in blocks(n) {
        let start = match start {
            Start::Row(row) => Start::Row(&row[cols.clone()]),
            other => other,
        };
        for rows in blocks(m) {
            let dst = dst.block(rows.clone(), cols.clone());
            let (lhs, rhs) = (lhs.block(rows, 0..k), rhs.block(0..k, cols.clone()));
            if has_bf16_dot() && [L::DTYPE, R::DTYPE].contains(&DType::Bf16) {
                bf16_dot::block(device, dst, start, lhs, rhs, work);
            } else {
                converted_block(device, dst, start, lhs, rhs, work);
            }
        }
    }
}

fn blocks(n: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..n).step_by(BLOCK).map(move |start| start..n.min(start + BLOCK))
}

/// Writes the start value to f32 sums; true where they are to be added to.
fn fill<B: Element>(device: &CpuDevice, dst: &MatMut<'_>, start: Start<'_, B>) -> bool {
    let row = match start {
        Start::Zero => return false,
        Start::Held => return true,
        Start::Row(row) => row,
    };
    device.for_each_task(dst.rows.div_ceil(LINES), |task| {
        for i in task * LINES..dst.rows.min((task + 1) * LINES) {
            // SAFETY: rows belong to one task each.
            convert(unsafe { dst.part(i, 0..dst.cols) }, row);
        }
    });
    true
}

/// One block by `gemm`, operands converted chunk by chunk.
fn converted_block<D: Element, L: Element, R: Element, B: Element>(
    device: &CpuDevice,
    mut dst: MatMut<'_, D>,
    start: Start<'_, B>,
    lhs: Mat<'_, L>,
    rhs: Mat<'_, R>,
    work: &mut [f32],
) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    let chunk = k_chunk(k);
    let (lhs_work, work) = work.split_at_mut(if L::DTYPE == DType::F32 { 0 } else { m * chunk });
    let (rhs_work, work) = work.split_at_mut(if R::DTYPE == DType::F32 { 0 } else { n * chunk });
    let mut sum = |sums: &mut MatMut<'_>, mut held: bool| {
        for first in (0..k.max(1)).step_by(chunk) {
            let inner = first..k.min(first + chunk);
            let lhs = load(device, lhs.block(0..m, inner.clone()), lhs_work);
            let rhs = load(device, rhs.block(inner, 0..n), rhs_work);
            let sums = sums.block(0..m, 0..n);
            device.with_parallelism(|parallelism| matmul(sums, held, lhs, rhs, 1.0, parallelism));
            held = true;
        }
    };
    if let Some(mut dst) = dst.as_f32() {
        let held = fill(device, &dst, start);
        sum(&mut dst, held);
        return;
    }
    let mut sums = MatMut::new(&mut work[..m * n], m, n);
    let for_each_row = |sums: &MatMut<'_>, task: fn(&mut [D], &mut [f32])| {
        device.for_each_task(m.div_ceil(LINES), |lines| {
            for i in lines * LINES..m.min((lines + 1) * LINES) {
                // SAFETY: rows belong to one task each.
                unsafe { task(dst.part(i, 0..n), sums.part(i, 0..n)) };
            }
        });
    };
    let held = fill(device, &sums, start);
    if let Start::Held = start {
        for_each_row(&sums, |held, sums| convert(sums, held));
    }
    sum(&mut sums, held);
    for_each_row(&sums, |dst, sums| convert(dst, sums));
}

/// The matrix as f32: itself, or converted into `work` with lines of memory kept as they are.
fn load<'a, T: Element>(device: &CpuDevice, mat: Mat<'a, T>, work: &'a mut [f32]) -> Mat<'a> {
    if let Some(mat) = mat.as_f32() {
        return mat;
    }
    let Mat { data, rows, cols, row_stride, col_stride } = mat;
    let by_rows = col_stride == 1;
    let (lines, len, stride) = if by_rows { (rows, cols, row_stride) } else { (cols, rows, col_stride) };
    let mut out = MatMut::new(&mut work[..lines * len], lines, len);
    let shared = out.block(0..lines, 0..len);
    device.for_each_task(lines.div_ceil(LINES), |task| {
        for i in task * LINES..lines.min((task + 1) * LINES) {
            // SAFETY: lines belong to one task each.
            convert(unsafe { shared.part(i, 0..len) }, &data[i * stride..][..len]);
        }
    });
    let mat = Mat::new(&work[..lines * len], lines, len, len);
    if by_rows { mat } else { mat.t() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::ops::test_support::{device, random};
    use half::bf16;

    #[test]
    fn dot_products_of_bf16_and_converted_operands_differ_by_roundings_of_f32_alone() {
        if !has_bf16_dot() {
            return;
        }
        let narrow = |n: usize, seed: u64| -> Vec<bf16> {
            random(n, seed).iter().map(|&x| <bf16 as Element>::store(x)).collect()
        };
        for (m, n, k) in [(1, 1, 1), (12, 32, 512), (13, 33, 513), (100, 70, 1), (25, 31, 1030)] {
            let (lhs, rhs, row) = (narrow(m * k, 1), narrow(n * k, 2), narrow(n, 3));
            let lhs = Mat::new(&lhs, m, k, k);
            let rhs = Mat::new(&rhs, n, k, k).t();
            let work = || vec![f32::NAN; work_numel(m, n, k, DType::F32, DType::Bf16, DType::Bf16)];
            for start in [Start::Zero, Start::Row(&row[..]), Start::Held] {
                let (mut dots, mut converted) = (random(m * n, 4), random(m * n, 4));
                bf16_dot::block(&device(1), MatMut::new(&mut dots, m, n), start, lhs, rhs, &mut work());
                converted_block(&device(1), MatMut::new(&mut converted, m, n), start, lhs, rhs, &mut work());
                for (i, (a, b)) in dots.iter().zip(&converted).enumerate() {
                    // Products of bf16 are exact in f32; each of k additions rounds by 6e-8 of a sum below
                    // sqrt(k).
                    assert!(
                        (a - b).abs() <= 6e-8 * k as f32 + 2e-7,
                        "{m} x {n} x {k}, element {i}: {a} and {b}"
                    );
                }
            }
        }
    }
}
