//! [`Comm`] over MPI: gathers and reductions on a queue each, with a communicator and a helper thread for
//! each queue.
//!
//! These are made for slices in host memory alone; what the ranks say to each other goes over the group's own
//! communicator.

use super::collectives::{Call, Collective, Transport};
use super::device::Done;
use super::host;
use super::peers::Peers;
use super::requests::{MAX_MESSAGE_NUMEL, RawComm};
use super::worker::{InFlight, Worker};
use crate::backend::buffer::{Arena, Buf};
use crate::backend::comm::{Comm, ReduceScatter};
use crate::backend::library::Library;
use crate::backend::mpi;
use crate::error::Result;
use crate::params::PerTensor;
use crate::test_hooks;
use ::mpi::raw::AsRaw;
use ::mpi::topology::SimpleCommunicator;
use std::sync::Arc;
use std::time::Instant;

/// A group of ranks that move slices in host memory.
pub struct CpuComm {
    // Field order is drop order: the threads end before their communicators are freed.
    gather: DataQueue,
    reduce: DataQueue,
    control: mpi::Group,
    max_message_numel: usize,
    single_copy: bool,
    /// Ranks whose memory is read instead of being sent.
    peers: Option<Arc<Peers>>,
}

/// A queue of collectives: the thread that runs them, and the communicator they have for themselves.
struct DataQueue {
    // Field order is drop order, as above.
    worker: Worker<Collective>,
    comm: SimpleCommunicator,
}

impl DataQueue {
    /// Collective.
    fn start(control: &mpi::Group, name: &str) -> Result<Self> {
        let comm = control.duplicate()?;
        Ok(DataQueue { worker: Worker::start(name)?, comm })
    }
}

impl CpuComm {
    /// Gives the ranks of `control` queues for slices; with `single_copy`, ranks of one node read them out of
    /// each other's memory, where the system lets them. Collective.
    ///
    /// # Errors
    /// A communicator or a thread could not be made.
    pub fn connect(control: mpi::Group, single_copy: bool) -> Result<Self> {
        let (gather, reduce) = (DataQueue::start(&control, "gather")?, DataQueue::start(&control, "reduce")?);
        let peers = if single_copy { Peers::find(&control)?.map(Arc::new) } else { None };
        let how = if peers.is_some() { "read each other's memory" } else { "send each other messages" };
        log::debug!("ranks of one node {how}");
        let max_message_numel = test_hooks::max_message_numel().unwrap_or(MAX_MESSAGE_NUMEL);
        Ok(CpuComm { gather, reduce, control, max_message_numel, single_copy, peers })
    }

    /// Whether it was asked to read other ranks' memory.
    pub(super) fn single_copy(&self) -> bool {
        self.single_copy
    }

    /// What the thread of a queue needs to reach the other ranks.
    fn transport(&self, queue: &DataQueue) -> Transport {
        Transport {
            comm: RawComm(queue.comm.as_raw()),
            rank: self.control.rank(),
            size: self.control.size(),
            max_message_numel: self.max_message_numel,
            peers: self.peers.clone(),
        }
    }

    fn submit(&self, queue: &DataQueue, call: Call) -> InFlight<Collective> {
        queue.worker.submit(Collective { transport: self.transport(queue), call })
    }
}

impl AsRef<mpi::Group> for CpuComm {
    fn as_ref(&self) -> &mpi::Group {
        &self.control
    }
}

impl Comm for CpuComm {
    type Event = Done;
    type Mark = Instant;
    type Pending = InFlight<Collective>;

    fn alloc(&self, bytes: usize) -> Result<Arc<Arena>> {
        host::arena(bytes)
    }

    fn all_gather(&self, _after: Done, shards: PerTensor<Buf>, outs: PerTensor<Buf>) -> InFlight<Collective> {
        self.submit(&self.gather, Call::AllGather { shards, outs })
    }

    fn reduce_scatter(&self, _after: Done, reduce: ReduceScatter) -> InFlight<Collective> {
        self.submit(&self.reduce, Call::ReduceScatter(reduce))
    }

    fn library(&self) -> Option<&dyn Library> {
        Some(self)
    }
}
