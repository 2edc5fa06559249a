//! How one parameter is sharded: flattened, padded to a multiple of N, N equal contiguous slices.
//!
//! Slices depend only on the parameter and N, never on units or buckets (storage rule 1).

use std::ops::Range;

/// The partition of one parameter over the shard group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Elements of the parameter.
    pub numel: usize,
    /// Ranks in the shard group (N).
    pub world_size: usize,
}

impl Partition {
    /// Partitions `numel` elements over `world_size` ranks.
    pub fn new(numel: usize, world_size: usize) -> Self {
        assert!(world_size > 0, "a shard group has at least one rank");
        Partition { numel, world_size }
    }

    /// Elements of every rank's slice, padding included: `s = ceil(numel / N)`.
    pub fn shard_numel(&self) -> usize {
        self.numel.div_ceil(self.world_size)
    }

    /// Elements of the gathered parameter, padding included: `s * N`.
    pub fn padded_numel(&self) -> usize {
        self.shard_numel() * self.world_size
    }

    /// Number of ranks whose slice is empty: the last ones.
    pub fn n_empty(&self) -> usize {
        self.world_size - self.numel.div_ceil(self.shard_numel().max(1))
    }

    /// Flat range that `rank` owns, without padding; may be empty.
    pub fn shard_range(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        let s = self.shard_numel();
        (rank * s).min(self.numel)..((rank + 1) * s).min(self.numel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fewer_elements_than_ranks_leaves_empty_slices() {
        let p = Partition::new(3, 5);
        assert_eq!(p.shard_numel(), 1);
        let ranges: Vec<_> = (0..5).map(|r| p.shard_range(r)).collect();
        assert_eq!(ranges, [0..1, 1..2, 2..3, 3..3, 3..3]);
    }

    proptest! {
        #[test]
        fn empty_slices_are_counted_as_they_are(numel in 0usize..200, world_size in 1usize..60) {
            let p = Partition::new(numel, world_size);
            prop_assert_eq!(p.n_empty(), (0..world_size).filter(|&r| p.shard_range(r).is_empty()).count());
        }
    }

    #[test]
    fn a_slice_may_be_cut_short_before_the_last_rank() {
        // ceil(7/5) = 2: ranks 0..3 hold 2, 2, 2, 1 and rank 4 nothing.
        let p = Partition::new(7, 5);
        assert_eq!((0..5).map(|r| p.shard_range(r).len()).collect::<Vec<_>>(), [2, 2, 2, 1, 0]);
    }

    proptest! {
        #[test]
        fn slices_cover_every_element_once_in_order(numel in 0usize..5000, n in 1usize..70) {
            let p = Partition::new(numel, n);
            let mut next = 0;
            for r in 0..n {
                let range = p.shard_range(r);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() <= p.shard_numel());
                next = range.end;
            }
            prop_assert_eq!(next, numel);
            prop_assert!(p.padded_numel() >= numel && p.padded_numel() < numel + n);
        }
    }
}
