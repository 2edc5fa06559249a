//! Causal self-attention over a fused projection, in blocks of query rows. Must not know: views.
//!
//! One block of [`BLOCK`] queries of one head at a time: scores against the keys up to the end of the block
//! (the rest is masked anyway), softmax, values. Only the log-sum-exp of each row is kept; the backward
//! recomputes the probabilities from it. Activations in bf16 are converted head by head and results rounded
//! from complete f32 sums.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::{exp, ln};
use crate::backend::cpu::matmul::{Mat, MatMut, matmul};
use crate::backend::cpu::simd::{convert, dot, map_in_place_and_sum, max, simd};
use crate::backend::ops::AttentionShape;
use crate::dtype::DType;
use gemm_common::Parallelism;

/// Query rows of a block.
const BLOCK: usize = 64;

/// Elements of the scores of one block: (queries, keys).
fn block_numel(shape: AttentionShape) -> usize {
    BLOCK.min(shape.t) * shape.t
}

/// Elements of f32 copies of one head that bf16 activations need: of so many whole sequences and blocks of
/// rows.
fn copies_numel(shape: AttentionShape, dtype: DType, n_whole: usize, n_blocks: usize) -> usize {
    let rows = n_whole * shape.t + n_blocks * BLOCK.min(shape.t);
    if dtype == DType::F32 { 0 } else { rows * shape.d_head }
}

/// Scratch of one task of [`forward`]: the scores of one block; k and v, a block of q and of the output.
fn forward_task_numel(shape: AttentionShape, dtype: DType) -> usize {
    block_numel(shape) + copies_numel(shape, dtype, 2, 2)
}

/// Scratch of one task of [`backward`]: probabilities and their gradients of one block; k, v, dk and dv, a
/// block of q, of dq and of the gradient of the output.
fn backward_task_numel(shape: AttentionShape, dtype: DType) -> usize {
    2 * block_numel(shape) + copies_numel(shape, dtype, 4, 3)
}

/// Scratch elements of [`forward`]: of a task for each sequence and head.
pub fn forward_work_numel(shape: AttentionShape, dtype: DType) -> usize {
    shape.b * shape.n_heads * forward_task_numel(shape, dtype)
}

/// Scratch elements of [`backward`]: of a task for each sequence and kv head.
pub fn backward_work_numel(shape: AttentionShape, dtype: DType) -> usize {
    shape.b * shape.n_kv_heads * backward_task_numel(shape, dtype)
}

/// Takes `numel` elements off the front of a task's scratch.
fn split_off<'a>(work: &mut &'a mut [f32], numel: usize) -> &'a mut [f32] {
    work.split_off_mut(..numel).expect("the scratch of a task holds all its parts")
}

/// Rows of one head as f32: where they lie, or converted into `work`.
fn rows_of<'a, A: Element>(
    data: &'a [A],
    rows: usize,
    d_head: usize,
    stride: usize,
    work: &'a mut [f32],
) -> Mat<'a> {
    let mat = Mat::new(data, rows, d_head, stride);
    if let Some(mat) = mat.as_f32() {
        return mat;
    }
    for (row, work) in work.chunks_exact_mut(d_head).take(rows).enumerate() {
        convert(work, &data[row * stride..][..d_head]);
    }
    Mat::new(work, rows, d_head, d_head)
}

/// The factor of the scores.
fn scale(shape: AttentionShape) -> f32 {
    1.0 / (shape.d_head as f32).sqrt()
}

/// Where a head's rows begin in a row of qkv: query head, and the kv head it uses.
struct Columns {
    q: usize,
    k: usize,
    v: usize,
}

impl Columns {
    fn of(shape: AttentionShape, head: usize) -> Self {
        let kv_head = head / (shape.n_heads / shape.n_kv_heads);
        let k = (shape.n_heads + kv_head) * shape.d_head;
        Columns { q: head * shape.d_head, k, v: k + shape.n_kv_heads * shape.d_head }
    }
}

fn check(shape: AttentionShape) {
    let AttentionShape { n_heads, n_kv_heads, .. } = shape;
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "{n_heads} query heads on {n_kv_heads} kv heads"
    );
}

#[rustfmt::skip]
pub fn forward<A: Element>(
    device: &CpuDevice,
    out: &mut [A],    // (B, T, H * D)
    lse: &mut [f32],  // (B, H, T)
    qkv: &[A],        // (B, T, (H + 2 Hkv) * D)
    work: &mut [f32], // (B, H, task)
    shape: AttentionShape,
) {
    check(shape);
    let AttentionShape { b, t, n_heads, d_head, .. } = shape;
    let (qkv_row, out_row) = (shape.qkv_row(), shape.out_row());
    let lens = (out.len(), lse.len(), qkv.len());
    assert_eq!(lens, (b * t * out_row, b * n_heads * t, b * t * qkv_row), "out, lse and qkv of {shape:?}");
    let task_numel = forward_task_numel(shape, A::DTYPE);
    assert!(work.len() >= b * n_heads * task_numel, "scratch of {} elements for {shape:?}", work.len());
    let (out, lse, work) = (Shared::new(out), Shared::new(lse), Shared::new(work));
    device.for_each_task(b * n_heads, |task| {
        let (sequence, head) = (task / n_heads, task % n_heads);
        let columns = Columns::of(shape, head);
        let qkv = &qkv[sequence * t * qkv_row..][..t * qkv_row];
        // SAFETY: scratch and lse of a (sequence, head) belong to one task.
        let (mut work, lse) = unsafe { (work.part(task * task_numel, task_numel), lse.part(task * t, t)) };
        let scores_work = split_off(&mut work, block_numel(shape));
        let [k_work, v_work] = [(); 2].map(|()| split_off(&mut work, copies_numel(shape, A::DTYPE, 1, 0)));
        let [q_work, out_work] = [(); 2].map(|()| split_off(&mut work, copies_numel(shape, A::DTYPE, 0, 1)));
        let k = rows_of(&qkv[columns.k..], t, d_head, qkv_row, k_work);
        let v = rows_of(&qkv[columns.v..], t, d_head, qkv_row, v_work);
        for start in (0..t).step_by(BLOCK) {
            let end = t.min(start + BLOCK);
            let n = end - start;
            let scores = &mut scores_work[..n * end];
            let q = rows_of(&qkv[start * qkv_row + columns.q..], n, d_head, qkv_row, q_work);
            let (k, v) = (k.block(0..end, 0..d_head), v.block(0..end, 0..d_head));
            matmul(MatMut::new(scores, n, end), false, q, k.t(), scale(shape), Parallelism::None);
            let mut sums = [0.0; BLOCK];
            exp_rows(scores, &mut sums[..n], &mut lse[start..end]);
            let probs = Mat::new(scores, n, end, end);
            let out_start = (sequence * t + start) * out_row + head * d_head;
            // SAFETY: the columns of a head in the rows of a sequence belong to one task.
            let mut out_block = unsafe { MatMut::strided(&out, out_start, n, d_head, out_row) };
            if let Some(out_block) = out_block.as_f32() {
                matmul(out_block, false, probs, v, 1.0, Parallelism::None);
            } else {
                matmul(
                    MatMut::new(&mut out_work[..n * d_head], n, d_head),
                    false,
                    probs,
                    v,
                    1.0,
                    Parallelism::None,
                );
            }
            for (row, &sum) in sums[..n].iter().enumerate() {
                // SAFETY: as above; the matrix product is done.
                let out = unsafe { out.part(out_start + row * out_row, d_head) };
                match A::as_f32s_mut(out) {
                    Some(out) => out.iter_mut().for_each(|x| *x /= sum),
                    None => divide_into(out, &out_work[row * d_head..][..d_head], sum),
                }
            }
        }
    });
}

simd! {
    /// `out = inp / sum`. Overwrites `out`.
    fn divide_into<A: Element>(out: &mut [A], inp: &[f32], sum: f32) {
        for (o, x) in out.iter_mut().zip(inp) {
            *o = A::store(x / sum);
        }
    }
}

simd! {
    /// Scores of the last rows of a causal square to `exp(score - max)`, zero after the diagonal. Overwrites
    /// `sums` and `lse`.
    fn exp_rows(scores: &mut [f32], sums: &mut [f32], lse: &mut [f32]) {
        let n = sums.len();
        let end = scores.len() / n;
        for (i, (row, (sum, lse))) in scores.chunks_exact_mut(end).zip(sums.iter_mut().zip(lse)).enumerate() {
            let (seen, masked) = row.split_at_mut(end - n + i + 1);
            masked.fill(0.0);
            let max = max(seen);
            *sum = map_in_place_and_sum(seen, |x| exp(x - max));
            *lse = max + ln(*sum);
        }
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments)]
pub fn backward<A: Element>(
    device: &CpuDevice,
    dqkv: &mut [A],   // (B, T, (H + 2 Hkv) * D)
    dout: &[A],       // (B, T, H * D)
    qkv: &[A],        // (B, T, (H + 2 Hkv) * D)
    out: &[A],        // (B, T, H * D)
    lse: &[f32],      // (B, H, T)
    work: &mut [f32], // (B, Hkv, task)
    shape: AttentionShape,
) {
    check(shape);
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    let (qkv_row, out_row) = (shape.qkv_row(), shape.out_row());
    let lens = (dqkv.len(), dout.len(), qkv.len(), out.len(), lse.len());
    let want = (b * t * qkv_row, b * t * out_row, b * t * qkv_row, b * t * out_row, b * n_heads * t);
    assert_eq!(lens, want, "dqkv, dout, qkv, out and lse of {shape:?}");
    let task_numel = backward_task_numel(shape, A::DTYPE);
    assert!(work.len() >= b * n_kv_heads * task_numel, "scratch of {} elements for {shape:?}", work.len());
    let (dqkv, work) = (Shared::new(dqkv), Shared::new(work));
    let group = n_heads / n_kv_heads;
    // A task owns a kv head and the query heads that use it, so that dk and dv have one writer.
    device.for_each_task(b * n_kv_heads, |task| {
        let (sequence, kv_head) = (task / n_kv_heads, task % n_kv_heads);
        let rows = sequence * t;
        // SAFETY: scratch of a (sequence, kv head) belongs to one task.
        let mut work = unsafe { work.part(task * task_numel, task_numel) };
        let [probs_work, dscores_work] = [(); 2].map(|()| split_off(&mut work, block_numel(shape)));
        let [k_work, v_work, dk_work, dv_work] =
            [(); 4].map(|()| split_off(&mut work, copies_numel(shape, A::DTYPE, 1, 0)));
        let [q_work, dq_work, dout_work] =
            [(); 3].map(|()| split_off(&mut work, copies_numel(shape, A::DTYPE, 0, 1)));
        let heads = kv_head * group..(kv_head + 1) * group;
        let Columns { k: k_column, v: v_column, .. } = Columns::of(shape, heads.start);
        let k_whole = rows_of(&qkv[rows * qkv_row + k_column..], t, d_head, qkv_row, k_work);
        let v_whole = rows_of(&qkv[rows * qkv_row + v_column..], t, d_head, qkv_row, v_work);
        for (head, start) in heads.flat_map(|head| (0..t).step_by(BLOCK).map(move |start| (head, start))) {
            let q_column = Columns::of(shape, head).q;
            let end = t.min(start + BLOCK);
            let n = end - start;
            let q = rows_of(&qkv[(rows + start) * qkv_row + q_column..], n, d_head, qkv_row, q_work);
            let (k, v) = (k_whole.block(0..end, 0..d_head), v_whole.block(0..end, 0..d_head));
            let dout_block =
                rows_of(&dout[(rows + start) * out_row + head * d_head..], n, d_head, out_row, dout_work);
            let (probs, dscores) = (&mut probs_work[..n * end], &mut dscores_work[..n * end]);
            matmul(MatMut::new(probs, n, end), false, q, k.t(), scale(shape), Parallelism::None);
            matmul(MatMut::new(dscores, n, end), false, dout_block, v.t(), 1.0, Parallelism::None);
            let mut delta = [0.0; BLOCK];
            for (i, delta) in delta[..n].iter_mut().enumerate() {
                let at = (rows + start + i) * out_row + head * d_head;
                *delta = row_dot(&dout[at..][..d_head], &out[at..][..d_head]);
            }
            let lse = &lse[(sequence * n_heads + head) * t..][start..end];
            probs_and_dscores(probs, dscores, lse, &delta[..n], scale(shape));
            let (probs, dscores) = (Mat::new(probs, n, end, end), Mat::new(dscores, n, end, end));
            // Queries see more keys block by block: what a block adds to before any other is its own last n
            // rows.
            let first_head = head == kv_head * group;
            for (column, copy, left, right) in
                [(v_column, &mut *dv_work, probs, dout_block), (k_column, &mut *dk_work, dscores, q)]
            {
                // SAFETY: the columns of a kv head in the rows of a sequence belong to one task, here and
                // below.
                let mut whole =
                    unsafe { MatMut::strided(&dqkv, rows * qkv_row + column, t, d_head, qkv_row) };
                let in_place = whole.as_f32();
                let mut whole = in_place.unwrap_or_else(|| MatMut::new(copy, t, d_head));
                if first_head {
                    for row in start..end {
                        // SAFETY: as above.
                        unsafe { whole.part(row, 0..d_head) }.fill(0.0);
                    }
                }
                matmul(whole.block(0..end, 0..d_head), true, left.t(), right, 1.0, Parallelism::None);
            }
            // SAFETY: the columns of a query head belong to the task of its kv head.
            let mut dq =
                unsafe { MatMut::strided(&dqkv, (rows + start) * qkv_row + q_column, n, d_head, qkv_row) };
            if let Some(dq) = dq.as_f32() {
                matmul(dq, false, dscores, k, 1.0, Parallelism::None);
            } else {
                let copy = &mut dq_work[..n * d_head];
                matmul(MatMut::new(copy, n, d_head), false, dscores, k, 1.0, Parallelism::None);
                store_rows(dq, copy);
            }
        }
        for (column, copy) in [(k_column, dk_work), (v_column, dv_work)] {
            if !copy.is_empty() {
                // SAFETY: as above.
                store_rows(
                    unsafe { MatMut::strided(&dqkv, rows * qkv_row + column, t, d_head, qkv_row) },
                    copy,
                );
            }
        }
    });
}

/// Rounds the rows of `inp`, one after the other, into those of `out`. Overwrites `out`.
fn store_rows<A: Element>(out: MatMut<'_, A>, inp: &[f32]) {
    for (row, inp) in inp.chunks_exact(out.cols).enumerate() {
        // SAFETY: `out` is owned here and one row is used at a time.
        convert(unsafe { out.part(row, 0..out.cols) }, inp);
    }
}

simd! {
    fn row_dot<A: Element>(a: &[A], b: &[A]) -> f32 {
        dot(a, b)
    }
}

simd! {
    /// Scores to probabilities, in place; gradients of probabilities to gradients of unscaled scores, in
    /// place. Both are zero after the diagonal.
    fn probs_and_dscores(probs: &mut [f32], dscores: &mut [f32], lse: &[f32], delta: &[f32], scale: f32) {
        let n = lse.len();
        let end = probs.len() / n;
        for (i, (p_row, d_row)) in probs.chunks_exact_mut(end).zip(dscores.chunks_exact_mut(end)).enumerate()
        {
            let seen = end - n + i + 1;
            let (lse, delta) = (lse[i], delta[i]);
            for (p, d) in p_row[..seen].iter_mut().zip(&mut d_row[..seen]) {
                *p = exp(*p - lse);
                *d = *p * (*d - delta) * scale;
            }
            p_row[seen..].fill(0.0);
            d_row[seen..].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{backward_work_numel, forward_work_numel};
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::ops::AttentionShape;
    use crate::backend::reference;
    use crate::dtype::DType;

    const fn shape(b: usize, t: usize, n_heads: usize, n_kv_heads: usize, d_head: usize) -> AttentionShape {
        AttentionShape { b, t, n_heads, n_kv_heads, d_head }
    }

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        for shape in [
            shape(1, 1, 1, 1, 1),
            shape(2, 1, 3, 1, 5),
            shape(1, 64, 1, 1, 16),
            shape(2, 65, 4, 2, 7),
            shape(3, 67, 3, 3, 32),
            shape(1, 131, 6, 2, 24),
            shape(1, 200, 2, 1, 64),
        ] {
            let (n_qkv, n_out, n_lse) = (
                shape.b * shape.t * shape.qkv_row(),
                shape.b * shape.t * shape.out_row(),
                shape.b * shape.t * shape.n_heads,
            );
            let qkv: Vec<f32> = random(n_qkv, 1).iter().map(|x| x * 2.0).collect();
            let dout = random(n_out, 2);
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut lse, mut dqkv) = (nan_buf(n_out), nan_buf(n_lse), nan_buf(n_qkv));
                let (qkv, dout) = (buf_f32(&qkv), buf_f32(&dout));
                let mut work = nan_buf(forward_work_numel(shape, DType::F32));
                device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape);
                let mut work = nan_buf(backward_work_numel(shape, DType::F32));
                device.attention_backward(
                    dqkv.view_mut(),
                    dout.view(),
                    qkv.view(),
                    out.view(),
                    lse.view(),
                    work.view_mut(),
                    shape,
                );
                vec![read(&out), read(&lse), read(&dqkv)]
            });
            let (out, lse) = reference::attention_forward(&wide(&qkv), shape);
            let dqkv = reference::attention_backward(&wide(&dout), &wide(&qkv), shape);
            let name = format!("{shape:?}");
            // Scores are sums of d_head products of size up to 4: absolute error up to some 1e-5, which exp
            // turns into a relative error of the probabilities; sums of probabilities times values of size 2
            // keep it. Gradients of kv heads add one such term per query.
            assert_close(&name, &got[0], &out, 1e-5);
            assert_close(&name, &got[1], &lse, 1e-5);
            assert_close(&name, &got[2], &dqkv, 5e-5);
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let shape = shape(1, 3, 1, 1, 1);
        let qkv = [100.0, 100.0, 1.0, 100.0, -100.0, 2.0, 100.0, 100.0, 3.0];
        let (mut out, mut lse, mut work) =
            (nan_buf(3), nan_buf(3), nan_buf(forward_work_numel(shape, DType::F32)));
        device(1).attention_forward(
            out.view_mut(),
            lse.view_mut(),
            buf_f32(&qkv).view(),
            work.view_mut(),
            shape,
        );
        assert_eq!(read(&out), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        for shape in [shape(1, 5, 2, 2, 3), shape(2, 4, 4, 2, 2), shape(1, 1, 3, 1, 2)] {
            let qkv = wide(&random(shape.b * shape.t * shape.qkv_row(), 1));
            let dout = wide(&random(shape.b * shape.t * shape.out_row(), 2));
            let dqkv = reference::attention_backward(&dout, &qkv, shape);
            assert_gradient("dqkv", &qkv, &dqkv, |x| {
                weighted(&reference::attention_forward(x, shape).0, &dout)
            });
        }
    }
}
