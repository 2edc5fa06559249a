//! Matrix products by crate `gemm-f32`, through strides: nothing is copied or transposed.
//!
//! [Note: k chunks] `gemm` splits the inner dimension by the size of the L1 cache once it is longer than 512,
//! and the split decides how sums round. It is split here instead, by shape alone: chunks of at most 512,
//! equal but for the last. The number of threads only decides who computes an element, never how.
//!
//! Must not know: views, operations.

use super::element::Element;
use super::host::Shared;
use crate::dtype::DType;
use crate::telemetry::allocations;
use gemm_common::Parallelism;
use std::marker::PhantomData;
use std::ops::Range;

/// Longest chunk of the inner dimension: up to here `gemm` itself does not split it.
const K_CHUNK: usize = 512;

/// A matrix to read: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub struct Mat<'a, T = f32> {
    pub data: &'a [T],
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a, T: Element> Mat<'a, T> {
    /// Rows of `cols` consecutive elements, `row_stride` apart.
    pub fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(
            cols <= row_stride && span(rows, cols, row_stride) <= data.len(),
            "{rows} x {cols}, stride {row_stride}, in {} elements",
            data.len()
        );
        Mat { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transpose, by exchanging strides.
    pub fn t(self) -> Self {
        Mat {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// The elements of `rows` and `cols`.
    pub fn block(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && cols.end <= self.cols, "block {rows:?} x {cols:?}");
        let start = (rows.start * self.row_stride + cols.start * self.col_stride).min(self.data.len());
        Mat { data: &self.data[start..], rows: rows.len(), cols: cols.len(), ..self }
    }

    /// The matrix itself where it holds f32.
    pub fn as_f32(self) -> Option<Mat<'a>> {
        let Mat { rows, cols, row_stride, col_stride, .. } = self;
        T::as_f32s(self.data).map(|data| Mat { data, rows, cols, row_stride, col_stride })
    }
}

/// A matrix to write, with rows of consecutive elements.
pub struct MatMut<'a, T = f32> {
    ptr: *mut T,
    pub rows: usize,
    pub cols: usize,
    row_stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a MatMut is an exclusive borrow of its elements, like the `&mut [T]` it is made of.
unsafe impl<T: Send> Send for MatMut<'_, T> {}
// SAFETY: through `&MatMut` elements are reached by `part` alone, whose contract covers threads.
unsafe impl<T: Send> Sync for MatMut<'_, T> {}

impl<'a, T: Element> MatMut<'a, T> {
    /// Rows of `cols` elements one after the other.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "{rows} x {cols}");
        MatMut { ptr: data.as_mut_ptr(), rows, cols, row_stride: cols, life: PhantomData }
    }

    /// Rows of `cols` elements, `row_stride` apart, the first at element `start` of `data`.
    ///
    /// # Safety
    /// While the result lives, none of its elements may be used in another way.
    pub unsafe fn strided(
        data: &Shared<'a, T>,
        start: usize,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Self {
        assert!(cols <= row_stride, "{cols} columns, stride {row_stride}");
        MatMut {
            ptr: data.ptr(start, span(rows, cols, row_stride)),
            rows,
            cols,
            row_stride,
            life: PhantomData,
        }
    }

    /// The elements of `rows` and `cols`, for as long as `self` is borrowed.
    pub fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_, T> {
        assert!(rows.end <= self.rows && cols.end <= self.cols, "block {rows:?} x {cols:?}");
        let ptr = self.ptr.wrapping_add(rows.start * self.row_stride + cols.start);
        MatMut { ptr, rows: rows.len(), cols: cols.len(), row_stride: self.row_stride, life: PhantomData }
    }

    /// The elements `cols` of a row.
    ///
    /// # Safety
    /// While the result lives, none of its elements may be used in another way.
    pub unsafe fn part(&self, row: usize, cols: Range<usize>) -> &'a mut [T] {
        assert!(
            row < self.rows && cols.start <= cols.end && cols.end <= self.cols,
            "columns {cols:?} of row {row}"
        );
        // SAFETY: a row of the matrix lies in the borrowed slice; exclusive by the contract above.
        unsafe {
            std::slice::from_raw_parts_mut(self.ptr.add(row * self.row_stride + cols.start), cols.len())
        }
    }

    /// The matrix itself where it holds f32, for as long as `self` is borrowed.
    pub fn as_f32(&mut self) -> Option<MatMut<'_>> {
        let &mut MatMut { ptr, rows, cols, row_stride, .. } = self;
        (T::DTYPE == DType::F32).then(|| MatMut {
            ptr: ptr.cast(),
            rows,
            cols,
            row_stride,
            life: PhantomData,
        })
    }
}

/// What the product is added to.
#[derive(Clone, Copy)]
pub enum Start<'a, B> {
    /// Nothing.
    Zero,
    /// A row, added to each row of the result.
    Row(&'a [B]),
    /// What the result holds.
    Held,
}

/// Elements from the first to the last of a matrix.
fn span(rows: usize, cols: usize, row_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + cols }
}

/// Length of the chunks of an inner dimension `k`; see [Note: k chunks].
pub fn k_chunk(k: usize) -> usize {
    k.div_ceil(k.div_ceil(K_CHUNK).max(1)).max(1)
}

/// `dst = scale * lhs * rhs`, or `dst += ...` where `accumulate`.
pub fn matmul(
    dst: MatMut<'_>,
    accumulate: bool,
    lhs: Mat<'_>,
    rhs: Mat<'_>,
    scale: f32,
    parallelism: Parallelism,
) {
    assert_eq!((lhs.rows, lhs.cols, rhs.cols), (dst.rows, rhs.rows, dst.cols), "shapes of a matrix product");
    let k = lhs.cols;
    let chunk = k_chunk(k);
    let mut start = 0;
    loop {
        let depth = chunk.min(k - start);
        let lhs = (lhs.data.as_ptr().wrapping_add(start * lhs.col_stride), lhs.col_stride, lhs.row_stride);
        let rhs = (rhs.data.as_ptr().wrapping_add(start * rhs.row_stride), rhs.col_stride, rhs.row_stride);
        let dst_strides = (1, dst.row_stride);
        // The kernels want the longer stride along the columns: the transposed product of the transposed
        // operands.
        let is_transposed = dst.row_stride > 1;
        let flipped =
            |(ptr, col_stride, row_stride): (*const f32, usize, usize)| (ptr, row_stride, col_stride);
        let (m, n, lhs, rhs, dst_strides) = match is_transposed {
            true => (dst.cols, dst.rows, flipped(rhs), flipped(lhs), (dst_strides.1, dst_strides.0)),
            false => (dst.rows, dst.cols, lhs, rhs, dst_strides),
        };
        // SAFETY: `Mat` and `MatMut` checked that every element lies in its slice; the elements of `dst` are
        // exclusive for its lifetime, so it cannot overlap `lhs` or `rhs`; the pointers are used until the
        // product returns.
        let product = || unsafe {
            gemm_f32::gemm::f32::get_gemm_fn()(
                m,
                n,
                depth,
                dst.ptr,
                dst_strides.0 as isize,
                dst_strides.1 as isize,
                accumulate || start > 0,
                lhs.0,
                lhs.1 as isize,
                lhs.2 as isize,
                rhs.0,
                rhs.1 as isize,
                rhs.2 as isize,
                1.0,
                scale,
                false,
                false,
                false,
                parallelism,
            );
        };
        // SAFETY: what `gemm` packs in is a local variable of the product or the thread's own. Its tasks lie
        // on stacks, and rayon's list of them, which another thread may free, has room for more than a
        // product makes from the start.
        unsafe { allocations::packing(product) };
        start += depth;
        if start >= k {
            break;
        }
    }
}
