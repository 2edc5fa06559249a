//! Buffers in memory that collectives and kernels work on, and their contents.

use super::cluster::Cluster;
use crate::backend::agree::all_or_none;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Buf, Comm, Device, Ops, Queue, View};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::slots::{Slot, lay_in_a_row};
use crate::telemetry::MemKind;
use crate::train::node_memory::NodeMemory;
use half::bf16;

impl<B: Backend> Cluster<'_, B> {
    /// Buffers of these numbers of elements, set to 0. Collective.
    ///
    /// # Errors
    /// As [`Self::buffers_of`].
    pub fn buffers(&self, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
        self.buffers_of(self.comm, sizes)
    }

    /// The same for the ranks of `comm`. Collective over them.
    ///
    /// # Errors
    /// The same on all of them: the memory of a node or of a device is too small.
    pub fn buffers_of(&self, comm: &B::Comm, sizes: &[(usize, DType)]) -> Result<Vec<Buf>> {
        let bytes = sizes.iter().map(|(numel, dtype)| (numel * dtype.bytes()) as u64).sum();
        all_or_none(comm, self.check_node_memory(bytes))?;
        let slot =
            |&(numel, dtype): &(usize, DType)| Slot::always("bench".into(), MemKind::Workspace, numel, dtype);
        let mut slots: Vec<Slot> = sizes.iter().map(slot).collect();
        let bytes = lay_in_a_row(&mut slots, 0);
        let mut arena = None;
        self.device.release();
        let allocated =
            comm.alloc(bytes).and_then(|a| self.device.reserve(0, 0).map(|()| _ = arena.insert(a)));
        all_or_none(comm, allocated)?;
        let mut memory = Memory::<B::Device>::new(arena.expect("no rank failed"), false);
        let mut bufs: Vec<Buf> = slots
            .iter()
            .map(|slot| memory.take(self.device, slot, MemKind::Workspace, Queue::Compute))
            .collect();
        // Touches every page before anything is timed.
        bufs.iter_mut().for_each(|buf| self.device.fill_bytes(buf.view_mut(), 0));
        Ok(bufs)
    }

    /// The system overcommits memory and kills a job that uses more than there is. Devices with memory of
    /// their own refuse.
    fn check_node_memory(&self, bytes: u64) -> Result<()> {
        let Some(node) = NodeMemory::here().filter(|_| self.device.free_bytes().is_none()) else {
            return Ok(());
        };
        let host = &self.hosts[self.rank()];
        let n_here = self.hosts.iter().filter(|h| *h == host).count() as u64;
        // Contents are made and checked in copies.
        let needed = bytes.saturating_mul(2 * n_here);
        if needed <= node.available_bytes {
            return Ok(());
        }
        Err(Error::Input(format!(
            "buffers and their copies require {needed} bytes on {host} ({n_here} ranks), {} are free: lower \
             device.gemm_n, device.memory_bytes, collectives.max_bytes or the reference model, or start \
             fewer ranks on a node",
            node.available_bytes
        )))
    }

    /// Sets element `i` of an f32 or bf16 buffer to `value(i)`, which its type must represent exactly.
    pub fn fill(&self, buf: &mut Buf, value: impl Fn(usize) -> f32) -> Result<()> {
        let numbers = (0..buf.numel()).map(value);
        match buf.dtype() {
            DType::Bf16 => {
                let bits: Vec<u16> = numbers.map(|x| bf16::from_f32(x).to_bits()).collect();
                self.device.upload(buf.view_mut(), bytemuck::cast_slice(&bits))
            }
            _ => {
                let numbers: Vec<f32> = numbers.collect();
                self.device.upload(buf.view_mut(), bytemuck::cast_slice(&numbers))
            }
        }
    }

    /// The elements of a buffer.
    pub fn read(&self, view: View<'_>) -> Result<Vec<f32>> {
        Ok(self.device.read(view)?.into_owned())
    }
}
