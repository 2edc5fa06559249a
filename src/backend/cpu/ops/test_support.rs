//! What the tests of kernels share.

use crate::backend::buffer::Buf;
use crate::backend::cpu::CpuDevice;
use crate::backend::cpu::host::test_memory::{buf_f32, buf_of, read};
use crate::dtype::DType;
use crate::random::SplitMix64;

/// A device of `threads` compute threads.
pub fn device(threads: usize) -> CpuDevice {
    CpuDevice::new(threads).expect("threads start")
}

/// Numbers in [-1, 1), the same for the same seed.
pub fn random(n: usize, seed: u64) -> Vec<f32> {
    SplitMix64::stream(seed).take(n).map(|word| (word >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// Random numbers, rounded to `dtype`.
pub fn random_of(dtype: DType, n: usize, seed: u64) -> Vec<f32> {
    read(&buf_of(dtype, &random(n, seed)))
}

/// A buffer of `dtype` that shows what was not overwritten.
pub fn nan_of(dtype: DType, n: usize) -> Buf {
    buf_of(dtype, &vec![f32::NAN; n])
}

/// Token ids below `vocab`.
pub fn tokens(n: usize, vocab: usize, seed: u64) -> Vec<u32> {
    SplitMix64::stream(seed).take(n).map(|word| (word >> 33) as u32 % vocab as u32).collect()
}

/// A buffer that shows what was not overwritten.
pub fn nan_buf(n: usize) -> Buf {
    buf_f32(&vec![f32::NAN; n])
}

/// The same numbers in f64.
pub fn wide(xs: &[f32]) -> Vec<f64> {
    xs.iter().map(|&x| x as f64).collect()
}

/// `sum(x * weight)`: turns an output into a loss with the gradient `weight`.
pub fn weighted(xs: &[f64], weights: &[f64]) -> f64 {
    xs.iter().zip(weights).map(|(x, w)| x * w).sum()
}

/// Each element within `tolerance * max(1, |want|)`; names the worst one otherwise.
pub fn assert_close(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: elements");
    let error = |i: usize| (got[i] as f64 - want[i]).abs() / want[i].abs().max(1.0);
    // NaN sorts as the worst of all.
    let Some(worst) = (0..got.len()).max_by(|&i, &j| error(i).total_cmp(&error(j))) else { return };
    assert!(
        error(worst) <= tolerance,
        "{name}: element {worst} is {}, want {}, error {} > {tolerance}",
        got[worst],
        want[worst],
        error(worst)
    );
}

/// `gradient` is the central difference of `loss` at `at`, whose elements are of size 1.
///
/// With h = 1e-5 the difference is off by about h^2 = 1e-10 (third derivative) and 1e-16 / h = 1e-11
/// (rounding).
pub fn assert_gradient(name: &str, at: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    const H: f64 = 1e-5;
    assert_eq!(at.len(), gradient.len(), "{name}: elements");
    let mut x = at.to_vec();
    let errors = (0..at.len()).map(|i| {
        x[i] = at[i] + H;
        let above = loss(&x);
        x[i] = at[i] - H;
        let below = loss(&x);
        x[i] = at[i];
        let difference = (above - below) / (2.0 * H);
        ((difference - gradient[i]).abs() / gradient[i].abs().max(1.0), i, difference)
    });
    let (error, i, difference) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).expect("a gradient has elements");
    assert!(error <= 1e-7, "{name}: element {i} is {}, central difference {difference}", gradient[i]);
}

/// What `run` returns on one thread, after checking that two and three threads give the same bits.
pub fn same_bits_on_1_2_3_threads(run: impl Fn(&CpuDevice) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    let want = run(&device(1));
    for threads in [2, 3] {
        for (output, (got, want)) in run(&device(threads)).iter().zip(&want).enumerate() {
            let differing = got.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
            if let Some(i) = differing {
                panic!("output {output}, element {i}: {} on {threads} threads, {} on one", got[i], want[i]);
            }
        }
    }
    want
}
