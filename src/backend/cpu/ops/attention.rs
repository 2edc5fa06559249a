//! Causal self-attention over a fused projection, in blocks of query rows. Must not know: views.
//!
//! One block of [`BLOCK`] queries of one head at a time: scores against the keys up to the end of the block (the
//! rest is masked anyway), softmax, values. Only the log-sum-exp of each row is kept; the backward recomputes the
//! probabilities from it.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::{exp, ln};
use crate::backend::cpu::matmul::{Mat, MatMut, matmul};
use crate::backend::cpu::simd::{dot, map_in_place_and_sum, max, simd};
use crate::backend::ops::AttentionShape;
use gemm::Parallelism;

/// Query rows of a block.
const BLOCK: usize = 64;

/// Elements of the scores of one block: (queries, keys).
fn block_numel(shape: AttentionShape) -> usize {
    BLOCK.min(shape.t) * shape.t
}

/// Scratch elements of [`forward`]: the scores of one block for each sequence and head.
pub fn forward_work_numel(shape: AttentionShape) -> usize {
    shape.b * shape.n_heads * block_numel(shape)
}

/// Scratch elements of [`backward`]: probabilities and their gradients of one block for each sequence and kv head.
pub fn backward_work_numel(shape: AttentionShape) -> usize {
    shape.b * shape.n_kv_heads * 2 * block_numel(shape)
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
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "{n_heads} query heads on {n_kv_heads} kv heads");
}

#[rustfmt::skip]
pub fn forward(
    device: &CpuDevice,
    out: &mut [f32],  // (B, T, H * D)
    lse: &mut [f32],  // (B, H, T)
    qkv: &[f32],      // (B, T, (H + 2 Hkv) * D)
    work: &mut [f32], // (B, H, block)
    shape: AttentionShape,
) {
    check(shape);
    let AttentionShape { b, t, n_heads, d_head, .. } = shape;
    let (qkv_row, out_row) = (shape.qkv_row(), shape.out_row());
    let lens = (out.len(), lse.len(), qkv.len());
    assert_eq!(lens, (b * t * out_row, b * n_heads * t, b * t * qkv_row), "out, lse and qkv of {shape:?}");
    assert!(work.len() >= forward_work_numel(shape), "scratch of {} elements for {shape:?}", work.len());
    let (out, lse, work) = (Shared::new(out), Shared::new(lse), Shared::new(work));
    device.for_each_task(b * n_heads, |task| {
        let (sequence, head) = (task / n_heads, task % n_heads);
        let columns = Columns::of(shape, head);
        let qkv = &qkv[sequence * t * qkv_row..][..t * qkv_row];
        // SAFETY: scratch and lse of a (sequence, head) belong to one task.
        let (work, lse) = unsafe { (work.part(task * block_numel(shape), block_numel(shape)), lse.part(task * t, t)) };
        for start in (0..t).step_by(BLOCK) {
            let end = t.min(start + BLOCK);
            let n = end - start;
            let scores = &mut work[..n * end];
            let q = Mat::new(&qkv[start * qkv_row + columns.q..], n, d_head, qkv_row);
            let k = Mat::new(&qkv[columns.k..], end, d_head, qkv_row);
            let v = Mat::new(&qkv[columns.v..], end, d_head, qkv_row);
            matmul(MatMut::new(scores, n, end), false, q, k.t(), scale(shape), Parallelism::None);
            let mut sums = [0.0; BLOCK];
            exp_rows(scores, &mut sums[..n], &mut lse[start..end]);
            let out_start = (sequence * t + start) * out_row + head * d_head;
            // SAFETY: the columns of a head in the rows of a sequence belong to one task.
            let out_block = unsafe { MatMut::strided(&out, out_start, n, d_head, out_row) };
            matmul(out_block, false, Mat::new(scores, n, end, end), v, 1.0, Parallelism::None);
            for (row, &sum) in sums[..n].iter().enumerate() {
                // SAFETY: as above; the matrix product is done.
                let out = unsafe { out.part(out_start + row * out_row, d_head) };
                out.iter_mut().for_each(|x| *x /= sum);
            }
        }
    });
}

simd! {
    /// Scores of the last rows of a causal square to `exp(score - max)`, zero after the diagonal. Overwrites `sums` and
    /// `lse`.
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
pub fn backward(
    device: &CpuDevice,
    dqkv: &mut [f32], // (B, T, (H + 2 Hkv) * D)
    dout: &[f32],     // (B, T, H * D)
    qkv: &[f32],      // (B, T, (H + 2 Hkv) * D)
    out: &[f32],      // (B, T, H * D)
    lse: &[f32],      // (B, H, T)
    work: &mut [f32], // (B, Hkv, 2, block)
    shape: AttentionShape,
) {
    check(shape);
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    let (qkv_row, out_row) = (shape.qkv_row(), shape.out_row());
    let lens = (dqkv.len(), dout.len(), qkv.len(), out.len(), lse.len());
    let want = (b * t * qkv_row, b * t * out_row, b * t * qkv_row, b * t * out_row, b * n_heads * t);
    assert_eq!(lens, want, "dqkv, dout, qkv, out and lse of {shape:?}");
    assert!(work.len() >= backward_work_numel(shape), "scratch of {} elements for {shape:?}", work.len());
    let (dqkv, work) = (Shared::new(dqkv), Shared::new(work));
    let group = n_heads / n_kv_heads;
    // A task owns a kv head and the query heads that use it, so that dk and dv have one writer.
    device.for_each_task(b * n_kv_heads, |task| {
        let (sequence, kv_head) = (task / n_kv_heads, task % n_kv_heads);
        let rows = sequence * t;
        // SAFETY: scratch of a (sequence, kv head) belongs to one task.
        let work = unsafe { work.part(task * 2 * block_numel(shape), 2 * block_numel(shape)) };
        let (probs, dscores) = work.split_at_mut(block_numel(shape));
        let heads = kv_head * group..(kv_head + 1) * group;
        for (head, start) in heads.flat_map(|head| (0..t).step_by(BLOCK).map(move |start| (head, start))) {
            let columns = Columns::of(shape, head);
            let end = t.min(start + BLOCK);
            let n = end - start;
            let q = Mat::new(&qkv[(rows + start) * qkv_row + columns.q..], n, d_head, qkv_row);
            let k = Mat::new(&qkv[rows * qkv_row + columns.k..], end, d_head, qkv_row);
            let v = Mat::new(&qkv[rows * qkv_row + columns.v..], end, d_head, qkv_row);
            let dout_block = Mat::new(&dout[(rows + start) * out_row + head * d_head..], n, d_head, out_row);
            let (probs, dscores) = (&mut probs[..n * end], &mut dscores[..n * end]);
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
            // Queries see more keys block by block: what a block adds to before any other is its own last n rows.
            let first_head = head == kv_head * group;
            for (column, left, right) in [(columns.v, probs, dout_block), (columns.k, dscores, q)] {
                if first_head {
                    for row in start..end {
                        // SAFETY: the columns of a kv head in the rows of a sequence belong to one task, here and below.
                        unsafe { dqkv.part((rows + row) * qkv_row + column, d_head) }.fill(0.0);
                    }
                }
                // SAFETY: as above.
                let dst = unsafe { MatMut::strided(&dqkv, rows * qkv_row + column, end, d_head, qkv_row) };
                matmul(dst, true, left.t(), right, 1.0, Parallelism::None);
            }
            // SAFETY: the columns of a query head belong to the task of its kv head.
            let dq = unsafe { MatMut::strided(&dqkv, (rows + start) * qkv_row + columns.q, n, d_head, qkv_row) };
            matmul(dq, false, dscores, k, 1.0, Parallelism::None);
        }
    });
}

simd! {
    fn row_dot(a: &[f32], b: &[f32]) -> f32 {
        dot(a, b)
    }
}

simd! {
    /// Scores to probabilities, in place; gradients of probabilities to gradients of unscaled scores, in place. Both
    /// are zero after the diagonal.
    fn probs_and_dscores(probs: &mut [f32], dscores: &mut [f32], lse: &[f32], delta: &[f32], scale: f32) {
        let n = lse.len();
        let end = probs.len() / n;
        for (i, (p_row, d_row)) in probs.chunks_exact_mut(end).zip(dscores.chunks_exact_mut(end)).enumerate() {
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
    use crate::backend::cpu::reference;
    use crate::backend::ops::AttentionShape;

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
                let mut work = nan_buf(forward_work_numel(shape));
                device.attention_forward(out.view_mut(), lse.view_mut(), qkv.view(), work.view_mut(), shape);
                let mut work = nan_buf(backward_work_numel(shape));
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
            // Scores are sums of d_head products of size up to 4: absolute error up to some 1e-5, which exp turns into a
            // relative error of the probabilities; sums of probabilities times values of size 2 keep it. Gradients of
            // kv heads add one such term per query.
            assert_close(&name, &got[0], &out, 1e-5);
            assert_close(&name, &got[1], &lse, 1e-5);
            assert_close(&name, &got[2], &dqkv, 5e-5);
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let shape = shape(1, 3, 1, 1, 1);
        let qkv = [100.0, 100.0, 1.0, 100.0, -100.0, 2.0, 100.0, 100.0, 3.0];
        let (mut out, mut lse, mut work) = (nan_buf(3), nan_buf(3), nan_buf(forward_work_numel(shape)));
        device(1).attention_forward(out.view_mut(), lse.view_mut(), buf_f32(&qkv).view(), work.view_mut(), shape);
        assert_eq!(read(&out), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn reference_gradients_are_central_differences() {
        for shape in [shape(1, 5, 2, 2, 3), shape(2, 4, 4, 2, 2), shape(1, 1, 3, 1, 2)] {
            let qkv = wide(&random(shape.b * shape.t * shape.qkv_row(), 1));
            let dout = wide(&random(shape.b * shape.t * shape.out_row(), 2));
            let dqkv = reference::attention_backward(&dout, &qkv, shape);
            assert_gradient("dqkv", &qkv, &dqkv, |x| weighted(&reference::attention_forward(x, shape).0, &dout));
        }
    }
}
