//! The seam between the algorithm and the machine.
//!
//! A [`Device`] computes on views of buffers, in the order of its queues; a [`Comm`] moves slices between
//! ranks and hands back a [`Pending`] that owns what is in flight. `model/`, `zero/` and `train/` are generic
//! over [`Backend`] and never learn which one they run on. Both backends stand on one control plane, `mpi/`.
//!
//! Must not know: what a transformer is, what a shard is, what a checkpoint is.

pub mod buffer;
pub mod comm;
pub mod counting;
pub mod cpu;
pub mod cuda;
mod device;
pub mod kind;
pub mod library;
pub mod memory;
pub mod mesh;
pub mod mpi;
pub mod ops;
pub(crate) mod reference;
mod traits;

pub use self::mpi::agree;
pub use buffer::{Arena, Buf, Space, View, ViewMut};
pub use comm::{Comm, CommRecord, Pending, RecordOf};
pub use device::{Device, Queue, QueueClock};
pub use ops::Ops;
pub use traits::{Backend, MarkOf, SumOf};
