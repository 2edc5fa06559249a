//! The two communicators of a group of ranks: how they are connected, watched and ended.
//!
//! Must not know: what is gathered and reduced.

use super::device::CudaDevice;
use super::nccl::{self, Communicator};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Queue, mpi};
use crate::error::{Error, Result};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long ranks connect before they tell each other how far they are, at first.
const FIRST_ROUND: Duration = Duration::from_millis(100);
/// The longest that such a round becomes: each is a word from every rank to every other one.
const LONGEST_ROUND: Duration = Duration::from_secs(2);

/// One for each queue of collectives.
#[derive(Clone)]
pub struct Communicators {
    /// Of parameters.
    pub gather: Rc<Communicator>,
    /// Of gradients.
    pub reduce: Rc<Communicator>,
}

impl Communicators {
    /// Connects the ranks of `control`, two or more. Collective.
    ///
    /// # Errors
    /// As [`super::NcclComm::connect`].
    pub fn connect(device: &Rc<CudaDevice>, control: &mpi::Group, timeout: Duration) -> Result<Self> {
        let ids = decided_by_rank_0(control, || Ok([nccl::new_id()?.to_vec(), nccl::new_id()?.to_vec()]))?;
        let digests = ids.each_ref().map(|id| xxhash_rust::xxh3::xxh3_64(id));
        log::debug!(
            "NCCL ids of the gather and reduce communicators: {:016x}, {:016x}",
            digests[0],
            digests[1]
        );
        control.barrier()?;
        // One after the other, agreed upon each time: no rank waits for one that has failed before.
        let gather = connect_one(device, control, &ids[0], Queue::Gather, timeout)?;
        let reduce = connect_one(device, control, &ids[1], Queue::Reduce, timeout)?;
        Ok(Communicators { gather, reduce })
    }

    /// Whether a peer has died; ends both where one has.
    pub fn check(&self) -> Box<dyn Fn() -> Result<()>> {
        let watched = self.clone();
        Box::new(move || {
            let polled = watched.gather.poll().and_then(|_| watched.reduce.poll());
            polled.map(|_| ()).inspect_err(|_| watched.abort())
        })
    }

    /// Ends both on this rank: what is on their streams ends without effect.
    pub fn abort(&self) {
        self.gather.abort();
        self.reduce.abort();
    }
}

/// Connects one of them. NCCL says neither which rank it waits for nor that another one has failed: MPI does,
/// in rounds. Collective.
fn connect_one(
    device: &CudaDevice,
    control: &mpi::Group,
    id: &[u8],
    queue: Queue,
    timeout: Duration,
) -> Result<Rc<Communicator>> {
    let started = Instant::now();
    let id = id.try_into().expect("rank 0 sent what NCCL gave it");
    let comm = Communicator::begin(id, control.rank(), control.size(), queue, Rc::clone(&device.streams));
    let mut length = FIRST_ROUND;
    loop {
        let connected = comm.as_ref().map_err(Error::clone).and_then(|comm| comm.poll_for(length));
        length = (2 * length).min(LONGEST_ROUND);
        let late = control.roll_call(timeout)?;
        if !late.is_empty() {
            let why = connected.err().map_or(String::new(), |error| format!(" ({error})"));
            return Err(Error::Comm(format!("{} not called to connect over NCCL{why}", ranks_have(&late))));
        }
        let round =
            all_or_none(control, connected.map(|connected| (connected, started.elapsed() > timeout)))?;
        let waiting: Vec<usize> = (0..round.len()).filter(|&rank| !round[rank].0).collect();
        if waiting.is_empty() {
            return comm.map(Rc::new);
        }
        if round.iter().any(|&(_, is_over)| is_over) {
            let error =
                format!("{} not been connected by NCCL within {} s", ranks_have(&waiting), timeout.as_secs());
            return Err(Error::Agreed { rank: 0, error: Box::new(Error::Comm(error)) });
        }
    }
}

/// "rank 1 has", "ranks 1, 2 have".
fn ranks_have(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} has") } else { format!("ranks {list} have") }
}
