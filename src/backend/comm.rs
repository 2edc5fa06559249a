//! Collectives between the ranks of a group.
//!
//! The two collectives of a training step take their buffers by value and give back a [`Pending`]; only
//! [`Pending::wait`] yields the buffers again, so no code can read a half-gathered unit. Everything else is
//! control: [`mpi::Group`].

use super::buffer::{Arena, Buf};
use super::library::Library;
use super::mpi;
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::schedule::Bucket;
use std::sync::Arc;

/// What a collective was: its payload and when it ran, as marks of its queue.
#[derive(Debug, Clone, Copy)]
pub struct CommRecord<M> {
    /// Payload bytes this rank received from others, added up from the arguments of the real calls.
    pub received_bytes: u64,
    /// When the queue began to work on it.
    pub started: M,
    /// When the last byte was in place (and, for a reduction, added).
    pub finished: M,
}

/// What a finished collective of `C` was.
pub type RecordOf<C> = CommRecord<<C as Comm>::Mark>;

/// The buffers of a finished collective, back in the caller's hands.
pub struct Landed<M> {
    /// Inputs: shards of a gather, full gradients of a reduction.
    pub inputs: PerTensor<Buf>,
    /// Outputs: whole parameters of a gather, gradient slices of a reduction.
    pub outputs: PerTensor<Buf>,
    /// Receive staging of a reduction.
    pub staging: Option<Buf>,
    /// What it moved.
    pub record: CommRecord<M>,
}

/// A collective in flight. It owns every buffer it reads or writes.
#[must_use = "a collective must be waited for: it owns its buffers"]
pub trait Pending {
    /// When it ran.
    type Mark;

    /// Yields the buffers to work put on the compute queue from now on: that work runs after the collective.
    /// Blocks the host where there is no other way.
    fn wait(self) -> Result<Landed<Self::Mark>>;
}

/// One gradient reduction, ready to start.
pub struct ReduceScatter {
    /// Full gradients, padded to N slices each.
    pub full: PerTensor<Buf>,
    /// This rank's gradient slices. Overwritten where `overwrites`, else accumulated into.
    pub slices: PerTensor<Buf>,
    /// Receive staging for the largest bucket: (N-1) times its elements. None where N = 1.
    pub staging: Option<Buf>,
    /// The exchange, bucket by bucket (planned).
    pub buckets: Arc<[Bucket]>,
    /// Ranks `0..contributors` have a gradient to add; the others only receive.
    pub contributors: usize,
    /// The slices are overwritten: the first contribution is copied, not added.
    pub overwrites: bool,
}

/// A group of ranks that move slices: its control plane, and queues for data beside it.
pub trait Comm: AsRef<mpi::Group> {
    /// The device's event: a collective starts after it.
    type Event: Clone;
    /// The device's mark: when a collective ran.
    type Mark;
    /// A collective in flight.
    type Pending: Pending<Mark = Self::Mark>;

    /// Small blocking messages between the same ranks.
    fn control(&self) -> &mpi::Group {
        self.as_ref()
    }
    /// Rank in this group.
    fn rank(&self) -> usize {
        self.control().rank()
    }
    /// Ranks in this group.
    fn size(&self) -> usize {
        self.control().size()
    }

    /// The memory collectives work on: one arena, allocated before step 0.
    ///
    /// # Errors
    /// The host or the device has not enough memory.
    fn alloc(&self, bytes: usize) -> Result<Arc<Arena>>;

    /// Starts gathering whole parameters after `after`: `outs[i]` is the concatenation of every rank's
    /// `shards[i]`.
    fn all_gather(&self, after: Self::Event, shards: PerTensor<Buf>, outs: PerTensor<Buf>) -> Self::Pending;

    /// Starts an exchange of slices and adds the contributions to the owner's slice in the order of the
    /// micro-batch index (rule 8: one left fold, whatever the rank count); with `zero.deterministic = false`
    /// in NCCL's.
    fn reduce_scatter(&self, after: Self::Event, reduce: ReduceScatter) -> Self::Pending;

    /// The library's own collectives, where the backend has them.
    fn library(&self) -> Option<&dyn Library> {
        None
    }
}
