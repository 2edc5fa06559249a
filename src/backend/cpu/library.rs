//! [`Library`] over MPI's blocking calls.

use super::MpiComm;
use super::host::{f32s, f32s_mut};
use crate::backend::buffer::{View, ViewMut};
use crate::backend::library::Library;
use crate::clock;
use crate::error::Result;
use mpi::collective::SystemOperation;
use mpi::topology::Communicator;
use mpi::traits::*;
use std::time::Duration;

/// Rest between two looks at a quiet barrier.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Library for MpiComm {
    fn all_reduce(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.control().all_reduce_into(f32s(inp), f32s_mut(out), SystemOperation::sum());
        Ok(())
    }

    fn broadcast(&self, buf: ViewMut<'_>, root: usize) -> Result<()> {
        self.control().process_at_rank(root as i32).broadcast_into(f32s_mut(buf));
        Ok(())
    }

    fn reduce_scatter(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.control().reduce_scatter_block_into(f32s(inp), f32s_mut(out), SystemOperation::sum());
        Ok(())
    }

    fn send(&self, inp: View<'_>, to: usize) -> Result<()> {
        self.control().process_at_rank(to as i32).send(f32s(inp));
        Ok(())
    }

    fn receive(&self, out: ViewMut<'_>, from: usize) -> Result<()> {
        self.control().process_at_rank(from as i32).receive_into(f32s_mut(out));
        Ok(())
    }

    fn quiet_barrier(&self) -> Result<()> {
        let mut barrier = self.control().immediate_barrier();
        while let Err(on_its_way) = barrier.test() {
            clock::rest(LOOK_EVERY);
            barrier = on_its_way;
        }
        Ok(())
    }
}
