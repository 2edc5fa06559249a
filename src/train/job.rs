//! The inputs of a run, and how it ended.
//!
//! Must not know: what happens in between.

use super::state::{Position, Start};
use crate::config::Deck;
use crate::error::Exit;
use crate::telemetry::{RankStep, StepRow};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Rank count in hints: a different one from that of most runs.
pub const HINTED_RANKS: usize = 3;

/// The inputs of a run apart from its backend.
pub struct Job {
    /// The resolved deck, the same on every rank.
    pub deck: Deck,
    /// Where to start from.
    pub start: Start,
    /// Program, MPI, HDF5 and the like, for the summary.
    pub versions: BTreeMap<String, String>,
    /// The command line that would start this run again, without a launcher, for hints.
    pub relaunch: String,
    /// The launch command for [`HINTED_RANKS`] ranks, in the way this process was started.
    pub launcher: String,
    /// Standard error is a terminal: draw a progress bar.
    pub is_terminal: bool,
    /// Fill released buffers with NaN.
    pub poison: bool,
    /// This rank's node.
    pub host: String,
    /// When the process started.
    pub started: Instant,
    /// Ends the job on every rank, from any thread.
    pub abort: fn(Exit),
    /// Without banner, progress and closing message.
    pub quiet: bool,
    /// Called on every rank after each step that was made.
    pub on_step: Option<Box<StepObserver>>,
}

/// Sees a row of the log, and the numbers of every rank it was made from.
pub type StepObserver = dyn Fn(&StepRow, &[RankStep]);

/// How a run ended, and where.
pub struct Ending {
    /// Its progress.
    pub position: Position,
    /// The last complete checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// The reason, as exit code and text.
    pub verdict: Verdict,
}

/// Why a run ends.
pub struct Verdict {
    /// Exit code.
    pub exit: Exit,
    /// As text.
    pub reason: String,
}
