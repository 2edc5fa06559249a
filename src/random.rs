//! SplitMix64 (Steele, Lea and Flood 2014), the one source of reproducible numbers that are not model
//! weights: sample order, synthetic tokens, test operands.
//!
//! Must not know: the use of the numbers.

/// Increment of the sequence: 2^64 over the golden ratio, odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function: a bijection of u64 in which every input bit reaches every output bit.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A cheap bijection of u64, one multiplication: its outputs differ, but do not look random.
pub fn spread(x: u64) -> u64 {
    x.wrapping_mul(GAMMA)
}

/// An endless sequence of 64-bit words.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// Words `k * 2^32` onward of the sequence of seed 0: streams of fewer than 2^32 words do not overlap.
    pub fn stream(k: u64) -> Self {
        SplitMix64(spread(k << 32))
    }
}

impl Iterator for SplitMix64 {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for seed 1234567 of the reference implementation (prng.di.unimi.it/splitmix64.c).
    #[test]
    fn words_are_those_of_the_reference_implementation() {
        let words: Vec<u64> = SplitMix64::new(1_234_567).take(3).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_stream_is_a_part_of_the_sequence_of_seed_0() {
        let start = SplitMix64(GAMMA.wrapping_mul(3 << 32));
        assert_eq!(SplitMix64::stream(3).take(5).collect::<Vec<_>>(), start.take(5).collect::<Vec<_>>());
        assert_eq!(SplitMix64::stream(0).next(), SplitMix64::new(0).next());
    }
}
