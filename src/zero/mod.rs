//! ZeRO-3 itself: slices at rest, whole parameters for the time of a visit, gradients to the owners of their
//! slices.
//!
//! Must not know: what a unit computes, MPI, files.

pub mod gather;
pub mod reduce;
pub mod refresh;
pub mod shards;

pub use gather::Gathers;
pub use reduce::Reductions;
pub use shards::{Shards, Updated};
