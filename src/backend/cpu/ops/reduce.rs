//! Sums over a whole slice. Must not know: views.

use crate::backend::cpu::CpuDevice;
use crate::exact_sum::ExactSum;
use rayon::prelude::*;

/// Elements of one task.
const TASK_NUMEL: usize = 64 * 1024;

/// In the order of the elements, on the calling thread: for losses, of which there are few.
pub fn sum(inp: &[f32]) -> f64 {
    inp.iter().map(|&x| x as f64).sum()
}

/// Exact, so the order in which tasks end is free.
pub fn sum_of_squares(device: &CpuDevice, inp: &[f32]) -> ExactSum {
    let merged = |mut a: ExactSum, b: ExactSum| {
        a.merge(&b);
        a
    };
    match &device.pool {
        Some(pool) => {
            pool.install(|| inp.par_chunks(TASK_NUMEL).map(ExactSum::of_squares).reduce(ExactSum::default, merged))
        }
        None => inp.chunks(TASK_NUMEL).map(ExactSum::of_squares).fold(ExactSum::default(), merged),
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Ops;
    use crate::backend::cpu::host::test_memory::buf_f32;
    use crate::backend::cpu::ops::test_support::*;
    use crate::exact_sum::ExactSum;

    #[test]
    fn sums_of_squares_are_the_exact_sum_on_any_number_of_threads() {
        for n in [0, 1, 1000, 200_003] {
            let xs = random(n, 1);
            let want = ExactSum::of_squares(&xs).to_f64();
            for threads in [1, 2, 3] {
                let got = device(threads).sum_of_squares(buf_f32(&xs).view()).to_f64();
                assert_eq!(got.to_bits(), want.to_bits(), "{n} elements on {threads} threads");
            }
        }
        assert!(device(2).sum_of_squares(buf_f32(&vec![f32::NAN; 100_000]).view()).to_f64().is_nan());
    }

    #[test]
    fn sum_adds_in_f64_in_order() {
        assert_eq!(device(2).sum(buf_f32(&[]).view()), 0.0);
        assert_eq!(device(2).sum(buf_f32(&[1e8, 1.0, -1e8, 0.5]).view()), 1.5);
    }
}
