//! [`Library`] over NCCL: on the gather queue, after the kernels before it and before those behind it.

use super::comm::NcclComm;
use super::nccl::GroupCalls;
use crate::backend::buffer::{View, ViewMut};
use crate::backend::library::Library;
use crate::backend::{Comm, Device, Queue};
use crate::error::Result;

impl NcclComm {
    /// Blocks the host until `call` is done on this rank.
    fn blocking(&self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let device = self.device();
        device.wait(Queue::Gather, &device.record(Queue::Compute));
        call()?;
        device.wait(Queue::Compute, &device.record(Queue::Gather));
        device.when(&device.mark(Queue::Compute)).map(|_| ())
    }

    /// A collective whose outcome on one rank alone is a copy.
    fn or_copied(
        &self,
        out: ViewMut<'_>,
        inp: View<'_>,
        call: fn(&GroupCalls<'_>, View<'_>, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        self.blocking(|| match self.gather() {
            Some(comm) => comm.group(|calls| call(calls, inp, out)),
            None => self.copy(Queue::Gather, out, inp),
        })
    }

    /// A call that takes two ranks.
    fn between_ranks(&self, call: impl FnOnce(&GroupCalls<'_>) -> Result<()>) -> Result<()> {
        let comm = self.gather().expect("one rank alone has no peer");
        self.blocking(|| comm.group(call))
    }
}

impl Library for NcclComm {
    fn all_reduce(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.or_copied(out, inp, |calls, inp, out| calls.all_reduce(inp, out))
    }

    fn broadcast(&self, buf: ViewMut<'_>, root: usize) -> Result<()> {
        if self.size() == 1 { Ok(()) } else { self.between_ranks(|calls| calls.broadcast(buf, root)) }
    }

    fn reduce_scatter(&self, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        self.or_copied(out, inp, |calls, inp, out| calls.reduce_scatter(inp, out))
    }

    fn send(&self, inp: View<'_>, to: usize) -> Result<()> {
        self.between_ranks(|calls| calls.send(inp, to))
    }

    fn receive(&self, out: ViewMut<'_>, from: usize) -> Result<()> {
        self.between_ranks(|calls| calls.receive(out, from))
    }

    fn quiet_barrier(&self) -> Result<()> {
        self.control().barrier()
    }
}
