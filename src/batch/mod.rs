//! The batch system: its signals, the time limit of the job, and progress reports to it.
//!
//! Must not know: steps, checkpoints, MPI.

pub mod job_clock;
pub mod job_comment;
mod scontrol;
pub mod signals;
