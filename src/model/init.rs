//! Initial weights from a counter-based generator: element `i` of a parameter is a function of (seed, name,
//! i), so every rank count starts from the same bits.

use crate::params::{Init, ParamSpec};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// Writes the initial values of `range` of `param`. `out` has `range.len()` elements; overwritten.
pub fn fill(param: &ParamSpec, seed: u64, range: Range<usize>, out: &mut [f32]) {
    assert_eq!(out.len(), range.len());
    match param.init {
        Init::Zeros => out.fill(0.0),
        Init::Ones => out.fill(1.0),
        Init::Normal { std } => normal(seed, xxh3_64(param.name.as_bytes()), std, range, out),
    }
}

/// Normal numbers by Box and Muller, two per pair of 64-bit words. Logarithm and cosine come from a crate, so
/// that no node's libm shows.
fn normal(seed: u64, stream: u64, std: f64, range: Range<usize>, out: &mut [f32]) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    let mut pair = range.start / 2;
    rng.set_word_pos(4 * pair as u128); // a pair uses four 32-bit words
    let mut i = range.start;
    while i < range.end {
        // 53 bits, shifted off zero: u in (0, 1].
        let uniform = |word: u64| ((word >> 11) as f64 + 1.0) * (1.0 / (1u64 << 53) as f64);
        let (u1, u2) = (uniform(rng.next_u64()), uniform(rng.next_u64()));
        let radius = (-2.0 * libm::log(u1)).sqrt();
        let angle = 2.0 * std::f64::consts::PI * u2;
        let values = [radius * libm::cos(angle), radius * libm::sin(angle)];
        while i < range.end && i / 2 == pair {
            out[i - range.start] = (std * values[i % 2]) as f32;
            i += 1;
        }
        pair += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &str) -> ParamSpec {
        ParamSpec { name: name.into(), shape: vec![101, 99], init: Init::Normal { std: 0.02 }, decay: true }
    }

    #[test]
    fn any_cut_gives_the_same_elements() {
        let p = param("h.0.mlp.c_fc.weight");
        let mut whole = vec![0.0; p.numel()];
        fill(&p, 7, 0..p.numel(), &mut whole);
        for n in [2, 3, 5, 7] {
            let s = p.numel().div_ceil(n);
            for r in 0..n {
                let range = (r * s).min(p.numel())..((r + 1) * s).min(p.numel());
                let mut part = vec![0.0; range.len()];
                fill(&p, 7, range.clone(), &mut part);
                assert_eq!(part, whole[range]);
            }
        }
    }

    #[test]
    fn mean_and_deviation_are_those_asked_for_and_names_and_seeds_matter() {
        let (a, b) = (param("a"), param("b"));
        let draw = |p: &ParamSpec, seed| {
            let mut out = vec![0.0; p.numel()];
            fill(p, seed, 0..p.numel(), &mut out);
            out
        };
        let xs = draw(&a, 1);
        let n = xs.len() as f64;
        let mean = xs.iter().map(|&x| x as f64).sum::<f64>() / n;
        let var = xs.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / n;
        // Standard errors: 0.02/sqrt(n) = 2e-4 for the mean, 0.02/sqrt(2n) = 1.4e-4 for the deviation.
        assert!(mean.abs() < 1e-3 && (var.sqrt() - 0.02).abs() < 7e-4, "mean {mean}, std {}", var.sqrt());
        assert_ne!(xs, draw(&b, 1));
        assert_ne!(xs, draw(&a, 2));
    }
}
