//! What a run says about itself: timers, the memory ledger, byte counters, the step log, progress and the summary.
//!
//! Plain counters, and writers and readers of what a run leaves. They are told numbers, and ask nobody but the system (usage, heap, time
//! limit). Must not know: MPI, models, backends, decks.

pub mod allocations;
pub mod comm_volume;
pub mod flight;
pub mod human;
pub mod job_comment;
pub mod ledger;
pub mod logging;
pub mod process;
pub mod progress;
pub mod quantile;
mod recording;
pub mod run_records;
pub mod say;
mod scontrol;
pub mod sign_of_life;
pub mod signals;
pub mod start_watch;
pub mod step_columns;
pub mod step_log;
pub mod step_reader;
pub mod step_row;
pub mod stragglers;
pub mod summary;
pub mod time_limit;
pub mod timer;
pub mod timing;
pub mod trace;
pub mod units;
mod watchdog;

pub use comm_volume::{CommClass, CommVolume};
pub use flight::Flight;
pub use ledger::{Ledger, MemKind};
pub use process::Usage;
pub use progress::Progress;
pub use run_records::{RunEvent, RunRecords};
pub use start_watch::StartPlace;
pub use step_log::StepLog;
pub use step_row::{RankStats, RankStep, StepRow, combine};
pub use summary::Summary;
pub use timer::{Clock, Phase, PhaseTimer, PhaseTimes};
pub use timing::Timing;
pub use trace::{Trace, Track};
pub use units::UnitTimes;
