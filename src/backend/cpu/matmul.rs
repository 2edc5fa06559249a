//! Matrix products by crate `gemm`, through strides: nothing is copied or transposed.
//!
//! [Note: k chunks] `gemm` splits the inner dimension by the size of the L1 cache once it is longer than 512, and
//! the split decides how sums round. It is split here instead, by shape alone: chunks of at most 512, equal but for
//! the last. The number of threads only decides who computes an element, never how.
//!
//! Must not know: views, operations.

use super::host::Shared;
use gemm::Parallelism;
use std::marker::PhantomData;

/// Longest chunk of the inner dimension: up to here `gemm` itself does not split it.
const K_CHUNK: usize = 512;

/// A matrix to read: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// Rows of `cols` consecutive elements, `row_stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(
            cols <= row_stride && span(rows, cols, row_stride) <= data.len(),
            "{rows} x {cols}, stride {row_stride}, in {} elements",
            data.len()
        );
        Mat { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transpose, by exchanging strides.
    pub fn t(self) -> Self {
        Mat { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A matrix to write, with rows of consecutive elements.
pub struct MatMut<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: a MatMut is an exclusive borrow of its elements, like the `&mut [f32]` it is made of.
unsafe impl Send for MatMut<'_> {}

impl<'a> MatMut<'a> {
    /// Rows of `cols` elements one after the other.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "{rows} x {cols}");
        MatMut { ptr: data.as_mut_ptr(), rows, cols, row_stride: cols, life: PhantomData }
    }

    /// Rows of `cols` elements, `row_stride` apart, the first at element `start` of `data`.
    ///
    /// # Safety
    /// While the result lives, none of its elements may be used in another way.
    pub unsafe fn strided(data: &Shared<'a>, start: usize, rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(cols <= row_stride, "{cols} columns, stride {row_stride}");
        MatMut { ptr: data.ptr(start, span(rows, cols, row_stride)), rows, cols, row_stride, life: PhantomData }
    }
}

/// Elements from the first to the last of a matrix.
fn span(rows: usize, cols: usize, row_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + cols }
}

/// `dst = scale * lhs * rhs`, or `dst += ...` where `accumulate`.
pub fn matmul(dst: MatMut<'_>, accumulate: bool, lhs: Mat<'_>, rhs: Mat<'_>, scale: f32, parallelism: Parallelism) {
    assert_eq!((lhs.rows, lhs.cols, rhs.cols), (dst.rows, rhs.rows, dst.cols), "shapes of a matrix product");
    let k = lhs.cols;
    // See [Note: k chunks].
    let chunk = k.div_ceil(k.div_ceil(K_CHUNK).max(1)).max(1);
    let mut start = 0;
    loop {
        let n = chunk.min(k - start);
        // SAFETY: `Mat` and `MatMut` checked that every element lies in its slice; the elements of `dst` are exclusive
        // for its lifetime, so it cannot overlap `lhs` or `rhs`; the pointers are used until gemm returns.
        unsafe {
            gemm::gemm(
                dst.rows,
                dst.cols,
                n,
                dst.ptr,
                1,
                dst.row_stride as isize,
                accumulate || start > 0,
                lhs.data.as_ptr().wrapping_add(start * lhs.col_stride),
                lhs.col_stride as isize,
                lhs.row_stride as isize,
                rhs.data.as_ptr().wrapping_add(start * rhs.row_stride),
                rhs.col_stride as isize,
                rhs.row_stride as isize,
                1.0,
                scale,
                false,
                false,
                false,
                parallelism,
            );
        }
        start += n;
        if start >= k {
            break;
        }
    }
}
