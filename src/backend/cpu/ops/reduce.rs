//! Sums over a whole slice. Must not know: views.

use crate::backend::cpu::device::{CpuDevice, install};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::convert;
use crate::exact_sum::ExactSum;
use rayon::prelude::*;

/// Elements of one task.
const TASK_NUMEL: usize = 64 * 1024;

/// Elements converted to f32 at a time, on the stack.
const CONVERTED_NUMEL: usize = 16 * 1024;

/// In the order of the elements, on the calling thread: for losses, of which there are few.
pub fn sum(inp: &[f32]) -> f64 {
    inp.iter().map(|&x| x as f64).sum()
}

/// Exact, so the order in which tasks end is free.
pub fn sum_of_squares<T: Element>(device: &CpuDevice, inp: &[T]) -> ExactSum {
    let merged = |mut a: ExactSum, b: ExactSum| {
        a.merge(&b);
        a
    };
    match &device.pool {
        Some(pool) => {
            install(pool, || inp.par_chunks(TASK_NUMEL).map(of_squares).reduce(ExactSum::default, merged))
        }
        None => inp.chunks(TASK_NUMEL).map(of_squares).fold(ExactSum::default(), merged),
    }
}

/// The exact sum over one task.
fn of_squares<T: Element>(inp: &[T]) -> ExactSum {
    if let Some(inp) = T::as_f32s(inp) {
        return ExactSum::of_squares(inp);
    }
    let mut sum = ExactSum::default();
    let mut converted = [0.0f32; CONVERTED_NUMEL];
    for part in inp.chunks(CONVERTED_NUMEL) {
        let converted = &mut converted[..part.len()];
        convert(converted, part);
        sum.merge(&ExactSum::of_squares(converted));
    }
    sum
}

#[cfg(test)]
mod tests {
    use crate::backend::Device;
    use crate::backend::cpu::host::test_memory::buf_f32;
    use crate::backend::cpu::ops::test_support::*;
    use crate::exact_sum::ExactSum;

    #[test]
    fn sums_of_squares_are_the_exact_sum_on_any_number_of_threads() {
        for n in [0, 1, 1000, 200_003] {
            let xs = random(n, 1);
            let want = ExactSum::of_squares(&xs).to_f64();
            for threads in [1, 2, 3] {
                let got = device(threads).sum_of_squares([buf_f32(&xs).view()]).unwrap().to_f64();
                assert_eq!(got.to_bits(), want.to_bits(), "{n} elements on {threads} threads");
            }
        }
        assert!(
            device(2).sum_of_squares([buf_f32(&vec![f32::NAN; 100_000]).view()]).unwrap().to_f64().is_nan()
        );
    }

    #[test]
    fn sum_adds_in_f64_in_order() {
        assert_eq!(device(2).start_sum(buf_f32(&[]).view()), 0.0);
        assert_eq!(device(2).start_sum(buf_f32(&[1e8, 1.0, -1e8, 0.5]).view()), 1.5);
    }
}
