//! The ranks as a grid with named dimensions. Today only `shard` is larger than one in a run; hybrid
//! sharding, tensor and sequence parallelism add extents, not code in `zero/`.
//!
//! Pure: a rank's coordinates, the colour and key that split a communicator, and which ranks share a node.
//! The world rank is seen by launch, logging and cli alone.

/// A dimension of the mesh, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// Whole copies of the sharded state.
    Replicate,
    /// Slices of each parameter (ZeRO).
    Shard,
    /// Sequence parallelism.
    Sequence,
    /// Tensor parallelism; innermost, so that its ranks are neighbours.
    Tensor,
}

impl Dim {
    /// All dimensions, outermost first.
    pub const ALL: [Dim; 4] = [Dim::Replicate, Dim::Shard, Dim::Sequence, Dim::Tensor];

    /// The name in plans and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Dim::Replicate => "replicate",
            Dim::Shard => "shard",
            Dim::Sequence => "sequence",
            Dim::Tensor => "tensor",
        }
    }
}

/// Extents of every dimension; their product is the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    extents: [usize; 4],
}

impl Mesh {
    /// All ranks in one shard group.
    pub fn sharded(world_size: usize) -> Self {
        Mesh { extents: [1, world_size, 1, 1] }
    }

    /// `replicate` shard groups of `shard` ranks each.
    pub fn replicated(replicate: usize, shard: usize) -> Self {
        Mesh { extents: [replicate, shard, 1, 1] }
    }

    /// Ranks along `dim`.
    pub fn extent(&self, dim: Dim) -> usize {
        self.extents[dim as usize]
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.extents.iter().product()
    }

    /// Coordinate of a world rank along `dim`.
    pub fn coordinate(&self, world_rank: usize, dim: Dim) -> usize {
        let inner: usize = self.extents[dim as usize + 1..].iter().product();
        world_rank / inner % self.extent(dim)
    }

    /// Colour of the group of ranks that differ along `dim` only; equal for its members, different between
    /// groups.
    pub fn color(&self, world_rank: usize, dim: Dim) -> usize {
        let inner: usize = self.extents[dim as usize + 1..].iter().product();
        world_rank - self.coordinate(world_rank, dim) * inner
    }
}

/// Ranks of each node, by the order of their lowest rank; the r-th host is that of rank r.
pub fn ranks_by_host<'a>(host_of_rank: impl Iterator<Item = &'a str>) -> Vec<(&'a str, Vec<usize>)> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, host) in host_of_rank.enumerate() {
        match hosts.iter_mut().find(|(known, _)| *known == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => hosts.push((host, vec![rank])),
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_grouped_wherever_their_ranks_are() {
        assert_eq!(ranks_by_host(["a", "b", "a"].into_iter()), [("a", vec![0, 2]), ("b", vec![1])]);
    }

    #[test]
    fn two_shard_groups_of_three_have_their_own_colours_and_orders() {
        let mesh = Mesh::replicated(2, 3);
        assert_eq!(mesh.world_size(), 6);
        let colors: Vec<_> = (0..6).map(|r| mesh.color(r, Dim::Shard)).collect();
        assert_eq!(colors, [0, 0, 0, 3, 3, 3]);
        assert_eq!((0..6).map(|r| mesh.coordinate(r, Dim::Shard)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!((0..6).map(|r| mesh.color(r, Dim::Replicate)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }
}
