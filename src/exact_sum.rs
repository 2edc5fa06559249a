//! An exact sum of squares of f32 numbers: the same value for every order and every grouping of the addends.
//!
//! The gradient norm requires it (rule 8): ranks add up different slices, so any intermediate rounding would
//! depend on the rank count. A square of an f32 is `m^2 * 2^(2e)` with a 24-bit integer `m`, so all squares
//! fit one fixed-point number of 640 bits; it is stored as 32-bit digits in i64, which leaves room for two
//! billion deferred carries and lets ranks add digits with an ordinary integer all-reduce.
//!
//! Must not know: ranks, buffers.

/// 32-bit digits of the fixed-point number. Digit 0 has weight 2^(2 * MIN_EXP).
pub const DIGITS: usize = 20;

/// Number of bin sets that neighbouring addends are distributed over.
const WAYS: usize = 4;

/// Exponent of the last bit of the smallest subnormal f32.
const MIN_EXP: i32 = -149;

/// An exact, mergeable sum of squares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactSum {
    /// Digits, least significant first; carries may be pending in each.
    digits: [i64; DIGITS],
    /// Addends that were NaN or infinite.
    non_finite: i64,
}

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum { digits: [0; DIGITS], non_finite: 0 }
    }
}

impl ExactSum {
    /// The exact sum of the squares of `xs`.
    pub fn of_squares(xs: &[f32]) -> Self {
        // One integer bin per exponent: m^2 < 2^48, so a u64 bin holds 2^16 squares and a u128 bin all that
        // fit memory.
        let mut bins = [0u128; 256];
        for chunk in xs.chunks(WAYS << 16) {
            // Neighbours have the same exponent more often than not: they use different bin sets in turn, so
            // that an addition need not wait for the previous one.
            let mut ways = [[0u64; 256]; WAYS];
            let (groups, rest) = chunk.as_chunks::<WAYS>();
            let mut add = |way: usize, x: f32| {
                let (exponent, square) = exponent_and_square(x);
                ways[way][exponent] += square;
            };
            for group in groups {
                (0..WAYS).for_each(|way| add(way, group[way]));
            }
            rest.iter().enumerate().for_each(|(way, &x)| add(way, x));
            for way in &ways {
                bins.iter_mut().zip(way).for_each(|(bin, &squares)| *bin += u128::from(squares));
            }
        }
        Self::of_bins(&bins)
    }

    /// The sum of `bins[e] * 2^(2 * MIN_EXP + 2 * max(e, 1) - 2)`: squared mantissas, hidden bit included, by
    /// exponent field.
    pub fn of_bins(bins: &[u128; 256]) -> Self {
        let mut sum = ExactSum::default();
        if bins[255] != 0 {
            sum.non_finite = 1; // infinities have a hidden bit here, so their bin is never zero
        }
        for (exponent, &bin) in bins.iter().enumerate().take(255) {
            if bin != 0 {
                // Exponent fields 0 and 1 share the scale of the subnormals.
                sum.add_shifted(bin, 2 * exponent.saturating_sub(1));
            }
        }
        sum
    }

    /// Adds `value * 2^(2 * MIN_EXP + shift)`.
    fn add_shifted(&mut self, value: u128, shift: usize) {
        let (digit, bit) = (shift / 32, shift % 32);
        let (low, high) = (value << bit, if bit == 0 { 0 } else { value >> (128 - bit) });
        for i in 0..4 {
            self.add_digit(digit + i, ((low >> (32 * i)) & 0xffff_ffff) as i64);
        }
        self.add_digit(digit + 4, high as i64);
    }

    fn add_digit(&mut self, index: usize, value: i64) {
        if value != 0 {
            self.digits[index] += value;
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        for (a, b) in self.digits.iter_mut().zip(other.digits) {
            *a += b;
        }
        self.non_finite += other.non_finite;
        self.carry();
    }

    fn carry(&mut self) {
        for i in 0..DIGITS - 1 {
            self.digits[i + 1] += self.digits[i] >> 32;
            self.digits[i] &= 0xffff_ffff;
        }
    }

    /// The numbers that ranks add with an integer all-reduce.
    pub fn to_words(&self) -> [i64; DIGITS + 1] {
        let mut carried = self.clone();
        carried.carry();
        let mut words = [0; DIGITS + 1];
        words[..DIGITS].copy_from_slice(&carried.digits);
        words[DIGITS] = carried.non_finite;
        words
    }

    /// The sum that the added words represent.
    pub fn from_words(words: &[i64; DIGITS + 1]) -> Self {
        let mut sum =
            ExactSum { digits: words[..DIGITS].try_into().expect("DIGITS words"), non_finite: words[DIGITS] };
        sum.carry();
        sum
    }

    /// The sum rounded once to the nearest f64 (ties to even); NaN if any addend was not finite.
    pub fn to_f64(&self) -> f64 {
        if self.non_finite != 0 {
            return f64::NAN;
        }
        let mut carried = self.clone();
        carried.carry();
        let d = &carried.digits;
        let Some(top) = d.iter().rposition(|&x| x != 0) else { return 0.0 };
        // The leading 96 bits or so exactly, everything below folded into a sticky bit: one rounding in the
        // u128 cast.
        let mut lead: u128 = 0;
        for i in (top.saturating_sub(3)..=top).rev() {
            lead = (lead << 32) | d[i] as u128;
        }
        let below = top.saturating_sub(3);
        if d[..below].iter().any(|&x| x != 0) {
            lead |= 1;
        }
        scale_by_power_of_two(lead as f64, 2 * MIN_EXP + 32 * below as i32)
    }
}

/// The exponent field of `x` and the square of its mantissa, hidden bit included.
#[inline(always)]
fn exponent_and_square(x: f32) -> (usize, u64) {
    let bits = x.to_bits();
    let exponent = (bits >> 23) & 0xff;
    let hidden = u32::from(exponent != 0) << 23;
    let mantissa = u64::from((bits & 0x7f_ffff) | hidden);
    (exponent as usize, mantissa * mantissa)
}

/// `x * 2^exponent`, exact for every sum of f32 squares (they lie well inside the normal range of f64).
fn scale_by_power_of_two(x: f64, exponent: i32) -> f64 {
    let half = exponent / 2;
    let pow2 = |e: i32| f64::from_bits(((1023 + e) as u64) << 52);
    x * pow2(half) * pow2(exponent - half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_integers_are_summed_exactly() {
        assert_eq!(ExactSum::of_squares(&[3.0, -4.0, 0.0]).to_f64(), 25.0);
        assert_eq!(ExactSum::of_squares(&[]).to_f64(), 0.0);
    }

    #[test]
    fn a_tiny_addend_is_not_lost_beside_a_huge_one_and_rounding_happens_once() {
        let sum = ExactSum::of_squares(&[1e18, 1e-18, 1.5]);
        let expected = (1e18f32 as f64) * (1e18f32 as f64);
        assert_eq!(sum.to_f64(), expected);
        let mut without = ExactSum::of_squares(&[1e-18]);
        without.merge(&ExactSum::of_squares(&[1.5]));
        assert!(without.to_f64() > 2.25 - 1e-12 && without.to_f64() <= 2.25 + f64::EPSILON * 4.0);
    }

    #[test]
    fn extremes_of_f32_are_exact() {
        let smallest = f32::from_bits(1);
        assert_eq!(ExactSum::of_squares(&[smallest]).to_f64(), (smallest as f64) * (smallest as f64));
        assert_eq!(ExactSum::of_squares(&[f32::MAX]).to_f64(), (f32::MAX as f64) * (f32::MAX as f64));
        assert_eq!(ExactSum::of_squares(&[f32::MIN_POSITIVE]).to_f64(), (f32::MIN_POSITIVE as f64).powi(2));
    }

    #[test]
    fn any_split_and_any_order_give_the_same_bits() {
        let xs: Vec<f32> =
            (0..5000).map(|i| ((i * 7919 % 5003) as f32 - 2500.0) * 1.37e-3f32.powi(i % 7)).collect();
        let whole = ExactSum::of_squares(&xs).to_f64();
        for parts in [2, 3, 5, 7, 999] {
            let mut words = [0i64; DIGITS + 1];
            for part in xs.chunks(xs.len().div_ceil(parts)).rev() {
                for (w, x) in words.iter_mut().zip(ExactSum::of_squares(part).to_words()) {
                    *w += x;
                }
            }
            assert_eq!(ExactSum::from_words(&words).to_f64().to_bits(), whole.to_bits());
        }
        let plain: f64 = xs.iter().map(|&x| (x as f64) * (x as f64)).sum();
        assert!((whole - plain).abs() <= 1e-12 * plain, "{whole} against {plain}");
    }

    #[test]
    fn full_bins_of_the_largest_mantissa_do_not_overflow() {
        let x = 2.0f32.next_down();
        let n = 2 * (WAYS << 16) + 3;
        // 2^-23 (2^24 - 1) squared has 48 bits, n has 20: rounded once at the end, like the product in f64.
        assert_eq!(ExactSum::of_squares(&vec![x; n]).to_f64(), n as f64 * (x as f64 * x as f64));
    }

    #[test]
    fn nan_and_infinity_show() {
        assert!(ExactSum::of_squares(&[1.0, f32::NAN]).to_f64().is_nan());
        assert!(ExactSum::of_squares(&[f32::INFINITY]).to_f64().is_nan());
    }
}
