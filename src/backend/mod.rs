//! The seam between the algorithm and the machine.
//!
//! A [`Device`] computes on views of buffers, in the order of its queues; a [`Comm`] moves slices between
//! ranks and hands back a [`Pending`] that owns what is in flight. `model/`, `zero/` and `train/` are generic
//! over [`Backend`] and never learn which one they run on.
//!
//! Must not know: what a transformer is, what a shard is, what a checkpoint is.

pub mod agree;
pub mod buffer;
pub mod comm;
pub mod cpu;
pub mod library;
pub mod memory;
pub mod mesh;
pub mod ops;

pub use buffer::{Arena, Buf, Space, View, ViewMut};
pub use comm::{Comm, CommRecord, Pending};
pub use ops::Ops;

use std::borrow::Cow;

/// The four queues of a device. Work on one queue runs in order; queues are ordered against each other by events.
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
    type Event: Clone + Send + 'static;

    /// Marks the point after everything put on `queue` so far.
    fn record(&self, queue: Queue) -> Self::Event;
    /// Makes later work on `queue` run after `event`. Does not block the host.
    fn wait(&self, queue: Queue, event: &Self::Event);
    /// Blocks the host until `event` is past.
    fn sync(&self, event: &Self::Event);
    /// Copies host bytes into `dst` on the compute queue. Overwrites; `src` and `dst` have the same byte count.
    fn upload(&self, dst: ViewMut<'_>, src: &[u8]);
    /// Copies `src` to host memory and waits for it.
    fn download(&self, dst: &mut [u8], src: View<'_>);
    /// The elements for the host to read: borrowed where the host can see them, copied (and waited for) where not.
    fn read<'a>(&self, src: View<'a>) -> Cow<'a, [f32]>;
    /// Sets every byte of `dst`: 0 for zeros, 0xff for f32/bf16 NaN (use after release then shows).
    fn fill_bytes(&self, dst: ViewMut<'_>, byte: u8);
    /// What the device is, for banners and logs.
    fn describe(&self) -> String;
}

/// A device and the communicator that goes with it; chosen once in `cli`.
pub trait Backend {
    /// Where kernels run.
    type Device: Device;
    /// How slices travel.
    type Comm: Comm<Event = <Self::Device as Device>::Event>;
}
