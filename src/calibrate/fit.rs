//! Lines through measured times: `t = a x + b y + c z` with no coefficient below 0, the squares of relative
//! errors least. Pure.

/// Coefficients of up to three features and how far off they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Of each feature.
    pub coefficients: [f64; 3],
    /// Largest relative error of a sample.
    pub worst: f64,
}

/// Fits samples of features and seconds. With three features every set of them that may be 0 can be tried.
pub fn fit(samples: &[([f64; 3], f64)]) -> Fit {
    assert!(!samples.is_empty(), "nothing was measured");
    let rows: Vec<[f64; 3]> = samples.iter().map(|(x, t)| x.map(|x| x / t)).collect();
    let mut best: Option<(f64, [f64; 3])> = None;
    for used in 1u8..8 {
        let Some(coefficients) = least_squares(&rows, used) else { continue };
        if coefficients.iter().any(|c| *c < 0.0) {
            continue;
        }
        let error: f64 = rows.iter().map(|row| (dot(row, &coefficients) - 1.0).powi(2)).sum();
        if best.is_none_or(|(least, _)| error < least) {
            best = Some((error, coefficients));
        }
    }
    let (_, coefficients) = best.expect("one feature by itself always fits");
    let worst = rows.iter().map(|row| (dot(row, &coefficients) - 1.0).abs()).fold(0.0, f64::max);
    Fit { coefficients, worst }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Least squares of `rows . c = 1` over the features whose bit is set; none where they depend on each other.
fn least_squares(rows: &[[f64; 3]], used: u8) -> Option<[f64; 3]> {
    let ids: Vec<usize> = (0..3).filter(|i| used >> i & 1 == 1).collect();
    let n = ids.len();
    // Features differ by ten orders of magnitude: each is scaled to length 1.
    let length = |i: usize| rows.iter().map(|row| row[i] * row[i]).sum::<f64>().sqrt();
    let scale: Vec<f64> = ids.iter().map(|&i| length(i)).collect();
    if scale.iter().any(|s| *s <= 0.0) {
        return None;
    }
    let mut a = vec![vec![0.0; n + 1]; n];
    for row in rows {
        for (i, (&p, line)) in ids.iter().zip(&mut a).enumerate() {
            for (j, &q) in ids.iter().enumerate() {
                line[j] += row[p] * row[q] / (scale[i] * scale[j]);
            }
            line[n] += row[p] / scale[i];
        }
    }
    for i in 0..n {
        let pivot = (i..n).max_by(|&x, &y| a[x][i].abs().total_cmp(&a[y][i].abs())).expect("there is a row");
        a.swap(i, pivot);
        if a[i][i].abs() < 1e-9 {
            return None;
        }
        let (above, below) = a.split_at_mut(i + 1);
        let pivot = &above[i];
        for line in below {
            let factor = line[i] / pivot[i];
            line.iter_mut().zip(pivot).skip(i).for_each(|(x, p)| *x -= factor * p);
        }
    }
    let mut c = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| a[i][j] * c[j]).sum();
        c[i] = (a[i][n] - known) / a[i][i];
    }
    let mut coefficients = [0.0; 3];
    ids.iter().enumerate().for_each(|(i, &id)| coefficients[id] = c[i] / scale[i]);
    Some(coefficients)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_feature_that_would_be_below_0_is_left_out() {
        // Falling times: a slope below 0 fits best and is none.
        let fit = fit(&[([1.0, 1.0, 0.0], 3.0), ([1.0, 2.0, 0.0], 2.0), ([1.0, 3.0, 0.0], 1.0)]);
        assert!(
            fit.coefficients[0] > 0.0 && fit.coefficients[1..] == [0.0, 0.0] && fit.worst > 0.3,
            "{fit:?}"
        );
    }

    proptest! {
        #[test]
        fn exact_times_give_their_coefficients_back(
            a in 1e-7f64..1e-4, b in 1e-12f64..1e-9, c in 1e-11f64..1e-9,
            noise in prop::collection::vec(-0.01f64..0.01, 12)
        ) {
            let features =
                |i: usize| [1.0, (1u64 << (10 + 2 * i)) as f64, (1u64 << (20 - (i * 7) % 12)) as f64];
            let time = |x: [f64; 3]| a * x[0] + b * x[1] + c * x[2];
            let exact: Vec<_> = (0..12).map(|i| (features(i), time(features(i)))).collect();
            let found = fit(&exact);
            for (got, want) in found.coefficients.iter().zip([a, b, c]) {
                prop_assert!((got / want - 1.0).abs() < 1e-3, "{got} for {want}");
            }
            let noisy: Vec<_> = exact.iter().zip(&noise).map(|((x, t), e)| (*x, t * (1.0 + e))).collect();
            prop_assert!(fit(&noisy).worst < 0.05, "within a few times the noise");
        }
    }
}
