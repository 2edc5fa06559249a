//! The ordered exchange of one bucket of gradients: which rank sends which elements to which, their location
//! in the owner's staging, and the order in which the owner adds them.
//!
//! MPI, NCCL and the planned bytes follow this one description. Both ends of a pair of ranks list their
//! messages in the same order, so no tags are needed. Contributions are added in the order of ranks, which
//! within a micro-step is the order of micro-batches: one left fold, independent of the rank count (rule 8).
//!
//! Must not know: the transport, and what is skipped because a rank can read another's memory.

use super::schedule::{Bucket, Piece};
use std::ops::Range;

/// The exchange of a bucket from the view of one rank: it receives the others' contributions to its own
/// slices, and sends its contributions to theirs.
#[derive(Debug, Clone, Copy)]
pub struct OrderedExchange<'a> {
    pieces: &'a [Piece],
    /// Elements of the bucket: of one contribution to this rank's slices.
    numel: usize,
    rank: usize,
    size: usize,
    /// Ranks `0..contributors` have a gradient.
    contributors: usize,
}

/// A message between two ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Position of the parameter in the reduction's list.
    pub param: usize,
    /// Elements: of the full gradient if this rank sends, of the staging if it receives.
    pub elements: Range<usize>,
}

/// One piece of this rank's slices, and the locations of its contributions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Position of the parameter in the reduction's list.
    pub param: usize,
    /// Elements of this rank's slice, the destination of the sum.
    pub in_slice: Range<usize>,
    /// The same elements of a full gradient: this rank's own contribution, and what others send.
    pub in_full: Range<usize>,
    /// Location of the first received contribution in the staging.
    pub in_staging: Range<usize>,
    /// Elements from there to the next one.
    pub stride: usize,
}

/// Number of contributions that `rank` receives: ranks `0..contributors` have one.
pub fn n_received(rank: usize, contributors: usize) -> usize {
    contributors - usize::from(rank < contributors)
}

/// Position of a contributor in the staging: contributors in rank order, without the owner.
fn staging_index(contributor: usize, owner: usize) -> usize {
    contributor - usize::from(contributor > owner)
}

impl Part {
    /// Location of a rank's contribution in the staging of `owner`, another rank.
    pub fn staged(&self, contributor: usize, owner: usize) -> Range<usize> {
        let start = self.in_staging.start + staging_index(contributor, owner) * self.stride;
        start..start + self.in_staging.len()
    }
}

impl Bucket {
    /// The exchange of this bucket between `size` ranks, of which `0..contributors` have a gradient, from the
    /// view of `rank`.
    pub fn exchange(&self, rank: usize, size: usize, contributors: usize) -> OrderedExchange<'_> {
        assert!(rank < size && contributors <= size, "rank {rank} of {size}, {contributors} contributors");
        OrderedExchange { pieces: &self.pieces, numel: self.numel(), rank, size, contributors }
    }
}

impl<'a> OrderedExchange<'a> {
    /// The pieces of this rank's slices, in the order of the bucket.
    pub fn parts(self) -> impl Iterator<Item = Part> + use<'a> {
        let mut offset = 0;
        self.pieces.iter().map(move |piece| {
            let in_staging = offset..offset + piece.range.len();
            offset = in_staging.end;
            let (in_slice, in_full) = (piece.range.clone(), piece.in_full(self.rank));
            Part { param: piece.param, in_slice, in_full, in_staging, stride: self.numel }
        })
    }

    /// The ranks whose contributions are added, in order.
    pub fn contributors(self) -> Range<usize> {
        0..self.contributors
    }

    /// The messages this rank receives.
    pub fn receives(self) -> impl Iterator<Item = Message> + use<'a> {
        self.contributors().filter(move |&from| from != self.rank).flat_map(move |from| {
            self.parts().map(move |part| Message {
                peer: from,
                param: part.param,
                elements: part.staged(from, self.rank),
            })
        })
    }

    /// The messages this rank sends.
    pub fn sends(self) -> impl Iterator<Item = Message> + use<'a> {
        let owners = if self.rank < self.contributors { 0..self.size } else { 0..0 };
        owners.filter(move |&to| to != self.rank).flat_map(move |to| {
            self.pieces.iter().map(move |piece| Message {
                peer: to,
                param: piece.param,
                elements: piece.in_full(to),
            })
        })
    }

    /// Elements that this rank receives.
    pub fn received_numel(self) -> usize {
        n_received(self.rank, self.contributors) * self.numel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A bucket whose pieces have random places in slices of random sizes.
    fn any_bucket() -> impl Strategy<Value = Bucket> {
        let piece = (1usize..40).prop_flat_map(|shard_numel| (Just(shard_numel), 0..shard_numel));
        let piece = piece.prop_flat_map(|(n, start)| (Just(n), Just(start), start + 1..=n));
        prop::collection::vec(piece, 1..6).prop_map(|pieces| {
            let piece = |(param, (shard_numel, start, end))| Piece { param, range: start..end, shard_numel };
            Bucket { pieces: pieces.into_iter().enumerate().map(piece).collect() }
        })
    }

    /// An element of the full gradient of a rank.
    type Element = (usize, usize, usize);

    /// What lies in the staging of each rank when all messages have arrived, pair by pair in the order they
    /// are listed.
    fn exchanged(bucket: &Bucket, size: usize, contributors: usize) -> Vec<BTreeMap<usize, Element>> {
        let exchange = |rank| bucket.exchange(rank, size, contributors);
        let receive = |rank: usize| {
            let mut staging = BTreeMap::new();
            for from in (0..size).filter(|&r| r != rank) {
                let sent: Vec<Message> = exchange(from).sends().filter(|m| m.peer == rank).collect();
                let received: Vec<Message> = exchange(rank).receives().filter(|m| m.peer == from).collect();
                assert_eq!(sent.len(), received.len(), "messages from {from} to {rank}");
                for (sent, received) in sent.into_iter().zip(received) {
                    assert_eq!((sent.param, sent.elements.len()), (received.param, received.elements.len()));
                    for (i, at) in sent.elements.zip(received.elements) {
                        let before = staging.insert(at, (from, sent.param, i));
                        assert_eq!(before, None, "element {at} of the staging of {rank} is received once");
                    }
                }
            }
            staging
        };
        (0..size).map(receive).collect()
    }

    proptest! {
        #[test]
        fn every_owner_finds_every_contribution_to_its_pieces_in_the_order_of_ranks(
            bucket in any_bucket(), size in 1usize..9, contributors in 0usize..9
        ) {
            let contributors = contributors.min(size);
            for (rank, staging) in exchanged(&bucket, size, contributors).iter().enumerate() {
                let exchange = bucket.exchange(rank, size, contributors);
                prop_assert_eq!(staging.len(), exchange.received_numel());
                let planned = (size - 1) * bucket.numel();
                prop_assert!(staging.keys().all(|&at| at < planned), "staging is planned for all others");
                for (part, piece) in exchange.parts().zip(&bucket.pieces) {
                    prop_assert_eq!(&part.in_slice, &piece.range);
                    for (nth, i) in part.in_full.clone().enumerate() {
                        prop_assert_eq!(i, rank * piece.shard_numel + piece.range.start + nth);
                        for from in exchange.contributors().filter(|&from| from != rank) {
                            let at = part.staged(from, rank).start + nth;
                            prop_assert_eq!(staging[&at], (from, part.param, i));
                        }
                    }
                }
            }
        }

        /// `ordered_add` of kernels/optimizer.cu finds a contribution by the first one, a stride and its
        /// position.
        #[test]
        fn contributions_that_are_received_lie_a_stride_apart(
            bucket in any_bucket(), size in 2usize..9, rank in 0usize..9
        ) {
            let rank = rank % size;
            for part in bucket.exchange(rank, size, size).parts() {
                let starts: Vec<usize> = (0..size)
                    .filter(|&from| from != rank)
                    .map(|from| part.staged(from, rank).start)
                    .collect();
                let kernel = (0..size - 1).map(|position| part.in_staging.start + position * part.stride);
                prop_assert_eq!(starts, kernel.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn ranks_without_a_gradient_receive_and_send_nothing() {
        let bucket = Bucket { pieces: vec![Piece { param: 0, range: 2..5, shard_numel: 7 }] };
        let last = bucket.exchange(2, 3, 2);
        assert_eq!(last.sends().count(), 0);
        let message = |peer, elements| Message { peer, param: 0, elements };
        assert_eq!(last.receives().collect::<Vec<_>>(), [message(0, 0..3), message(1, 3..6)]);
        let first = bucket.exchange(0, 3, 2);
        assert_eq!(first.sends().collect::<Vec<_>>(), [message(1, 9..12), message(2, 16..19)]);
        assert_eq!(first.receives().collect::<Vec<_>>(), [message(1, 0..3)]);
        assert_eq!((first.received_numel(), last.received_numel()), (3, 6));
    }
}
