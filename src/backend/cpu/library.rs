//! [`Library`] over MPI's blocking calls.

use super::comm::CpuComm;
use super::host::{f32s, f32s_mut};
use crate::backend::buffer::{View, ViewMut};
use crate::backend::comm::Comm;
use crate::backend::library::Library;
use crate::clock;
use crate::error::Result;
use mpi::collective::SystemOperation;
use mpi::topology::Communicator;
use mpi::traits::*;
use std::time::Duration;

/// Rest between two looks at a quiet barrier.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Library for CpuComm {
    fn all_reduce(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.control().communicator().all_reduce_into(f32s(inp), f32s_mut(out), SystemOperation::sum());
        Ok(())
    }

    fn broadcast(&self, buf: ViewMut<'_>, root: usize) -> Result<()> {
        self.control().communicator().process_at_rank(root as i32).broadcast_into(f32s_mut(buf));
        Ok(())
    }

    fn reduce_scatter(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.control().communicator().reduce_scatter_block_into(
            f32s(inp),
            f32s_mut(out),
            SystemOperation::sum(),
        );
        Ok(())
    }

    fn send(&self, inp: View<'_>, to: usize) -> Result<()> {
        self.control().communicator().process_at_rank(to as i32).send(f32s(inp));
        Ok(())
    }

    fn receive(&self, out: ViewMut<'_>, from: usize) -> Result<()> {
        self.control().communicator().process_at_rank(from as i32).receive_into(f32s_mut(out));
        Ok(())
    }

    fn quiet_barrier(&self) -> Result<()> {
        let mut barrier = self.control().communicator().immediate_barrier();
        while let Err(on_its_way) = barrier.test() {
            clock::rest(LOOK_EVERY);
            barrier = on_its_way;
        }
        Ok(())
    }
}
