//! What a job that measures needs: the ranks and their devices, buffers, timed calls, collectives, training
//! runs on groups of ranks, and a time limit that ends it whatever hangs.
//!
//! The acceptance benchmark (`accept/`) and the calibration of the planner (`calibrate/`) stand on it.
//!
//! Must not know: decks of an acceptance, verdicts, reports, command lines.

mod buffers;
mod cluster;
mod collective_bench;
mod deadline;
mod local_work;
mod pairing;
mod training_runs;

pub use cluster::{Cluster, Split};
pub use collective_bench::{Calls, CollectiveBench, CollectiveOp, CollectiveTime};
pub use deadline::Deadline;
pub use local_work::LocalWork;
pub use pairing::rounds;
pub use training_runs::{
    StepObserver, TrainedRun, agreed_failure, digest, train_on, train_on_all, train_on_groups, write_tokens,
};
