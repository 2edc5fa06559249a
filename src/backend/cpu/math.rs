//! `exp` and `ln` in f32, the same bits on every machine: only additions, multiplications and fused
//! multiply-adds, never the libm of the node. `exp` has no branch, so a loop over it vectorises.
//!
//! GELU needs no tanh: `(1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))`.

/// Largest error of [`exp`] in units in the last place, tested over a dense sweep (subnormal results
/// included).
#[cfg(test)]
pub const EXP_MAX_ULP: f64 = 1.1;

/// `e^x`. 0 below about -103.97, infinity above about 88.72, NaN for NaN.
///
/// Cody and Waite's reduction `x = n ln 2 + r`, then the polynomial of Cephes `expf` on `|r| <= ln 2 / 2`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // ln 2 in two parts; with fused multiply-adds `x - n * LN2_HI` is exact.
    const LN2_HI: f32 = std::f32::consts::LN_2;
    const LN2_LO: f32 = -1.904_654_3e-9;
    // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Written so that NaN stays NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let n_float = rounded - ROUND;
    let r = (-n_float).mul_add(LN2_LO, (-n_float).mul_add(LN2_HI, x));
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    // 2^n as two factors: n reaches -150 and 128, neither of which is the exponent of one normal number.
    let half = n >> 1;
    let pow2 = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    p * pow2(half) * pow2(n.wrapping_sub(half))
}

/// Natural logarithm within 1 ulp, by crate `libm` (plain Rust, not the library of the node); one call per
/// row.
pub fn ln(x: f32) -> f32 {
    libm::logf(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of `got` from `want` in units in the last place of an f32 of that size.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = want.abs().max(f32::MIN_POSITIVE as f64).log2().floor() as i32;
        (got as f64 - want).abs() / 2f64.powi(exponent - 23)
    }

    #[test]
    fn exp_is_within_its_stated_error_over_its_whole_range() {
        let (mut worst, mut at) = (0.0, 0.0);
        let mut x = -104.0f32;
        let mut check = |x: f32| {
            let error = ulps(exp(x), (x as f64).exp());
            if error > worst {
                (worst, at) = (error, x);
            }
        };
        while x < 88.72 {
            check(x);
            x += 7.3e-5;
        }
        for i in 0..200_000 {
            check((i as f32 - 100_000.0) * 1.1e-5);
            check((i as f32 - 100_000.0) * 1.1e-12);
        }
        assert!(worst <= EXP_MAX_ULP, "exp({at}) is {worst} ulp off");
    }

    #[test]
    fn exp_of_the_odd_ones() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(-104.0), 0.0);
        assert_eq!(exp(-103.0), (-103.0f64).exp() as f32, "subnormal");
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_one_ulp() {
        for i in 1..100_000 {
            let x = i as f32 * 0.731;
            let want = (x as f64).ln();
            assert!(ulps(ln(x), want) <= 1.0, "ln({x}) = {} against {want}", ln(x));
        }
    }
}
