//! Quantiles of measured values. Must not know: what was measured.

/// The median; the upper of two middle values. `values` must not be empty.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which a fraction `q` of all lies, one of `values`, which must not be empty.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() as f64 * q) as usize).min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!((median(&values), quantile(&values, 0.99), quantile(&values, 0.0)), (3.0, 5.0, 1.0));
        assert_eq!(median(&[1.0, 2.0]), 2.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
    }
}
