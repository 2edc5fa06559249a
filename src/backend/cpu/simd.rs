//! Which instruction set kernels run on; conversions and row sums whose bits do not depend on it.
//!
//! [Note: lanes] A row sum is kept in 16 lanes: element `i` goes to lane `i % 16`, and the lanes are folded
//! in one fixed tree. A vector of any width holds the same 16 lanes, and the tail of a row lands in lanes
//! like the rest, so every instruction set gives the same bits. `f32::mul_add` is a fused multiply-add
//! everywhere: an instruction where there is one, an exact (slow) emulation where there is none.
//!
//! Must not know: views, threads, operations.

use super::element::Element;

/// Compiles a function once per instruction set and picks one at run time. Helpers called inside must be
/// `#[inline(always)]`, or they are compiled for the baseline.
macro_rules! simd {
    ($($function:tt)*) => {
        #[multiversion::multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
            "x86_64+avx2+fma",
            "aarch64+neon",
        ))]
        $($function)*
    };
}
pub(super) use simd;

/// The instruction set that kernels dispatch to on this machine: `avx512f+bf16`, `avx512f`, `avx2+fma`,
/// `neon` or `portable`.
pub fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512) {
            (true, true) if has_bf16_dot() => "avx512f+bf16",
            (true, true) => "avx512f",
            (true, false) => "avx2+fma",
            (false, _) => "portable",
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "neon"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "portable"
    }
}

/// Whether this processor has dot products of bf16 (AVX512_BF16).
pub fn has_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

simd! {
    /// `out = inp`, rounded to the type of `out`. Overwrites `out`.
    pub fn convert<O: Element, I: Element>(out: &mut [O], inp: &[I]) {
        for (o, x) in out.iter_mut().zip(inp) {
            *o = O::store(x.load());
        }
    }
}

/// Lanes of a row sum.
pub const LANES: usize = 16;

/// Folds lanes in a fixed tree: 16, 8, 4, 2, 1.
#[inline(always)]
pub fn fold(mut acc: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] = op(acc[i], acc[i + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// Sum of `term(x)` over a row.
#[inline(always)]
pub fn sum_map<T: Element>(xs: &[T], term: impl Fn(f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (chunks, tail) = xs.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            acc[i] += term(chunk[i].load());
        }
    }
    for (a, &x) in acc.iter_mut().zip(tail) {
        *a += term(x.load());
    }
    fold(acc, |a, b| a + b)
}

/// Replaces each `x` of a row by `f(x)` and returns their sum.
#[inline(always)]
pub fn map_in_place_and_sum(xs: &mut [f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (chunks, tail) = xs.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = f(chunk[i]);
            acc[i] += chunk[i];
        }
    }
    for (a, x) in acc.iter_mut().zip(tail) {
        *x = f(*x);
        *a += *x;
    }
    fold(acc, |a, b| a + b)
}

/// Sum of `a[i] * b[i]`, fused.
#[inline(always)]
pub fn dot<A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            acc[i] = a[i].load().mul_add(b[i].load(), acc[i]);
        }
    }
    for ((acc, &a), &b) in acc.iter_mut().zip(a_tail).zip(b_tail) {
        *acc = a.load().mul_add(b.load(), *acc);
    }
    fold(acc, |a, b| a + b)
}

/// The greatest element; NaN elements are passed over (they show in the sums that follow).
#[inline(always)]
pub fn max(xs: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut acc = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = xs.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            acc[i] = greater(acc[i], chunk[i]);
        }
    }
    for (a, &x) in acc.iter_mut().zip(tail) {
        *a = greater(*a, x);
    }
    fold(acc, greater)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_length_up_to_100_equal_the_sum_of_lanes() {
        for n in 0..100 {
            let xs: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut lanes = [0.0f32; LANES];
            for (i, x) in xs.iter().enumerate() {
                lanes[i % LANES] += x;
            }
            let want = fold(lanes, |a, b| a + b);
            assert_eq!(sum_map(&xs, |x| x).to_bits(), want.to_bits(), "n = {n}");
            assert_eq!(map_in_place_and_sum(&mut xs.clone(), |x| x).to_bits(), want.to_bits(), "n = {n}");
            assert_eq!(max(&xs), xs.iter().copied().fold(f32::NEG_INFINITY, f32::max), "n = {n}");
            let exact: f64 = xs.iter().map(|&x| x as f64 * x as f64).sum();
            assert!((dot(&xs, &xs) as f64 - exact).abs() <= 1e-6 * exact, "n = {n}");
        }
    }

    simd! {
        fn dispatched_dot(a: &[f32], b: &[f32]) -> f32 {
            dot(a, b)
        }
    }

    #[test]
    fn dispatched_and_baseline_code_give_the_same_bits() {
        let a: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.71).cos()).collect();
        assert_eq!(dispatched_dot(&a, &b).to_bits(), dot(&a, &b).to_bits());
    }
}
