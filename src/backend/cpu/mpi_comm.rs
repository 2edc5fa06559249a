//! [`Comm`] over MPI: gathers and reductions on two queues with a communicator each, control on a third.

use super::Done;
use super::collectives::{Call, Group, Job};
use super::host;
use super::peers::Peers;
use super::requests::{self, MAX_MESSAGE_NUMEL, RawComm, check};
use super::worker::{InFlight, Worker};
use crate::backend::buffer::{Arena, Buf};
use crate::backend::comm::{Comm, ReduceScatter};
use crate::backend::library::Library;
use crate::error::{Error, Result};
use crate::params::PerTensor;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use mpi::traits::*;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A group of ranks over MPI.
pub struct MpiComm {
    // Field order is drop order: the threads end before their communicators are freed.
    gather_queue: Worker<Job>,
    reduce_queue: Worker<Job>,
    gather: SimpleCommunicator,
    reduce: SimpleCommunicator,
    control: SimpleCommunicator,
    rank: usize,
    size: usize,
    max_message_numel: usize,
    /// Ranks whose memory is read instead of being sent.
    peers: Option<Arc<Peers>>,
}

impl MpiComm {
    /// Splits `parent` (collective over it): ranks of one `color` form a group, ordered by `key`.
    pub fn split(parent: &impl Communicator, color: usize, key: usize) -> Result<Self> {
        let split = || {
            parent
                .split_by_color_with_key(Color::with_value(color as i32), key as i32)
                .ok_or_else(|| Error::Comm("MPI_Comm_split gave no communicator".into()))
        };
        let (gather, reduce, control) = (split()?, split()?, split()?);
        for comm in [&gather, &reduce, &control] {
            // SAFETY: a live communicator and a constant handle.
            check("MPI_Comm_set_errhandler", unsafe {
                ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN)
            })?;
        }
        let (rank, size) = (control.rank() as usize, control.size() as usize);
        Ok(MpiComm {
            gather_queue: Worker::start("gather")?,
            reduce_queue: Worker::start("reduce")?,
            gather,
            reduce,
            control,
            rank,
            size,
            max_message_numel: MAX_MESSAGE_NUMEL,
            peers: None,
        })
    }

    /// Lets ranks of one node read slices out of each other's memory, where the system does. Collective.
    pub fn reading_peers(mut self) -> Self {
        self.peers = Peers::find(&self.control).map(Arc::new);
        let how = if self.peers.is_some() { "read each other's memory" } else { "send each other messages" };
        log::debug!("ranks of one node {how}");
        self
    }

    /// Cuts messages at `numel` elements; for tests of the cutting.
    pub fn with_max_message_numel(mut self, numel: usize) -> Self {
        self.max_message_numel = numel;
        self
    }

    /// The ranks that have not called this within `timeout` of this rank. Unlike a barrier it ends when one does not come; then
    /// the job has to end too, since messages stay under way.
    pub fn roll_call(&self, timeout: Duration) -> Result<Vec<usize>> {
        requests::roll_call(RawComm(self.control.as_raw()), self.rank, self.size, timeout)
    }

    /// The communicator of blocking calls.
    pub(super) fn control(&self) -> &SimpleCommunicator {
        &self.control
    }

    /// How many bytes each rank has, and this rank's with zeros up to the most that one has. Collective.
    fn padded(&self, bytes: &[u8]) -> (Vec<u64>, Vec<u8>) {
        let mut counts = vec![0u64; self.size];
        self.control.all_gather_into(&(bytes.len() as u64), &mut counts);
        let longest = *counts.iter().max().expect("a group has a rank") as usize;
        let mut own = bytes.to_vec();
        own.resize(longest, 0);
        (counts, own)
    }

    /// The group as the thread of a queue needs it.
    fn group(&self, comm: &SimpleCommunicator) -> Group {
        let MpiComm { rank, size, max_message_numel, ref peers, .. } = *self;
        Group { comm: RawComm(comm.as_raw()), rank, size, max_message_numel, peers: peers.clone() }
    }
}

/// Every rank's bytes from their padded concatenation.
fn unpadded(all: &[u8], counts: &[u64]) -> Vec<Vec<u8>> {
    let longest = all.len() / counts.len();
    counts.iter().enumerate().map(|(r, &n)| all[r * longest..r * longest + n as usize].to_vec()).collect()
}

impl Comm for MpiComm {
    type Event = Done;
    type Mark = Instant;
    type Pending = InFlight<Job>;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Arena>> {
        host::arena(bytes)
    }

    fn all_gather(&self, _after: Done, shards: PerTensor<Buf>, outs: PerTensor<Buf>) -> InFlight<Job> {
        self.gather_queue.submit(Job { group: self.group(&self.gather), call: Call::AllGather { shards, outs } })
    }

    fn reduce_scatter(&self, _after: Done, reduce: ReduceScatter) -> InFlight<Job> {
        self.reduce_queue.submit(Job { group: self.group(&self.reduce), call: Call::ReduceScatter(reduce) })
    }

    fn library(&self) -> Option<&dyn Library> {
        Some(self)
    }

    fn barrier(&self) -> Result<()> {
        self.control.barrier();
        Ok(())
    }

    fn all_reduce_sum(&self, values: &mut [i64]) -> Result<()> {
        let own: SmallVec<[i64; 32]> = SmallVec::from_slice(values);
        self.control.all_reduce_into(&own[..], values, mpi::collective::SystemOperation::sum());
        Ok(())
    }

    fn all_gather_f64_into(&self, values: &[f64], all: &mut [f64]) -> Result<()> {
        assert_eq!(all.len(), values.len() * self.size, "one value of each rank");
        self.control.all_gather_into(values, all);
        Ok(())
    }

    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (counts, own) = self.padded(bytes);
        let mut all = vec![0u8; own.len() * self.size];
        if !own.is_empty() {
            self.control.all_gather_into(&own, &mut all);
        }
        Ok(unpadded(&all, &counts))
    }

    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (counts, own) = self.padded(bytes);
        let root = self.control.process_at_rank(0);
        if self.rank != 0 {
            root.gather_into(&own);
            return Ok(Vec::new());
        }
        let mut all = vec![0u8; own.len() * self.size];
        root.gather_into_root(&own, &mut all);
        Ok(unpadded(&all, &counts))
    }

    fn broadcast_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let root = self.control.process_at_rank(0);
        let mut count = bytes.len() as u64;
        root.broadcast_into(&mut count);
        let mut all = bytes.to_vec();
        all.resize(count as usize, 0);
        if count > 0 {
            root.broadcast_into(&mut all);
        }
        Ok(all)
    }
}
