//! The two communicators of a group of ranks: how they are connected, watched and ended.
//!
//! Must not know: what is gathered and reduced.

use super::CudaDevice;
use super::nccl::{self, Communicator};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::MpiComm;
use crate::backend::{Comm, Queue};
use crate::error::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

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
    pub fn connect(device: &Rc<CudaDevice>, control: &MpiComm, timeout: Duration) -> Result<Self> {
        let ids = decided_by_rank_0(control, || Ok([nccl::new_id()?.to_vec(), nccl::new_id()?.to_vec()]))?;
        let digests = ids.each_ref().map(|id| xxhash_rust::xxh3::xxh3_64(id));
        log::debug!("NCCL ids of the gather and reduce communicators: {:016x}, {:016x}", digests[0], digests[1]);
        control.barrier()?;
        // One after the other, agreed upon each time: nobody waits for a rank that has failed before.
        let connect = |id: &[u8], queue| -> Result<Rc<Communicator>> {
            let own = Self::connect_one(device, control, id, queue, timeout);
            // MPI tells who has come this far: NCCL does not say whom it waits for.
            let late = control.roll_call(timeout)?;
            if !late.is_empty() {
                let why = own.err().map_or(String::new(), |error| format!(" ({error})"));
                return Err(Error::Comm(format!("{} not come to connect over NCCL{why}", ranks_have(&late))));
            }
            let mut found = None;
            all_or_none(control, own.map(|comm| _ = found.insert(comm)))?;
            Ok(found.expect("no rank failed"))
        };
        let gather = connect(&ids[0], Queue::Gather)?;
        let reduce = connect(&ids[1], Queue::Reduce)?;
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

    fn connect_one(
        device: &CudaDevice,
        control: &MpiComm,
        id: &[u8],
        queue: Queue,
        timeout: Duration,
    ) -> Result<Rc<Communicator>> {
        let id = id.try_into().map_err(|_| Error::Comm("rank 0's NCCL id is cut short".into()))?;
        let place = (control.rank(), control.size());
        let comm = Communicator::begin(id, place, queue, Rc::clone(&device.streams))?;
        match comm.poll_for(timeout)? {
            true => Ok(Rc::new(comm)),
            false => Err(Error::Comm(format!("NCCL could not connect the ranks within {} s", timeout.as_secs()))),
        }
    }
}

/// "rank 1 has", "ranks 1, 2 have".
fn ranks_have(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} has") } else { format!("ranks {list} have") }
}
