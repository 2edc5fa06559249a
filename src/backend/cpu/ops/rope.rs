//! Rotary position embedding (arXiv:2104.09864), the rotate-half form, on the query and key heads of a fused
//! projection. Must not know: views.
//!
//! Angles are products in f64 and their sines and cosines come from crate `libm`, once per position and pair
//! of channels, so neither a node's libm nor the number of sequences shows.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::simd::simd;
use crate::backend::ops::{AttentionShape, Rotation};

/// Positions of one task of the table: powers are shared among them.
const TABLE_POSITIONS: usize = 32;

/// Elements of one task of the rotation, about.
const TASK_NUMEL: usize = 16 * 1024;

/// Scratch elements: cosines and sines of each position.
pub fn work_numel(shape: AttentionShape) -> usize {
    shape.t * shape.d_head
}

#[rustfmt::skip]
pub fn rope<A: Element>(
    device: &CpuDevice,
    qkv: &mut [A],    // (B, T, (H + 2 Hkv) * D), rotated in place
    work: &mut [f32], // (T, D): cosines, then sines
    shape: AttentionShape,
    rotation: Rotation,
) {
    let AttentionShape { b, t, n_heads, n_kv_heads, d_head } = shape;
    let row = shape.qkv_row();
    assert!(d_head.is_multiple_of(2), "heads of {d_head} channels cannot be rotated in pairs");
    assert_eq!(qkv.len(), b * t * row, "projection of {shape:?}");
    assert!(work.len() >= work_numel(shape), "scratch of {} elements for {shape:?}", work.len());
    fill_table(device, &mut work[..t * d_head], d_head, rotation);
    let table = &work[..t * d_head];
    let rotated = (n_heads + n_kv_heads) * d_head;
    let task_rows = (TASK_NUMEL / rotated.max(1)).max(1);
    let rows = b * t;
    let qkv = Shared::new(qkv);
    device.for_each_task(rows.div_ceil(task_rows), |task| {
        let start = task * task_rows;
        for at in start..rows.min(start + task_rows) {
            // SAFETY: rows belong to one task each.
            let heads = unsafe { qkv.part(at * row, rotated) };
            rotate(heads, &table[at % t * d_head..][..d_head]);
        }
    });
}

/// Overwrites `table`: of position p, cosines and then sines of `(first + p) * theta^(-2i/D)`.
fn fill_table(device: &CpuDevice, table: &mut [f32], d_head: usize, rotation: Rotation) {
    let Rotation { first, theta, inverse } = rotation;
    let (t, half) = (table.len() / d_head, d_head / 2);
    let table = Shared::new(table);
    device.for_each_task(t.div_ceil(TABLE_POSITIONS), |task| {
        let start = task * TABLE_POSITIONS;
        let n = TABLE_POSITIONS.min(t - start);
        // SAFETY: positions belong to one task each.
        let table = unsafe { table.part(start * d_head, n * d_head) };
        for i in 0..half {
            let frequency = libm::pow(f64::from(theta), -2.0 * i as f64 / d_head as f64);
            for (p, row) in table.chunks_exact_mut(d_head).enumerate() {
                let (sine, cosine) = libm::sincos((first + start + p) as f64 * frequency);
                row[i] = cosine as f32;
                row[half + i] = if inverse { -sine } else { sine } as f32;
            }
        }
    });
}

simd! {
    /// Turns channel i of each head against i + D / 2.
    fn rotate<A: Element>(heads: &mut [A], table: &[f32]) {
        let (cosines, sines) = table.split_at(table.len() / 2);
        for head in heads.chunks_exact_mut(table.len()) {
            let (left, right) = head.split_at_mut(cosines.len());
            for (((a, b), &cosine), &sine) in left.iter_mut().zip(right).zip(cosines).zip(sines) {
                let (x, y) = (a.load(), b.load());
                *a = A::store(x.mul_add(cosine, -(y * sine)));
                *b = A::store(x.mul_add(sine, y * cosine));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::work_numel;
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::ops::{AttentionShape, Rotation};
    use crate::backend::reference;

    const SHAPES: [AttentionShape; 4] = [
        AttentionShape { b: 1, t: 1, n_heads: 1, n_kv_heads: 1, d_head: 2 },
        AttentionShape { b: 2, t: 67, n_heads: 4, n_kv_heads: 2, d_head: 6 },
        AttentionShape { b: 3, t: 33, n_heads: 3, n_kv_heads: 1, d_head: 64 },
        AttentionShape { b: 1, t: 9001, n_heads: 1, n_kv_heads: 1, d_head: 8 },
    ];

    #[test]
    fn rotation_equals_the_reference_and_thread_counts_agree() {
        for shape in SHAPES {
            for first in [0, 1003] {
                let qkv = random(shape.b * shape.t * shape.qkv_row(), 1);
                let rotation = Rotation { first, theta: 10_000.0, inverse: false };
                let got = same_bits_on_1_2_3_threads(|device| {
                    let (mut buf, mut work) = (buf_f32(&qkv), nan_buf(work_numel(shape)));
                    device.rope(buf.view_mut(), work.view_mut(), shape, rotation);
                    vec![read(&buf)]
                });
                // Two products of numbers below 1, each with one rounding of a sine and one of its own.
                assert_close(
                    &format!("{shape:?}"),
                    &got[0],
                    &reference::rope(&wide(&qkv), shape, rotation),
                    3e-7,
                );
            }
        }
    }

    #[test]
    fn the_inverse_turns_back_and_is_the_gradient() {
        let shape = SHAPES[1];
        let n = shape.b * shape.t * shape.qkv_row();
        let there = Rotation { first: 5, theta: 500.0, inverse: false };
        let back = Rotation { inverse: true, ..there };
        let (qkv, dout) = (wide(&random(n, 1)), wide(&random(n, 2)));
        let returned = reference::rope(&reference::rope(&qkv, shape, there), shape, back);
        assert!(returned.iter().zip(&qkv).all(|(a, b)| (a - b).abs() < 1e-14));
        let dqkv = reference::rope(&dout, shape, back);
        let loss = |x: &[f64]| weighted(&reference::rope(x, shape, there), &dout);
        assert_gradient("rope", &qkv[..], &dqkv, loss);
        let (mut buf, mut work) = (buf_f32(&random(n, 2)), nan_buf(work_numel(shape)));
        device(1).rope(buf.view_mut(), work.view_mut(), shape, back);
        assert_close("inverse", &read(&buf), &dqkv, 3e-7);
    }
}
