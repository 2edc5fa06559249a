//! The order of training samples: a keyed permutation of `[0, n)`, evaluated at one point in constant memory.
//!
//! Must not know: files, tokens, ranks.
//!
//! [Note: feistel-v1] A balanced Feistel network with eight rounds permutes `[0, 2^(2h))`, the smallest such
//! range that holds `n`; cycle walking (apply again until the result is below `n`) turns it into a
//! permutation of `[0, n)`: from a point below `n`, the cycle through that point comes back below `n`, and
//! two points never share a successor. The range is less than `4 n`, so a walk takes under four applications
//! on average. The round function is the finaliser of splitmix64 (Steele, Lea and Flood 2014); the key of an
//! epoch is `mix(mix(seed) ^ epoch)`. Any change of this is another name than `feistel-v1`, because
//! checkpoints record the name and a resume must see the same samples.

use crate::random::mix;

/// Name of the shuffled order, as checkpoints record it.
pub const SHUFFLED: &str = "feistel-v1";
/// Name of the file order, as checkpoints record it.
pub const SEQUENTIAL: &str = "sequential-v1";

const ROUNDS: u64 = 8;

/// Image of `position` in epoch `epoch` among `n` windows: a bijection of `[0, n)` for every `(seed, epoch)`.
///
/// `position` must be below `n`.
pub fn shuffled(position: u64, n: u64, seed: u64, epoch: u64) -> u64 {
    assert!(position < n, "position {position} is outside [0, {n})");
    if n == 1 {
        return 0;
    }
    let bits = u64::BITS - (n - 1).leading_zeros();
    let half_bits = bits.div_ceil(2);
    let mask = u64::MAX >> (u64::BITS - half_bits);
    let key = mix(mix(seed) ^ epoch);
    let mut x = position;
    loop {
        let (mut left, mut right) = (x >> half_bits, x & mask);
        for round in 0..ROUNDS {
            let keyed = mix(key.wrapping_add(round)) ^ right;
            (left, right) = (right, left ^ (mix(keyed) & mask));
        }
        x = (left << half_bits) | right;
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assert_bijection(n: u64, seed: u64, epoch: u64) {
        let mut seen = vec![false; n as usize];
        for position in 0..n {
            let to = shuffled(position, n, seed, epoch);
            assert!(
                !seen[to as usize],
                "n {n} seed {seed} epoch {epoch}: {to} was reached twice, again from {position}"
            );
            seen[to as usize] = true;
        }
    }

    #[test]
    fn every_small_prime_and_power_of_two_size_is_permuted_without_loss() {
        for n in [
            1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 64, 65, 97, 127, 128, 251, 256, 257, 1021, 1024, 4097,
        ] {
            for seed in [0, 1, u64::MAX] {
                for epoch in 0..3 {
                    assert_bijection(n, seed, epoch);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_size_is_permuted_without_loss(n in 1u64..3000, seed: u64, epoch: u64) {
            assert_bijection(n, seed, epoch);
        }

        #[test]
        fn huge_sizes_stay_in_range_and_are_repeatable(
            n in (1u64 << 40)..=u64::MAX, at: u64, seed: u64, epoch: u64
        ) {
            let to = shuffled(at % n, n, seed, epoch);
            prop_assert!(to < n);
            prop_assert_eq!(to, shuffled(at % n, n, seed, epoch));
        }
    }

    /// With n windows a random permutation keeps 1 of them in place on average, and neighbours rarely stay
    /// neighbours.
    #[test]
    fn the_order_looks_random_and_differs_between_epochs_and_seeds() {
        let n = 1000;
        let order = |seed, epoch| (0..n).map(|i| shuffled(i, n, seed, epoch)).collect::<Vec<_>>();
        let (a, b, c) = (order(7, 0), order(7, 1), order(8, 0));
        for (name, x, y) in [("epochs", &a, &b), ("seeds", &a, &c)] {
            let same = x.iter().zip(y).filter(|(x, y)| x == y).count();
            assert!(same < 12, "{name}: {same} of {n} positions agree");
        }
        let fixed = (0..n).filter(|&i| a[i as usize] == i).count();
        let neighbours = a.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count();
        assert!(fixed < 12 && neighbours < 16, "{fixed} fixed points, {neighbours} kept neighbours");
    }

    /// Each of the 24 permutations of four comes up in its share of epochs: chi-square with 23 degrees of
    /// freedom is below 60 but for one case in 30,000, and the seed is fixed.
    #[test]
    fn even_four_windows_come_in_every_order_equally_often() {
        let mut counts = std::collections::BTreeMap::new();
        let epochs = 24_000u64;
        for epoch in 0..epochs {
            let order: Vec<u64> = (0..4).map(|i| shuffled(i, 4, 5, epoch)).collect();
            *counts.entry(order).or_insert(0u64) += 1;
        }
        let expected = epochs as f64 / 24.0;
        let chi2: f64 = counts.values().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        assert!(counts.len() == 24 && chi2 < 60.0, "{} of 24 orders, chi2 {chi2}", counts.len());
    }

    /// Pins the named order: a change here breaks resumes and needs another name.
    #[test]
    fn feistel_v1_is_what_it_was() {
        let order: Vec<u64> = (0..10).map(|i| shuffled(i, 10, 42, 0)).collect();
        assert_eq!(order, PINNED);
        assert_eq!(shuffled(123_456_789, 1 << 40, 42, 3), PINNED_LARGE);
    }

    const PINNED: [u64; 10] = [4, 2, 9, 3, 1, 6, 8, 5, 0, 7];
    const PINNED_LARGE: u64 = 123_886_144_633;
}
