//! Matrix products of bf16 by the processor's dot product instruction (AVX512_BF16): twice the
//! multiplications of f32 per instruction, sums in f32.
//!
//! An f32 operand (the gradient of the logits) is rounded to bf16 when it is packed. Operands are packed in
//! pairs along the inner dimension: panels of [`ROWS`] rows of the left and [`COLS`] columns of the right
//! one. A task owns a panel of columns; a tile of [`ROWS`] x [`COLS`] sums stays in registers over a chunk of
//! the inner dimension. Panels, tiles and chunks follow from the shape, so the bits do not depend on the
//! threads.
//!
//! The instruction takes subnormal operands and results for zero, which moves a sum by less than the smallest
//! normal f32. It is part of the instruction set that ranks compare: a job either has it everywhere or
//! nowhere.
//!
//! Must not know: views, operations.

use super::CpuDevice;
use super::element::Element;
use super::host::Shared;
use super::matmul::{Mat, MatMut, Start, k_chunk};
use super::simd::{has_bf16_dot, simd};
use crate::dtype::DType;
use std::ops::Range;

/// Rows of a tile.
const ROWS: usize = 12;

/// Columns of a tile: two vectors of 16.
const COLS: usize = 32;

/// A tile of sums.
type Tile = [[f32; COLS]; ROWS];

/// 32-bit words of the packed operands of a block with an inner dimension of one chunk `k`.
pub fn packed_numel(m: usize, n: usize, k: usize) -> usize {
    (m.next_multiple_of(ROWS) + n.next_multiple_of(COLS)) * k.div_ceil(2)
}

/// One block of a product: `dst = start + lhs * rhs`.
///
/// # Panics
/// Where the processor lacks the instruction.
pub fn block<D: Element, L: Element, R: Element, B: Element>(
    device: &CpuDevice,
    mut dst: MatMut<'_, D>,
    start: Start<'_, B>,
    lhs: Mat<'_, L>,
    rhs: Mat<'_, R>,
    work: &mut [f32],
) {
    assert!(has_bf16_dot(), "AVX512_BF16 is missing");
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    let chunk = k_chunk(k);
    let (row_panels, col_panels) = (m.div_ceil(ROWS), n.div_ceil(COLS));
    let (packed, work) = work.split_at_mut(packed_numel(m, n, chunk));
    let (rhs_words, lhs_words) =
        bytemuck::cast_slice_mut::<f32, u32>(packed).split_at_mut(col_panels * COLS * chunk.div_ceil(2));
    // Between two chunks of the inner dimension sums are kept in `dst` where it is f32, else in scratch.
    let in_place = D::DTYPE == DType::F32;
    let sums = Shared::new(&mut work[..if in_place || k <= chunk { 0 } else { m * n }]);
    for first in (0..k.max(1)).step_by(chunk) {
        let inner = first..k.min(first + chunk);
        let pairs = inner.len().div_ceil(2);
        let from = match start {
            _ if first > 0 && in_place => From::Dst,
            _ if first > 0 => From::Sums,
            Start::Zero => From::Zero,
            Start::Row(row) => From::Row(row),
            Start::Held => From::Dst,
        };
        let to_dst = in_place || inner.end == k;
        pack::<COLS, R>(device, rhs.block(inner.clone(), 0..n), rhs_words);
        pack::<ROWS, L>(device, lhs.block(0..m, inner).t(), lhs_words);
        let (rhs_words, lhs_words) = (&*rhs_words, &*lhs_words);
        let dst = dst.block(0..m, 0..n);
        device.for_each_task(col_panels, |col_panel| {
            let cols = col_panel * COLS..n.min((col_panel + 1) * COLS);
            let right = &rhs_words[col_panel * COLS * pairs..][..COLS * pairs];
            let mut tile = [[0.0; COLS]; ROWS];
            for row_panel in 0..row_panels {
                let left = &lhs_words[row_panel * ROWS * pairs..][..ROWS * pairs];
                multiply(&mut tile, left, right);
                let rows = row_panel * ROWS..m.min((row_panel + 1) * ROWS);
                // SAFETY: columns of `dst` and `sums` belong to one task each.
                unsafe { store_tile(&tile, &dst, &sums, rows, cols.clone(), from, to_dst) };
            }
        });
    }
}

/// What a tile is added to.
#[derive(Clone, Copy)]
enum From<'a, B> {
    Zero,
    /// A row, for each row of the result.
    Row(&'a [B]),
    /// What the result holds.
    Dst,
    /// Sums over earlier chunks.
    Sums,
}

simd! {
    /// Adds the tile at `rows` and `cols` to what it starts from and stores it: rounded in `dst` where
    /// `to_dst`, else in `sums`, rows of as many elements.
    ///
    /// # Safety
    /// While this runs no other code uses these elements of `dst` and `sums`.
    unsafe fn store_tile<D: Element, B: Element>(
        tile: &Tile,
        dst: &MatMut<'_, D>,
        sums: &Shared<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        from: From<'_, B>,
        to_dst: bool,
    ) {
        let n = dst.cols;
        for (row, tile) in rows.zip(tile) {
            let mut total = *tile;
            // SAFETY: the caller's promise; one of the two is used at a time.
            let dst = || unsafe { dst.part(row, cols.clone()) };
            // SAFETY: as above.
            let sums = || unsafe { sums.part(row * n + cols.start, cols.len()) };
            match from {
                From::Zero => {}
                From::Row(start) => add(&mut total, &start[cols.clone()]),
                From::Dst => add(&mut total, dst()),
                From::Sums => add(&mut total, sums()),
            }
            if to_dst { round_into(dst(), &total) } else { round_into(sums(), &total) }
        }
    }
}

/// `total += x`, of a full panel as of a part of one.
#[inline(always)]
fn add<T: Element>(total: &mut [f32; COLS], x: &[T]) {
    match <&[T; COLS]>::try_from(x) {
        Ok(x) => (0..COLS).for_each(|i| total[i] += x[i].load()),
        Err(_) => total.iter_mut().zip(x).for_each(|(total, x)| *total += x.load()),
    }
}

/// `out = total`, rounded, of a full panel as of a part of one.
#[inline(always)]
fn round_into<T: Element>(out: &mut [T], total: &[f32; COLS]) {
    match <&mut [T; COLS]>::try_from(&mut *out) {
        Ok(out) => (0..COLS).for_each(|i| out[i] = T::store(total[i])),
        Err(_) => out.iter_mut().zip(total).for_each(|(out, total)| *out = T::store(*total)),
    }
}

/// The bits of the nearest bf16, in the low half.
#[inline(always)]
fn half_word<T: Element>(x: T) -> u32 {
    u32::from(x.to_bf16().to_bits())
}

/// Packs a matrix (k, columns) into panels of `W` columns, one after the other: `words[pair * W + column]`
/// holds elements `2 * pair` (low half) and `2 * pair + 1` of a column. Zeros fill the last pair and the last
/// panel.
fn pack<const W: usize, T: Element>(device: &CpuDevice, mat: Mat<'_, T>, words: &mut [u32]) {
    let pairs = mat.rows.div_ceil(2);
    let words = Shared::new(words);
    device.for_each_task(mat.cols.div_ceil(W), |panel| {
        // SAFETY: panels belong to one task each.
        let words = unsafe { words.part(panel * W * pairs, W * pairs) };
        let cols = panel * W..mat.cols.min((panel + 1) * W);
        let Mat { data, rows, cols, row_stride, col_stride } = mat.block(0..mat.rows, cols);
        if cols < W || !rows.is_multiple_of(2) {
            words.fill(0);
        }
        if col_stride == 1 {
            pack_rows::<W, T>(words, data, rows, cols, row_stride);
        } else {
            pack_columns::<W, T>(words, data, rows, cols, col_stride);
        }
    });
}

simd! {
    /// Packs a panel whose rows are consecutive in memory.
    fn pack_rows<const W: usize, T: Element>(
        words: &mut [u32],
        data: &[T],
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) {
        for (pair, words) in words.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            let even = &data[2 * pair * row_stride..][..cols];
            if 2 * pair + 1 == rows {
                words.iter_mut().zip(even).for_each(|(word, &x)| *word = half_word(x));
                continue;
            }
            let odd = &data[(2 * pair + 1) * row_stride..][..cols];
            if let (Ok(even), Ok(odd)) = (<&[T; W]>::try_from(even), <&[T; W]>::try_from(odd)) {
                (0..W).for_each(|i| words[i] = half_word(even[i]) | half_word(odd[i]) << 16);
                continue;
            }
            for ((word, &x), &y) in words.iter_mut().zip(even).zip(odd) {
                *word = half_word(x) | half_word(y) << 16;
            }
        }
    }
}

simd! {
    /// Packs a panel whose columns are consecutive in memory.
    fn pack_columns<const W: usize, T: Element>(
        words: &mut [u32],
        data: &[T],
        rows: usize,
        cols: usize,
        col_stride: usize,
    ) {
        for column in 0..cols {
            let (pairs, odd) = data[column * col_stride..][..rows].as_chunks::<2>();
            for (word, &[x, y]) in words[column..].iter_mut().step_by(W).zip(pairs) {
                *word = half_word(x) | half_word(y) << 16;
            }
            if let [x] = odd {
                words[pairs.len() * W + column] = half_word(*x);
            }
        }
    }
}

/// Sums over one chunk of the inner dimension. Overwrites `tile`.
fn multiply(tile: &mut Tile, left: &[u32], right: &[u32]) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: `block` has checked that the processor has AVX512_BF16.
        unsafe { multiply_avx512(tile, left, right) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (tile, left, right);
        unreachable!("`block` has checked the processor");
    }
}

/// Plain loops of constant length over plain arrays: everything is unrolled, and the sums stay in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_avx512(tile: &mut Tile, left: &[u32], right: &[u32]) {
    use std::arch::x86_64::*;
    let n_pairs = left.len() / ROWS;
    assert_eq!((left.len(), right.len()), (n_pairs * ROWS, n_pairs * COLS), "words of two panels");
    let (mut left, mut right) = (left.as_ptr(), right.as_ptr());
    let (mut low, mut high) = ([_mm512_setzero_ps(); ROWS], [_mm512_setzero_ps(); ROWS]);
    for _ in 0..n_pairs {
        // SAFETY: within the panels, by the lengths above: `COLS` words are two vectors. Words and pairs of
        // bf16 are the same 512 bits, none of them invalid.
        unsafe {
            let right_low: __m512bh = std::mem::transmute(_mm512_loadu_epi32(right.cast()));
            let right_high: __m512bh = std::mem::transmute(_mm512_loadu_epi32(right.add(16).cast()));
            for row in 0..ROWS {
                let word: __m512bh = std::mem::transmute(_mm512_set1_epi32(*left.add(row) as i32));
                low[row] = _mm512_dpbf16_ps(low[row], word, right_low);
                high[row] = _mm512_dpbf16_ps(high[row], word, right_high);
            }
            (left, right) = (left.add(ROWS), right.add(COLS));
        }
    }
    for row in 0..ROWS {
        // SAFETY: a row has 32 elements: two stores of 16.
        unsafe {
            _mm512_storeu_ps(tile[row].as_mut_ptr(), low[row]);
            _mm512_storeu_ps(tile[row].as_mut_ptr().add(16), high[row]);
        }
    }
}
