//! The files of a run, written and read: the step log, the summary, events, the timing record; and its
//! progress bar.
//!
//! Must not know: MPI, models, backends, decks.

pub mod progress;
pub mod run_records;
pub mod step_columns;
pub mod step_log;
pub mod step_reader;
pub mod summary;
pub mod timing_file;

pub use progress::Progress;
pub use run_records::{RunEvent, RunRecords};
pub use step_log::StepLog;
pub use summary::Summary;
pub use timing_file::Timing;
