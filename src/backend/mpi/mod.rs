//! MPI as every backend uses it: its start and end, groups of ranks, and the small blocking messages between
//! them (the control plane).
//!
//! Slices of parameters and gradients travel elsewhere: `cpu/` has queues and communicators for them, `cuda/`
//! has NCCL. A group has one communicator and no thread.
//!
//! Must not know: devices, buffers, what the ranks compute.

pub mod agree;
mod call;
mod group;
mod roll_call;
mod universe;

pub(in crate::backend) use call::check;
pub use group::Group;
pub use universe::{Universe, abort_job, library_version, processor_name};
