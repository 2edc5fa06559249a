//! A rank's measurements of itself: timers, the memory ledger, byte counters, per-unit times, traces, and the
//! numbers of a step derived from them.
//!
//! Must not know: MPI, models, backends, decks, the files of a run.

pub mod allocations;
pub mod comm_volume;
pub mod ledger;
pub mod process;
pub mod step_row;
pub mod timer;
pub mod trace;
pub mod units;

pub use comm_volume::{CommClass, CommVolume};
pub use ledger::{Ledger, MemKind};
pub use process::Usage;
pub use step_row::{RankStats, RankStep, StepRow, combine};
pub use timer::{Clock, Phase, PhaseTimer, PhaseTimes};
pub use trace::{Trace, Track};
pub use units::UnitTimes;
