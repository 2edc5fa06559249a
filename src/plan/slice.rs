//! The part of a parameter that one rank owns: what a checkpoint file stores, a restore reads and a save
//! writes.
//!
//! Must not know: values, files, who asks. How many elements each rank gets is `partition.rs`'s.

use super::partition::Partition;
use std::ops::Range;

/// A contiguous part of one parameter, in elements of the parameter flattened in row-major order. Padding is
/// never part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice<'a> {
    /// Name of the parameter.
    pub param: &'a str,
    /// Shape of the whole parameter.
    pub global_shape: &'a [usize],
    /// First element.
    pub start: usize,
    /// One past the last element; `start == end` is a normal, empty slice.
    pub end: usize,
}

impl Slice<'_> {
    /// Elements in it.
    pub fn numel(&self) -> usize {
        self.end - self.start
    }

    /// Elements of the whole parameter.
    pub fn global_numel(&self) -> usize {
        self.global_shape.iter().product()
    }

    /// Its elements.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// The slice of each parameter (name, shape) that `rank` of `world_size` ranks owns, empty ones included, in
/// the order of the parameters.
pub fn owned_slices<'a>(
    params: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    world_size: usize,
    rank: usize,
) -> Vec<Slice<'a>> {
    let owned = |(param, global_shape): (&'a str, &'a [usize])| {
        let numel = global_shape.iter().product();
        let Range { start, end } = Partition::new(numel, world_size).shard_range(rank);
        Slice { param, global_shape, start, end }
    };
    params.into_iter().map(owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_own_every_element_once_and_the_last_ones_may_own_nothing() {
        let params: [(&str, &[usize]); 3] = [("scale", &[]), ("bias", &[3]), ("weight", &[7, 11])];
        let owned: Vec<_> = (0..5).map(|rank| owned_slices(params, 5, rank)).collect();
        let ranges = |i: usize| owned.iter().map(|slices| slices[i].range()).collect::<Vec<_>>();
        assert_eq!(ranges(0), [0..1, 1..1, 1..1, 1..1, 1..1]);
        assert_eq!(ranges(1), [0..1, 1..2, 2..3, 3..3, 3..3]);
        assert_eq!(ranges(2), [0..16, 16..32, 32..48, 48..64, 64..77]);
        let Slice { param, global_shape, .. } = owned[3][2];
        assert_eq!((param, global_shape, owned[3][2].global_numel()), ("weight", &[7, 11][..], 77));
        assert_eq!(owned.iter().map(|slices| slices[2].numel()).sum::<usize>(), 77);
    }
}
