//! MPI from start to end: the library, the group of all ranks, and the end of the job on every rank.

use super::group::Group;
use crate::error::{Error, Exit, Result};
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// A running MPI library. Dropping it finalises MPI, which waits for all ranks.
pub struct Universe {
    // Field order is drop order: nothing of MPI is left when it is finalised.
    world: Group,
    threading: Threading,
    _library: mpi::environment::Universe,
}

impl Universe {
    /// Starts MPI.
    ///
    /// # Errors
    /// It was started before in this process.
    pub fn start() -> Result<Self> {
        let (library, threading) = mpi::initialize_with_threading(Threading::Multiple)
            .ok_or_else(|| Error::Comm("MPI was already initialised in this process".into()))?;
        Ok(Universe { world: Group::world(library.world()), threading, _library: library })
    }

    /// All ranks of the job.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// Whether threads may call MPI at once.
    ///
    /// # Errors
    /// This library does not let them.
    pub fn check_threading(&self) -> Result<()> {
        match self.threading {
            Threading::Multiple => Ok(()),
            granted => Err(Error::Comm(format!(
                "this MPI library grants {granted:?}, zero3 needs MPI_THREAD_MULTIPLE: collectives run on \
                 helper threads beside compute; use a build of MPI with thread support"
            ))),
        }
    }

    /// Exchanges a byte with every other rank, on this thread alone. MPI libraries open a connection at the
    /// first message between two ranks; Open MPI 4.1 crashes or hangs now and then when several threads of a
    /// rank, or both ends at once, open the same one, which is what the first collectives of two queues would
    /// do between nodes. So the lower rank of each pair opens it, and the higher one answers.
    pub fn connect_all(&self) {
        let world = self.world.communicator();
        let (rank, size) = (world.rank(), world.size());
        for lower in (0..rank).map(|r| world.process_at_rank(r)) {
            let mut received = 0u8;
            lower.receive_into(&mut received);
            lower.send(&received);
        }
        for higher in (rank + 1..size).map(|r| world.process_at_rank(r)) {
            higher.send(&0u8);
        }
        for higher in (rank + 1..size).map(|r| world.process_at_rank(r)) {
            let mut received = 0u8;
            higher.receive_into(&mut received);
        }
    }
}

/// Ends the job on every rank, now, from any thread, with MPI running. Finalising would wait for ranks that
/// wait for this one.
pub fn abort_job(exit: Exit) -> ! {
    SimpleCommunicator::world().abort(exit.code())
}

/// This host, as MPI knows it.
pub fn processor_name() -> String {
    mpi::environment::processor_name().unwrap_or_else(|_| "an unnamed host".into())
}

/// The MPI library's name for itself, e.g. `Open MPI v4.1.4`; may be asked before MPI starts.
pub fn library_version() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    text.split(',').next().unwrap_or("").trim_end_matches('\0').trim().to_string()
}
