//! SwiGLU, `silu(gate) * up` (arXiv:2002.05202), over rows `[gate | up]`. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::exp;
use crate::backend::cpu::simd::simd;

/// Elements of one task, about.
const TASK_NUMEL: usize = 16 * 1024;

/// Overwrites `out` (rows, F) from `gate_up` (rows, 2F).
pub fn forward<O: Element, I: Element>(device: &CpuDevice, out: &mut [O], gate_up: &[I], f: usize) {
    let rows = rows_of(out.len(), gate_up.len(), f);
    let out = Shared::new(out);
    for_each_rows(device, rows, f, |start, n| {
        // SAFETY: rows belong to one task each.
        let out = unsafe { out.part(start * f, n * f) };
        forward_rows(out, &gate_up[start * 2 * f..][..n * 2 * f], f);
    });
}

/// Overwrites `dgate_up` (rows, 2F) from `dout` (rows, F).
pub fn backward<G: Element, O: Element, I: Element>(
    device: &CpuDevice,
    dgate_up: &mut [G],
    dout: &[O],
    gate_up: &[I],
    f: usize,
) {
    let rows = rows_of(dout.len(), gate_up.len(), f);
    assert_eq!(dgate_up.len(), gate_up.len(), "gates and their gradients");
    let dgate_up = Shared::new(dgate_up);
    for_each_rows(device, rows, f, |start, n| {
        // SAFETY: rows belong to one task each.
        let dgate_up = unsafe { dgate_up.part(start * 2 * f, n * 2 * f) };
        backward_rows(dgate_up, &dout[start * f..][..n * f], &gate_up[start * 2 * f..][..n * 2 * f], f);
    });
}

fn rows_of(out_numel: usize, gate_up_numel: usize, f: usize) -> usize {
    assert!(f > 0 && out_numel.is_multiple_of(f), "{out_numel} elements in rows of {f}");
    assert_eq!(gate_up_numel, 2 * out_numel, "gates of rows of {f}");
    out_numel / f
}

/// Runs `task(first row, rows)` over all rows.
fn for_each_rows(device: &CpuDevice, rows: usize, f: usize, task: impl Fn(usize, usize) + Sync + Send) {
    let task_rows = (TASK_NUMEL / f).max(1);
    device.for_each_task(rows.div_ceil(task_rows), |i| {
        task(i * task_rows, task_rows.min(rows - i * task_rows))
    });
}

/// `1 / (1 + e^-x)`: 0 where the power overflows.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

simd! {
    fn forward_rows<O: Element, I: Element>(out: &mut [O], gate_up: &[I], f: usize) {
        for (out, gate_up) in out.chunks_exact_mut(f).zip(gate_up.chunks_exact(2 * f)) {
            let (gate, up) = gate_up.split_at(f);
            for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
                let g = g.load();
                *o = O::store(g * sigmoid(g) * u.load());
            }
        }
    }
}

simd! {
    fn backward_rows<G: Element, O: Element, I: Element>(
        dgate_up: &mut [G],
        dout: &[O],
        gate_up: &[I],
        f: usize,
    ) {
        let rows =
            dgate_up.chunks_exact_mut(2 * f).zip(dout.chunks_exact(f)).zip(gate_up.chunks_exact(2 * f));
        for ((dgate_up, dout), gate_up) in rows {
            let ((dgate, dup), (gate, up)) = (dgate_up.split_at_mut(f), gate_up.split_at(f));
            for ((((dg, du), d), g), u) in dgate.iter_mut().zip(dup).zip(dout).zip(gate).zip(up) {
                let (g, d) = (g.load(), d.load());
                let s = sigmoid(g);
                *dg = G::store(d * u.load() * (s * g.mul_add(1.0 - s, 1.0)));
                *du = G::store(d * (g * s));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::reference;

    fn run(gate_up: &[f32], dout: &[f32], f: usize) -> Vec<Vec<f32>> {
        same_bits_on_1_2_3_threads(|device| {
            let (mut out, mut dgate_up) = (nan_buf(dout.len()), nan_buf(gate_up.len()));
            let gate_up = buf_f32(gate_up);
            device.swiglu_forward(out.view_mut(), gate_up.view(), f);
            device.swiglu_backward(dgate_up.view_mut(), buf_f32(dout).view(), gate_up.view(), f);
            vec![read(&out), read(&dgate_up)]
        })
    }

    #[test]
    fn forward_and_backward_equal_the_reference_and_thread_counts_agree() {
        for (rows, f) in [(1, 1), (5, 7), (3, 16), (37, 1000), (2, 20_001)] {
            let gate_up: Vec<f32> = random(rows * 2 * f, 1).iter().map(|x| x * 12.0).collect();
            let dout = random(rows * f, 2);
            let got = run(&gate_up, &dout, f);
            let (gate_up, dout) = (wide(&gate_up), wide(&dout));
            let name = format!("SwiGLU {rows} x {f}");
            // exp is good to 1 ulp and its argument exact; a handful of roundings of 6e-8 follow.
            assert_close(&name, &got[0], &reference::swiglu_forward(&gate_up, f), 1e-6);
            assert_close(&name, &got[1], &reference::swiglu_backward(&dout, &gate_up, f), 1e-6);
        }
    }

    #[test]
    fn of_the_odd_ones() {
        let got = run(&[1e30, -1e30, 0.0, f32::NAN, 1.0, 2.0, 3.0, 4.0], &[1.0; 4], 4);
        assert_eq!(got[0][..3], [1e30, -0.0, 0.0]);
        assert_eq!((got[1][0], got[1][2]), (1.0, 1.5));
        assert_eq!((got[1][1], got[1][5]), (0.0, 0.0));
        assert!(got[0][3].is_nan() && got[1][3].is_nan());
    }

    #[test]
    fn reference_gradient_is_the_central_difference() {
        let gate_up = wide(&random(2 * 3 * 5, 1));
        let dout = wide(&random(3 * 5, 2));
        let d = reference::swiglu_backward(&dout, &gate_up, 5);
        assert_gradient("gate_up", &gate_up, &d, |x| weighted(&reference::swiglu_forward(x, 5), &dout));
    }
}
