//! Kernels without neighbours: GELU, additions, casts. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::host::Shared;
use crate::backend::cpu::math::exp;
use crate::backend::cpu::simd::{convert, simd};
use crate::backend::ops::Columns;

/// Elements of one task.
const TASK_NUMEL: usize = 16 * 1024;

/// `sqrt(2 / pi)`.
const GELU_SCALE: f32 = 0.797_884_6;
/// Coefficient of the cube (arXiv:1606.08415).
const GELU_CUBE: f32 = 0.044_715;

pub fn gelu_forward<O: Element, I: Element>(device: &CpuDevice, out: &mut [O], inp: &[I]) {
    for_each_chunk(device, out, |out, start| gelu_chunk(out, &inp[start..][..out.len()]), inp.len());
}

pub fn gelu_backward<O: Element, I: Element>(device: &CpuDevice, dout_to_dinp: &mut [O], inp: &[I]) {
    for_each_chunk(
        device,
        dout_to_dinp,
        |d, start| gelu_backward_chunk(d, &inp[start..][..d.len()]),
        inp.len(),
    );
}

pub fn add<O: Element, A: Element, B: Element>(device: &CpuDevice, out: &mut [O], a: &[A], b: &[B]) {
    assert_eq!(a.len(), b.len(), "elements of a and b");
    for_each_chunk(
        device,
        out,
        |out, start| add_chunk(out, &a[start..][..out.len()], &b[start..][..out.len()]),
        a.len(),
    );
}

pub fn accumulate<I: Element>(device: &CpuDevice, out: &mut [f32], inp: &[I]) {
    for_each_chunk(device, out, |out, start| accumulate_chunk(out, &inp[start..][..out.len()]), inp.len());
}

pub fn cast<O: Element, I: Element>(device: &CpuDevice, out: &mut [O], inp: &[I]) {
    for_each_chunk(device, out, |out, start| convert(out, &inp[start..][..out.len()]), inp.len());
}

/// Copies `n` columns of every row of `inp` to columns of `out`.
pub fn copy_columns<T: Element>(
    device: &CpuDevice,
    out: &mut [T],
    to: Columns,
    inp: &[T],
    from: Columns,
    n: usize,
) {
    let rows = out.len() / to.row.max(1);
    assert_eq!(
        (out.len(), inp.len()),
        (rows * to.row, rows * from.row),
        "columns of {rows} rows, {to:?}, {from:?}"
    );
    assert!(to.first + n <= to.row && from.first + n <= from.row, "{n} columns, {to:?}, {from:?}");
    let task_rows = (TASK_NUMEL / n.max(1)).max(1);
    let out = Shared::new(out);
    device.for_each_task(rows.div_ceil(task_rows), |task| {
        for row in task * task_rows..rows.min((task + 1) * task_rows) {
            // SAFETY: rows belong to one task each.
            let out = unsafe { out.part(row * to.row + to.first, n) };
            out.copy_from_slice(&inp[row * from.row + from.first..][..n]);
        }
    });
}

/// Runs `chunk(part of out, its first element)` over all of `out`.
fn for_each_chunk<O: Element>(
    device: &CpuDevice,
    out: &mut [O],
    chunk: impl Fn(&mut [O], usize) + Sync + Send,
    inp_numel: usize,
) {
    let numel = out.len();
    assert_eq!(numel, inp_numel, "elements of output and input");
    let out = Shared::new(out);
    device.for_each_task(numel.div_ceil(TASK_NUMEL), |task| {
        let start = task * TASK_NUMEL;
        // SAFETY: elements belong to one task each.
        chunk(unsafe { out.part(start, TASK_NUMEL.min(numel - start)) }, start);
    });
}

/// `u` of `gelu(x) = x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u))`.
#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    GELU_SCALE * x * (GELU_CUBE * x).mul_add(x, 1.0)
}

simd! {
    fn gelu_chunk<O: Element, I: Element>(out: &mut [O], inp: &[I]) {
        for (o, x) in out.iter_mut().zip(inp) {
            let x = x.load();
            *o = O::store(x / (1.0 + exp(-2.0 * gelu_argument(x))));
        }
    }
}

simd! {
    fn gelu_backward_chunk<O: Element, I: Element>(dout_to_dinp: &mut [O], inp: &[I]) {
        for (d, x) in dout_to_dinp.iter_mut().zip(inp) {
            let x = x.load();
            // Beyond 30 the curve is straight; so near every power stays finite.
            let near = if x > 30.0 { 30.0 } else { x };
            let near = if near < -30.0 { -30.0 } else { near };
            let u = gelu_argument(near);
            let argument = -2.0 * u;
            let e = exp(if argument > 80.0 { 80.0 } else { argument });
            let sigmoid = 1.0 / (1.0 + e);
            // d(sigmoid(2u))/du = 2 * sigmoid * (1 - sigmoid), and 1 - sigmoid = e * sigmoid without
            // cancellation.
            let du = GELU_SCALE * (3.0 * GELU_CUBE * near).mul_add(near, 1.0);
            *d = O::store(d.load() * (2.0 * near * du * e * sigmoid).mul_add(sigmoid, sigmoid));
        }
    }
}

simd! {
    fn add_chunk<O: Element, A: Element, B: Element>(out: &mut [O], a: &[A], b: &[B]) {
        for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
            *o = O::store(a.load() + b.load());
        }
    }
}

simd! {
    fn accumulate_chunk<I: Element>(out: &mut [f32], inp: &[I]) {
        for (o, x) in out.iter_mut().zip(inp) {
            *o += x.load();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::{buf_f32, read};
    use crate::backend::cpu::ops::test_support::*;
    use crate::backend::ops::Columns;
    use crate::backend::reference;

    #[test]
    fn columns_are_copied_and_all_others_stay_on_any_number_of_threads() {
        for (rows, to, from, n) in
            [(5, (7, 2), (4, 1), 3), (1300, (96, 64), (32, 0), 32), (3, (4, 0), (4, 0), 4)]
        {
            let (before, inp) = (random(rows * to.0, 1), random(rows * from.0, 2));
            let got = same_bits_on_1_2_3_threads(|device| {
                let mut out = buf_f32(&before);
                let columns = |(row, first)| Columns { row, first };
                device.copy_columns(out.view_mut(), columns(to), buf_f32(&inp).view(), columns(from), n);
                vec![read(&out)]
            });
            let want = reference::copy_columns(&wide(&before), to, &wide(&inp), from, n);
            assert_close("columns", &got[0], &want, 0.0);
        }
    }

    fn run_gelu(inp: &[f32], dout: &[f32]) -> Vec<Vec<f32>> {
        same_bits_on_1_2_3_threads(|device| {
            let (mut out, mut d) = (nan_buf(inp.len()), buf_f32(dout));
            let inp = buf_f32(inp);
            device.gelu_forward(out.view_mut(), inp.view());
            device.gelu_backward(d.view_mut(), inp.view());
            vec![read(&out), read(&d)]
        })
    }

    #[test]
    fn gelu_equals_the_reference_over_a_dense_sweep() {
        let inp: Vec<f32> =
            (0..200_003).map(|i| (i as f32 - 100_000.0) * 1.2e-4).chain([100.0, -100.0, 1e30]).collect();
        let dout = vec![1.0; inp.len()];
        let got = run_gelu(&inp, &dout);
        // exp is good to 1 ulp; -2u <= 15 where the result still counts, and its rounding enters exp as -2u *
        // 6e-8.
        assert_close("gelu", &got[0], &reference::gelu_forward(&wide(&inp)), 1e-6);
        assert_close("gelu gradient", &got[1], &reference::gelu_backward(&wide(&inp), &wide(&dout)), 1e-6);
    }

    #[test]
    fn gelu_of_the_odd_ones() {
        let got = run_gelu(&[0.0, 1e30, -1e30, f32::NAN, f32::INFINITY], &[1.0; 5]);
        assert_eq!(got[0][..3], [0.0, 1e30, 0.0]);
        assert_eq!(got[1][..2], [0.5, 1.0]);
        assert!(got[1][2].abs() < 1e-30);
        assert!(got[0][3].is_nan() && got[1][3].is_nan());
        assert_eq!((got[0][4], got[1][4]), (f32::INFINITY, 1.0));
    }

    #[test]
    fn reference_gelu_gradient_is_the_central_difference() {
        let inp: Vec<f64> = (-50..50).map(|i| i as f64 * 0.13).collect();
        let dout = wide(&random(inp.len(), 1));
        let dinp = reference::gelu_backward(&inp, &dout);
        assert_gradient("gelu", &inp, &dinp, |x| weighted(&reference::gelu_forward(x), &dout));
    }

    #[test]
    fn add_adds_each_element_once() {
        for n in [0, 1, 37, 40_001] {
            let (a, b) = (random(n, 1), random(n, 2));
            let got = same_bits_on_1_2_3_threads(|device| {
                let mut out = nan_buf(n);
                device.add(out.view_mut(), buf_f32(&a).view(), buf_f32(&b).view());
                vec![read(&out)]
            });
            let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            assert_eq!(got[0], want);
        }
    }
}
