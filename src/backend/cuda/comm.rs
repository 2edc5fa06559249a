//! [`Comm`] over NCCL: gathers and reductions on a queue and a communicator each, so that neither waits
//! behind the other; MPI carries control alone. Which gradients go where is planned
//! (`plan/ordered_exchange.rs`).
//!
//! Two communicators of one device may run at once only because every rank launches in one order: the plan's.

use super::communicators::Communicators;
use super::device::CudaDevice;
use super::driver::fault;
use super::kernels::Kernel;
use super::nccl::{Communicator, Registration};
use super::streams::{CheckId, Event, Mark};
use crate::backend::buffer::{Arena, Buf, Space};
use crate::backend::comm::{Comm, CommRecord, Landed, Pending, ReduceScatter};
use crate::backend::library::Library;
use crate::backend::{Device, Queue, View, ViewMut, mpi};
use crate::error::Result;
use crate::params::PerTensor;
use crate::plan::ordered_exchange::Part;
use crate::plan::schedule::Bucket;
use cudarc::driver::result as driver;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A group of ranks, each with its GPU.
pub struct NcclComm {
    device: Rc<CudaDevice>,
    control: mpi::Group,
    /// None for one rank, which moves nothing.
    communicators: Option<Communicators>,
    /// Gradients are exchanged and added in one order.
    deterministic: bool,
    /// How long ranks wait for each other to connect.
    timeout: Duration,
    /// Asks the communicators while the host waits for the device.
    check: Option<CheckId>,
}

impl NcclComm {
    /// Connects the ranks of `control`, each of which has opened its device. Collective.
    ///
    /// # Errors
    /// The same on every rank: a rank has not connected within `timeout` (all such ranks are named), or NCCL
    /// fails.
    pub fn connect(
        device: Rc<CudaDevice>,
        control: mpi::Group,
        deterministic: bool,
        timeout: Duration,
    ) -> Result<Self> {
        let communicators = match control.size() {
            1 => None,
            _ => Some(Communicators::connect(&device, &control, timeout)?),
        };
        let check = communicators.as_ref().map(|comms| device.streams.add_check(comms.check()));
        Ok(NcclComm { device, control, communicators, deterministic, timeout, check })
    }

    /// Connects the ranks of `members` on the same devices. Collective over them.
    ///
    /// # Errors
    /// As [`NcclComm::connect`].
    pub fn group(&self, members: mpi::Group) -> Result<Self> {
        Self::connect(Rc::clone(&self.device), members, self.deterministic, self.timeout)
    }

    /// Ends the communicators together with all ranks. Dropped without this, they are aborted.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.forget_check();
        let Some(Communicators { gather, reduce }) = &self.communicators else { return Ok(()) };
        self.control.barrier()?;
        gather.close(timeout)?;
        reduce.close(timeout)
    }

    /// The check holds the communicators.
    fn forget_check(&self) {
        self.check.iter().for_each(|&id| self.device.streams.remove_check(id));
    }

    /// The communicator of gathers, where there are other ranks.
    pub(super) fn gather(&self) -> Option<&Communicator> {
        self.communicators.as_ref().map(|comms| &*comms.gather)
    }

    /// Where the communicators' kernels run.
    pub(super) fn device(&self) -> &CudaDevice {
        &self.device
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        self.forget_check();
    }
}

/// An arena and what NCCL knows of it, which goes first.
struct Registered {
    _registrations: Vec<Registration>,
    _memory: Arc<Arena>,
}

// SAFETY: an arena and its handles stay on the thread that opened the device: neither `Buf` nor `Memory`
// leaves it in this backend, so the last handle is dropped there.
unsafe impl Send for Registered {}
// SAFETY: as above; nothing of it is read through a shared reference.
unsafe impl Sync for Registered {}

/// A collective on its queue.
pub struct InFlight {
    device: Rc<CudaDevice>,
    done: Event,
    landed: Result<Landed<Mark>>,
}

impl Pending for InFlight {
    type Mark = Mark;

    /// The compute queue waits, the host does not.
    fn wait(self) -> Result<Landed<Mark>> {
        self.device.wait(Queue::Compute, &self.done);
        self.landed
    }
}

impl NcclComm {
    /// Runs `calls` on a queue after `after`, and takes the times around it.
    fn launch(
        &self,
        queue: Queue,
        after: &Event,
        mut landed: Buffers,
        calls: impl FnOnce(&mut Buffers) -> Result<u64>,
    ) -> InFlight {
        self.device.wait(queue, after);
        let started = self.device.mark(queue);
        // After an error the other ranks may never call, and the device would not finish: memory is freed
        // after that.
        let received =
            calls(&mut landed).inspect_err(|_| self.communicators.iter().for_each(Communicators::abort));
        let finished = self.device.mark(queue);
        let Buffers { inputs, outputs, staging } = landed;
        let landed = received.map(|received_bytes| {
            let record = CommRecord { received_bytes, started, finished };
            Landed { inputs, outputs, staging, record }
        });
        InFlight { device: Rc::clone(&self.device), done: self.device.record(queue), landed }
    }

    /// Copies on a queue: what one rank gathers from itself.
    pub(super) fn copy(&self, queue: Queue, out: ViewMut<'_>, inp: View<'_>) -> Result<()> {
        assert_eq!((out.numel(), out.dtype()), (inp.numel(), inp.dtype()), "one slice per rank");
        let bytes = inp.numel() * inp.dtype().bytes();
        // SAFETY: two buffers of one size that the pending collective owns.
        unsafe { driver::memcpy_dtod_async(out.addr(), inp.addr(), bytes, self.device.streams.raw(queue)) }
            .map_err(|e| fault("cuMemcpyDtoDAsync", e))
    }

    /// Exchanges the contributions of one bucket and adds them in the order of ranks; returns the bytes
    /// received.
    fn exchange_and_add(
        &self,
        bucket: &Bucket,
        bufs: &mut Buffers,
        contributors: usize,
        overwrites: bool,
    ) -> Result<u64> {
        let (rank, size) = (self.rank(), self.size());
        let exchange = bucket.exchange(rank, size, contributors);
        let Buffers { inputs: full, outputs: slices, staging } = bufs;
        let mut received_bytes = 0;
        if let (Some(comms), Some(staging)) = (&self.communicators, staging.as_mut()) {
            comms.reduce.group(|calls| {
                for message in exchange.receives() {
                    let out = staging.view_mut().range(message.elements);
                    received_bytes += (out.numel() * out.dtype().bytes()) as u64;
                    calls.receive(out, message.peer)?;
                }
                for message in exchange.sends() {
                    calls.send(full[message.param].view().range(message.elements), message.peer)?;
                }
                Ok(())
            })?;
        }
        for Part { param, in_slice, in_full, in_staging, stride } in exchange.parts() {
            let own = full[param].view().range(in_full);
            let sum = slices[param].view_mut().range(in_slice);
            let received =
                staging.as_ref().map(|staging| staging.view().range(in_staging.start..staging.numel()));
            self.add_in_order(sum, own, received, Order { stride, contributors, rank, overwrites });
        }
        Ok(received_bytes)
    }

    /// Lets NCCL add the contributions of one bucket, whose pieces are whole slices; returns the bytes
    /// received.
    fn reduce_scatter_and_add(
        &self,
        bucket: &Bucket,
        bufs: &mut Buffers,
        contributors: usize,
        overwrites: bool,
    ) -> Result<u64> {
        let (rank, size) = (self.rank(), self.size());
        let Buffers { inputs: full, outputs: slices, staging } = bufs;
        let comms = self.communicators.as_ref().expect("a lone rank adds its own in order");
        let staging = staging.as_mut().expect("planned where there are others");
        if rank >= contributors {
            // All ranks take part: one without a gradient adds nothing.
            for piece in &bucket.pieces {
                self.device.fill_bytes_on(Queue::Reduce, full[piece.param].view_mut(), 0);
            }
        }
        let mut received_bytes = 0;
        let mut offset = 0;
        comms.reduce.group(|calls| {
            for piece in &bucket.pieces {
                let out = staging.view_mut().range(offset..offset + piece.range.len());
                offset += piece.range.len();
                received_bytes += ((size - 1) * out.numel() * out.dtype().bytes()) as u64;
                calls.reduce_scatter(full[piece.param].view(), out)?;
            }
            Ok(())
        })?;
        let mut offset = 0;
        for piece in &bucket.pieces {
            let sum = slices[piece.param].view_mut().range(piece.range.clone());
            let arrived = staging.view().range(offset..offset + piece.range.len());
            // One contribution, which is the sum of all.
            self.add_in_order(sum, arrived, None, Order { stride: 0, contributors: 1, rank: 0, overwrites });
            offset += piece.range.len();
        }
        Ok(received_bytes)
    }

    /// The left fold of rule 8 on the reduce queue.
    fn add_in_order(&self, sum: ViewMut<'_>, own: View<'_>, received: Option<View<'_>>, order: Order) {
        let numel = own.numel();
        self.device
            .launch_on(
                Queue::Reduce,
                Kernel::new("ordered_add").of(own.dtype()),
                self.device.grid_over(numel),
            )
            .write(sum)
            .read(own)
            .read_or_null(received)
            .long(numel as i64)
            .long(order.stride as i64)
            .int(order.contributors as i32)
            .int(order.rank as i32)
            .int(i32::from(order.overwrites))
            .go();
    }
}

/// Where contributions lie: that of rank r at `own` where `r == rank`, else in the staging, `stride` elements
/// from the next one.
struct Order {
    stride: usize,
    contributors: usize,
    rank: usize,
    /// The first contribution is copied.
    overwrites: bool,
}

/// What a collective owns.
struct Buffers {
    inputs: PerTensor<Buf>,
    outputs: PerTensor<Buf>,
    staging: Option<Buf>,
}

impl AsRef<mpi::Group> for NcclComm {
    fn as_ref(&self) -> &mpi::Group {
        &self.control
    }
}

impl Comm for NcclComm {
    type Event = Event;
    type Mark = Mark;
    type Pending = InFlight;

    fn alloc(&self, bytes: usize) -> Result<Arc<Arena>> {
        let memory = self.device.allocate(bytes)?;
        let Some(Communicators { gather, reduce }) = &self.communicators else { return Ok(memory) };
        let base = memory.base();
        let registrations = [gather, reduce].map(|comm| comm.register(base, bytes));
        let registrations = registrations.into_iter().collect::<Result<Vec<_>>>()?;
        let owner = Registered { _registrations: registrations, _memory: memory };
        Ok(Arena::new(base, bytes, Space::Device, Box::new(owner)))
    }

    fn all_gather(&self, after: Event, shards: PerTensor<Buf>, outs: PerTensor<Buf>) -> InFlight {
        assert_eq!(shards.len(), outs.len(), "one output per shard");
        let bufs = Buffers { inputs: shards, outputs: outs, staging: None };
        self.launch(Queue::Gather, &after, bufs, |bufs| {
            let pairs = bufs.inputs.iter().zip(&mut bufs.outputs);
            let Some(comms) = &self.communicators else {
                pairs
                    .into_iter()
                    .try_for_each(|(shard, out)| self.copy(Queue::Gather, out.view_mut(), shard.view()))?;
                return Ok(0);
            };
            let mut received_bytes = 0;
            comms.gather.group(|calls| {
                for (shard, out) in pairs {
                    received_bytes += ((self.size() - 1) * shard.bytes()) as u64;
                    calls.all_gather(shard.view(), out.view_mut())?;
                }
                Ok(())
            })?;
            Ok(received_bytes)
        })
    }

    fn reduce_scatter(&self, after: Event, reduce: ReduceScatter) -> InFlight {
        let ReduceScatter { full, slices, staging, buckets, contributors, overwrites } = reduce;
        let bufs = Buffers { inputs: full, outputs: slices, staging };
        let in_order = self.deterministic || self.communicators.is_none();
        self.launch(Queue::Reduce, &after, bufs, |bufs| {
            buckets.iter().try_fold(0, |received, bucket| {
                let bytes = match in_order {
                    true => self.exchange_and_add(bucket, bufs, contributors, overwrites)?,
                    false => self.reduce_scatter_and_add(bucket, bufs, contributors, overwrites)?,
                };
                Ok(received + bytes)
            })
        })
    }

    fn library(&self) -> Option<&dyn Library> {
        Some(self)
    }
}
