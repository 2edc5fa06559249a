//! [`Element`]: the types a kernel may take as numbers, f32 or bf16. Kernels are compiled for both, load to
//! f32, compute in f32 and round once on store.
//!
//! Must not know: views, operations.

use crate::dtype::DType;
use bytemuck::Pod;
use half::bf16;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// A stored number.
pub trait Element: sealed::Sealed + Pod + Send + Sync {
    /// Its type at run time.
    const DTYPE: DType;

    /// Its value: exact.
    fn load(self) -> f32;

    /// The nearest number of this type, ties to even; too large a number becomes infinity, NaN stays NaN.
    fn store(x: f32) -> Self;

    /// The nearest bf16: itself, or as [`Element::store`] rounds.
    fn to_bf16(self) -> bf16;

    /// The slice itself where it holds f32.
    fn as_f32s(xs: &[Self]) -> Option<&[f32]>;

    /// The slice itself where it holds f32.
    fn as_f32s_mut(xs: &mut [Self]) -> Option<&mut [f32]>;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        <bf16 as Element>::store(self)
    }

    fn as_f32s(xs: &[Self]) -> Option<&[f32]> {
        Some(xs)
    }

    fn as_f32s_mut(xs: &mut [Self]) -> Option<&mut [f32]> {
        Some(xs)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Without a branch, so that a loop over it vectorises. Subnormals are rounded like all others.
    #[inline(always)]
    fn store(x: f32) -> Self {
        let bits = x.to_bits();
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // The quiet bit: a NaN whose payload lies in the lower half must not become infinity.
        let nan = (bits >> 16) | 0x40;
        bf16::from_bits(if x.is_nan() { nan } else { nearest } as u16)
    }

    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        self
    }

    fn as_f32s(_: &[Self]) -> Option<&[f32]> {
        None
    }

    fn as_f32s_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(x: f32) -> u16 {
        <bf16 as Element>::store(x).to_bits()
    }

    #[test]
    fn every_bf16_comes_back_from_f32_as_it_was() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            // A signalling NaN comes back quiet.
            let want = if x.is_nan() { bits | 0x40 } else { bits };
            assert_eq!(stored(x.load()), want, "{bits:#06x}");
        }
    }

    #[test]
    fn ties_go_to_even_and_everything_else_to_the_nearest() {
        for low in (0..=0xfffeu16).step_by(2).filter(|&low| bf16::from_bits(low + 1).is_finite()) {
            // Around every even number of either sign, subnormals and zeros included.
            let middle = (u32::from(low) << 16) + 0x8000;
            assert_eq!(stored(f32::from_bits(middle - 1)), low, "below the middle above {low:#06x}");
            assert_eq!(stored(f32::from_bits(middle)), low, "the tie above {low:#06x}");
            assert_eq!(stored(f32::from_bits(middle + 1)), low + 1, "above the middle above {low:#06x}");
            let next = middle + 0x1_0000;
            assert_eq!(stored(f32::from_bits(next)), low + 2, "the tie above {:#06x}", low + 1);
        }
    }

    #[test]
    fn nan_stays_nan_and_infinity_infinity() {
        for payload in [1u32, 0x7fff, 0x8000, 0xffff, 0x1_0000, 0x7f_ffff] {
            for sign in [0, 0x8000_0000] {
                let got = <bf16 as Element>::store(f32::from_bits(sign | 0x7f80_0000 | payload));
                assert!(got.is_nan() && got.is_sign_negative() == (sign != 0), "{payload:#x}");
            }
        }
        assert_eq!(stored(f32::INFINITY), 0x7f80);
        assert_eq!(stored(f32::NEG_INFINITY), 0xff80);
        // The largest f32 is nearer to 2^128 than to the largest bf16.
        assert_eq!(stored(f32::MAX), 0x7f80);
        assert_eq!(stored(f32::from_bits(0x7f7f_7fff)), 0x7f7f);
    }

    #[test]
    fn subnormals_are_not_flushed() {
        assert_eq!(stored(f32::from_bits(0x0000_8000)), 0, "half the smallest bf16, a tie to even");
        assert_eq!(stored(f32::from_bits(0x0000_8001)), 1);
        assert_eq!(stored(f32::from_bits(0x8001_8000)), 0x8002);
        assert_eq!(bf16::from_bits(1).load(), 2f32.powi(-133));
    }
}
