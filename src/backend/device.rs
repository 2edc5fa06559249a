//! A device that computes: its queues, and what the host asks of it besides kernels.
//!
//! Must not know: ranks.

use super::buffer::{View, ViewMut};
use super::ops::Ops;
use crate::error::Result;
use crate::exact_sum::ExactSum;
use crate::telemetry::Clock;
use std::borrow::Cow;
use std::time::Instant;

/// The four queues of a device. Work on one queue runs in order; queues are ordered against each other by
/// events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Kernels.
    Compute,
    /// Parameter gathers.
    Gather,
    /// Gradient reductions.
    Reduce,
    /// Host transfers (checkpoint staging, data).
    Copy,
}

/// A device that computes. All [`Ops`] run on [`Queue::Compute`].
pub trait Device: Ops {
    /// A point on a queue. On the CPU compute is done when the call returns, so the event is already past.
    type Event: Clone + 'static;
    /// A point on a queue that knows its time.
    type Mark: Clone;
    /// A sum that may not be known yet.
    type Sum;

    /// Marks the point after everything put on `queue` so far.
    fn record(&self, queue: Queue) -> Self::Event;
    /// Makes later work on `queue` run after `event`. Does not block the host.
    fn wait(&self, queue: Queue, event: &Self::Event);
    /// Marks the time of that point.
    fn mark(&self, queue: Queue) -> Self::Mark;
    /// When the queue reached `mark`, on the host's clock. Blocks the host until then.
    ///
    /// # Errors
    /// The device, or a peer that it waits for, failed. The same holds for every call here that blocks the
    /// host.
    fn when(&self, mark: &Self::Mark) -> Result<Instant>;
    /// Host memory for transfers, and for up to `n_sums` sums at once of `numel` elements each; before step
    /// 0.
    ///
    /// # Errors
    /// Less memory is free.
    fn reserve(&self, n_sums: usize, numel: usize) -> Result<()>;
    /// Gives back what was reserved and lets memory be allocated again, until the next [`Device::reserve`]:
    /// another run begins in this process.
    fn release(&self);
    /// Bytes that [`Device::reserve`] takes.
    fn reserved_bytes(n_sums: usize, numel: usize) -> u64
    where
        Self: Sized;
    /// Bytes that can still be allocated, where the device says so.
    fn free_bytes(&self) -> Option<u64>;
    /// Copies host bytes into `dst` on the compute queue. Overwrites; `src` and `dst` have the same byte
    /// count, and `src` is read before the call returns.
    fn upload(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()>;
    /// The elements for the host to read: borrowed where the host can see them, copied where not. Blocks the
    /// host.
    fn read<'a>(&self, src: View<'a>) -> Result<Cow<'a, [f32]>>;
    /// Starts a sum of f32 elements in f64, in the order of the elements.
    fn start_sum(&self, inp: View<'_>) -> Self::Sum;
    /// Its result. Blocks the host.
    fn finish_sum(&self, sum: Self::Sum) -> Result<f64>;
    /// Exact sum of the squares of all elements. Blocks the host.
    fn sum_of_squares<'a>(&self, inps: impl IntoIterator<Item = View<'a>>) -> Result<ExactSum>;
    /// Most channels of a head that its attention kernels take, where there is a limit.
    fn max_d_head() -> Option<usize>
    where
        Self: Sized,
    {
        None
    }
    /// What the device is, for banners and logs.
    fn describe(&self) -> String;
    /// Further facts of a device other than the processor, by name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// The time of one queue of a device.
pub struct QueueClock<'a, D> {
    /// Its device.
    pub device: &'a D,
    /// The queue.
    pub queue: Queue,
}

impl<D: Device> Clock for QueueClock<'_, D> {
    type Mark = D::Mark;

    fn mark(&self) -> D::Mark {
        self.device.mark(self.queue)
    }

    fn when(&self, mark: &D::Mark) -> Result<Instant> {
        self.device.when(mark)
    }
}
