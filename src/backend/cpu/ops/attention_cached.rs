//! Attention of a few new rows over all rows so far: what generating text needs. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::exp;
use crate::backend::cpu::simd::{dot, map_in_place_and_sum, max, simd};
use crate::backend::ops::AttentionShape;

/// The output of the last `n` rows of one sequence; scores of a row and head lie in `work`. Overwrites `out`.
#[rustfmt::skip]
pub fn forward<A: Element>(
    device: &CpuDevice,
    out: &mut [A],    // (n, H * D)
    qkv: &[A],        // (T, (H + 2 Hkv) * D)
    work: &mut [f32], // (n, H, T) or more
    shape: AttentionShape,
    n: usize,
) {
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    let (row, out_row) = (shape.qkv_row(), shape.out_row());
    assert!(b == 1 && n <= t, "{n} new rows of {shape:?}");
    assert_eq!((out.len(), qkv.len()), (n * out_row, t * row), "out and qkv of {n} new rows of {shape:?}");
    assert!(work.len() >= n * n_heads * t, "scratch of {} elements for {n} rows of {shape:?}", work.len());
    let (out, work) = (Shared::new(out), Shared::new(work));
    device.for_each_task(n * n_heads, |task| {
        let (i, head) = (task / n_heads, task % n_heads);
        let seen = t - n + i + 1;
        let kv_head = head / (n_heads / n_kv_heads);
        let q = &qkv[(seen - 1) * row + head * d_head..][..d_head];
        let k_column = (n_heads + kv_head) * d_head;
        // SAFETY: scores and output of a (row, head) belong to one task.
        let (scores, out) =
            unsafe { (work.part(task * t, seen), out.part(i * out_row + head * d_head, d_head)) };
        attend(out, scores, q, qkv, [k_column, k_column + n_kv_heads * d_head], row);
    });
}

simd! {
    /// Softmax attention of one query: scores in order of keys, values added in that order, one rounding at
    /// the end.
    fn attend<A: Element>(
        out: &mut [A],
        scores: &mut [f32],
        q: &[A],
        qkv: &[A],
        columns: [usize; 2],
        row: usize,
    ) {
        // Channels of a value are summed in pieces that stay in registers.
        const PIECE: usize = 64;
        let d_head = q.len();
        let scale = 1.0 / (d_head as f32).sqrt();
        for (key, score) in scores.iter_mut().enumerate() {
            *score = dot(q, &qkv[key * row + columns[0]..][..d_head]) * scale;
        }
        let most = max(scores);
        let sum = map_in_place_and_sum(scores, |x| exp(x - most));
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            let mut acc = [0.0f32; PIECE];
            for (key, &p) in scores.iter().enumerate() {
                let v = &qkv[key * row + columns[1] + piece * PIECE..][..out.len()];
                for (acc, v) in acc.iter_mut().zip(v) {
                    *acc = p.mul_add(v.load(), *acc);
                }
            }
            for (o, acc) in out.iter_mut().zip(acc) {
                *o = A::store(acc / sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::ops::{AttentionShape, CachedWork};
    use crate::backend::{Ops, reference};
    use crate::dtype::DType;

    #[test]
    fn new_rows_see_what_attention_over_the_whole_sequence_sees() {
        for (t, n, n_heads, n_kv_heads, d_head) in
            [(1, 1, 1, 1, 2), (7, 1, 4, 2, 6), (67, 32, 6, 3, 16), (130, 5, 2, 1, 100)]
        {
            let shape = AttentionShape { b: 1, t, n_heads, n_kv_heads, d_head };
            let qkv: Vec<f32> = random(t * shape.qkv_row(), 1).iter().map(|x| x * 2.0).collect();
            let got = same_bits_on_1_2_3_threads(|device| {
                let (mut out, mut none) = (nan_buf(n * shape.out_row()), [nan_buf(0), nan_buf(0)]);
                let mut work =
                    nan_buf(crate::backend::cpu::CpuDevice::attention_forward_work_numel(shape, DType::F32));
                let [a, b] = &mut none;
                let scratch = CachedWork { out: a.view_mut(), lse: b.view_mut(), work: work.view_mut() };
                device.attention_cached(out.view_mut(), buf_f32(&qkv).view(), scratch, shape, n);
                vec![read(&out)]
            });
            let (whole, _) = reference::attention_forward(&wide(&qkv), shape);
            assert_close(&format!("{n} of {shape:?}"), &got[0], &whole[(t - n) * shape.out_row()..], 1e-5);
        }
    }
}
