//! Exact bytes of one collective: received by a rank, and leaving a node.
//!
//! Must not know: durations.

use crate::config::GatherRoute;

/// Placement of the ranks: node by node, all full except possibly the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Ranks (N).
    pub n: usize,
    /// Ranks of a full node (K), at most N.
    pub per_node: usize,
}

impl Layout {
    /// `n` ranks, up to `per_node` of them on a node.
    pub fn new(n: usize, per_node: usize) -> Self {
        assert!(n > 0 && per_node > 0, "{n} ranks, {per_node} on a node");
        Layout { n, per_node: per_node.min(n) }
    }

    /// Nodes, the last of which may have fewer ranks.
    pub fn n_nodes(&self) -> usize {
        self.n.div_ceil(self.per_node)
    }

    /// Ranks outside the first node.
    pub fn outside(&self) -> usize {
        self.n - self.per_node
    }
}

/// Bytes of one collective, for rank 0 and the first node, which have the most micro-batches and thus the
/// most traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Received by rank 0 from ranks of its node.
    pub from_node: u64,
    /// Received by rank 0 from ranks of other nodes.
    pub from_outside: u64,
    /// Sent by rank 0 to ranks of its node.
    pub to_node: u64,
    /// Sent by all ranks of the first node to other nodes.
    pub leaving_node: u64,
}

impl Traffic {
    /// Payload that rank 0 receives.
    pub fn received(&self) -> u64 {
        self.from_node + self.from_outside
    }
}

/// Rings: every link carries all slices but one, including the link out of each node.
fn ring(layout: Layout, slice_bytes: u64) -> Traffic {
    let passed = (layout.n as u64 - 1) * slice_bytes;
    // On one of several rings a rank receives from its node, on others from outside; in total as if from its
    // node.
    let leaving_node = if layout.outside() > 0 { passed } else { 0 };
    Traffic { from_node: passed, from_outside: 0, to_node: passed, leaving_node }
}

/// An all-gather of slices of `slice_bytes`.
pub fn all_gather(layout: Layout, route: GatherRoute, slice_bytes: u64) -> Traffic {
    let (near, far) = (layout.per_node as u64 - 1, layout.outside() as u64);
    match route {
        GatherRoute::Ring => ring(layout, slice_bytes),
        GatherRoute::Direct => Traffic {
            from_node: near * slice_bytes,
            from_outside: far * slice_bytes,
            to_node: near * slice_bytes,
            leaving_node: layout.per_node as u64 * far * slice_bytes,
        },
    }
}

/// A reduction of the gradients of ranks `0..contributors` into slices of `slice_bytes`: as an exchange,
/// after which the owners add in a fixed order (rule 8), or on rings that add on the way.
pub fn reduce_scatter(layout: Layout, exchange: bool, contributors: usize, slice_bytes: u64) -> Traffic {
    if !exchange {
        return ring(layout, slice_bytes);
    }
    let (near, far) = (layout.per_node as u64 - 1, layout.outside() as u64);
    let here = contributors.min(layout.per_node) as u64;
    Traffic {
        from_node: here.saturating_sub(1) * slice_bytes,
        from_outside: (contributors as u64 - here) * slice_bytes,
        to_node: near * slice_bytes,
        leaving_node: here * far * slice_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_eight_sends_eight_times_a_rings_bytes_in_an_exchange() {
        let layout = Layout::new(64, 8);
        assert_eq!(all_gather(layout, GatherRoute::Ring, 100).leaving_node, 6300);
        assert_eq!(all_gather(layout, GatherRoute::Direct, 100).leaving_node, 8 * 56 * 100);
        assert_eq!(reduce_scatter(layout, true, 64, 100).leaving_node, 8 * 56 * 100);
        // Three ranks with a gradient: all on the first node.
        let few = reduce_scatter(layout, true, 3, 100);
        assert_eq!((few.received(), few.leaving_node), (200, 3 * 56 * 100));
    }

    #[test]
    fn what_a_rank_receives_is_the_same_on_any_route_and_nothing_leaves_the_only_node() {
        for (n, k) in [(1, 1), (3, 2), (7, 3), (7, 7), (4096, 8), (5, 64)] {
            let layout = Layout::new(n, k);
            for route in [GatherRoute::Ring, GatherRoute::Direct] {
                let traffic = all_gather(layout, route, 12);
                assert_eq!(traffic.received(), (n as u64 - 1) * 12, "{n} {k} {route}");
                assert_eq!(traffic.leaving_node > 0, n > k, "{n} {k} {route}");
            }
            for exchange in [false, true] {
                assert_eq!(reduce_scatter(layout, exchange, n, 12).received(), (n as u64 - 1) * 12);
            }
        }
        assert_eq!(Layout::new(7, 3).n_nodes(), 3);
    }
}
