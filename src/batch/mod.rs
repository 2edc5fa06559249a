//! The batch system: its signals, the time it leaves to the job, and what it is told about the run.
//!
//! Must not know: steps, checkpoints, MPI.

pub mod job_clock;
pub mod job_comment;
mod scontrol;
pub mod signals;
