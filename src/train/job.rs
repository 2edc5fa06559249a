//! What a run is given, and how it ended.
//!
//! Must not know: what happens in between.

use super::state::{Position, Start};
use crate::config::Deck;
use crate::error::Exit;
use crate::telemetry::{RankStep, StepRow};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Ranks that a hint says to go on with: another number than most runs begin with.
pub const HINTED_RANKS: usize = 3;

/// Everything a run needs besides its backend.
pub struct Job {
    /// The resolved deck, the same on every rank.
    pub deck: Deck,
    /// Where to start from.
    pub start: Start,
    /// Program, MPI, HDF5 and the like, for the summary.
    pub versions: BTreeMap<String, String>,
    /// The command line that would start this run again, without a launcher, for hints.
    pub relaunch: String,
    /// What starts [`HINTED_RANKS`] ranks of it as this process was started.
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
    /// Without banner, progress and last words.
    pub quiet: bool,
    /// Called on every rank after each step that was made.
    pub on_step: Option<Box<StepObserver>>,
}

/// Sees a row of the log, and the numbers of every rank it was made from.
pub type StepObserver = dyn Fn(&StepRow, &[RankStep]);

/// How a run ended, and where.
pub struct Ending {
    /// How far it came.
    pub position: Position,
    /// The last complete checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// Why, as code and in words.
    pub verdict: Verdict,
}

/// Why a run ends.
pub struct Verdict {
    /// Exit code.
    pub exit: Exit,
    /// In words.
    pub reason: String,
}
