//! A model of about a given parameter count, for everything that depends on shapes: activations, time,
//! padding.
//!
//! What depends on the count alone (bytes at rest, bytes communicated) is reported for the exact count.

use crate::error::{Error, Result};
use serde::Serialize;

/// Width of a head.
const D_HEAD: usize = 64;
/// Width over depth, about that of GPT-3 from 6.7 to 175 billion parameters (arXiv:2005.14165, table 2.1).
const ASPECT: f64 = 128.0;
/// Maximum depth.
const MAX_LAYERS: usize = 4096;

/// Sizes of a GPT-2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Blocks (L).
    pub n_layer: usize,
    /// Heads, of 64 channels each.
    pub n_head: usize,
    /// Width (C).
    pub d_model: usize,
}

/// The rule, as text.
pub const RULE: &str = "GPT-2's architecture with heads of 64: the depth at which the width would be 128 \
                        times the depth, then the nearest width";

/// Parameters of a GPT-2 with a tied head.
pub fn numel(shape: Shape, vocab_size: usize, seq_len: usize) -> u64 {
    let (l, c) = (shape.n_layer as u64, shape.d_model as u64);
    (vocab_size + seq_len) as u64 * c + l * (12 * c * c + 13 * c) + 2 * c
}

/// The shape for `count` parameters.
///
/// # Errors
/// The smallest of these models is larger.
pub fn of_count(count: u64, vocab_size: usize, seq_len: usize) -> Result<Shape> {
    let depth = (count as f64 / (12.0 * ASPECT * ASPECT)).cbrt().round();
    let n_layer = (depth as usize).clamp(1, MAX_LAYERS);
    let of_heads = |n_head: usize| Shape { n_layer, n_head, d_model: n_head * D_HEAD };
    let numel = |n_head: usize| numel(of_heads(n_head), vocab_size, seq_len);
    let smallest = numel(1);
    if count * 2 < smallest {
        return Err(Error::Input(format!(
            "--params {count}: the smallest model of {vocab_size} tokens has {smallest}; lower \
             model.vocab_size or model.seq_len for fewer"
        )));
    }
    // The number of heads at which the count is exceeded; it or its predecessor is the nearest.
    let (mut fits, mut passes) = (1, 2);
    while numel(passes) <= count {
        (fits, passes) = (passes, passes * 2);
    }
    while passes - fits > 1 {
        let middle = fits.midpoint(passes);
        if numel(middle) <= count { fits = middle } else { passes = middle }
    }
    let nearest = if count.abs_diff(numel(fits)) <= count.abs_diff(numel(passes)) { fits } else { passes };
    Ok(of_heads(nearest))
}

/// `7.5B`, `124M`, `1.5e9` or `1557611200` parameters.
///
/// # Errors
/// As text: the syntax of a count.
pub fn parse_count(text: &str) -> std::result::Result<u64, String> {
    let text = text.trim().replace('_', "");
    let (digits, factor) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 1e3),
        Some('M') => (&text[..text.len() - 1], 1e6),
        Some('B' | 'G') => (&text[..text.len() - 1], 1e9),
        Some('T') => (&text[..text.len() - 1], 1e12),
        _ => (&text[..], 1.0),
    };
    let wants = || "a number of parameters such as 7.5B, 124M or 1557611200, up to 16T".to_owned();
    let count = digits.parse::<f64>().map_err(|_| wants())? * factor;
    if !(1.0..=16e12).contains(&count) {
        return Err(wants());
    }
    Ok(count.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_are_read_with_units() {
        for (text, count) in
            [("7.5B", 7_500_000_000), ("124m", 124_000_000), ("1_000", 1000), ("1.5e9", 1_500_000_000)]
        {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for text in ["", "B", "-1B", "0", "many", "17T", "nan", "inf"] {
            assert!(parse_count(text).unwrap_err().contains("7.5B"), "{text}");
        }
    }

    #[test]
    fn too_few_parameters_are_refused_with_what_would_do() {
        let said = of_count(1_000_000, 50257, 1024).unwrap_err().to_string();
        assert!(
            said.contains("the smallest model of 50257 tokens has") && said.contains("model.vocab_size"),
            "{said}"
        );
        assert_eq!(of_count(1_000_000, 256, 1024).unwrap().n_layer, 2);
    }

    proptest! {
        #[test]
        fn shapes_come_within_half_a_step_of_width(exponent in 8.0f64..13.0) {
            let count = 10f64.powf(exponent) as u64;
            let shape = of_count(count, 50257, 1024).unwrap();
            let of_heads =
                |n_head: usize| numel(Shape { n_head, d_model: 64 * n_head, ..shape }, 50257, 1024);
            let error = of_heads(shape.n_head).abs_diff(count);
            prop_assert!(error <= of_heads(shape.n_head + 1).abs_diff(count));
            prop_assert!(shape.n_head == 1 || error <= of_heads(shape.n_head - 1).abs_diff(count));
            prop_assert!((error as f64) < 0.08 * count as f64, "{error} of {count}: {shape:?}");
        }
    }
}
