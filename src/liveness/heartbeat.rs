//! `RUN/flight/rank_N.progress`: the state of a rank, written every few seconds while it lives.
//!
//! Written by the recorder's second thread, read by the watchdogs of the other ranks and by `zero3 watch`.
//! Must not know: what an operation is.

use crate::files::{self, MAX_RECORD_BYTES};
use crate::telemetry::ledger::MemKind;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Directory of the files under the run directory.
pub const FLIGHT_DIR: &str = "flight";

/// Beats without a new heartbeat after which a rank counts as dead.
const N_BEATS: f64 = 5.0;
/// Additional time for a file to be written and become visible.
const SLACK_SECONDS: f64 = 3.0;

/// The state of one rank at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    /// The rank.
    pub rank: usize,
    /// Ranks of the job.
    pub world_size: usize,
    /// Its node.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Unix time at which its recorder started.
    pub started_unix: f64,
    /// Increases as long as the process lives.
    pub beat: u64,
    /// Maximum time since the previous heartbeat.
    pub beat_seconds: f64,
    /// Unix time of this heartbeat.
    pub updated_unix: f64,
    /// Ordinal of the operation; all ranks run the same list.
    pub ordinal: u64,
    /// Number of ticks within operations.
    pub ticks: u64,
    /// The current step.
    pub step: u64,
    /// The operation.
    pub what: String,
    /// Unix time at which it started.
    pub since_unix: f64,
    /// Units whose parameters are whole now.
    pub gathered: Vec<String>,
    /// Units whose gather is in flight.
    pub gathering: Vec<String>,
    /// Bytes of the ledger by kind, without unused kinds; none before memory is allocated.
    pub memory: Vec<KindNow>,
    /// The same in total.
    pub memory_total: Held,
}

/// Position of a rank's main thread; different whenever it has progressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Ordinal of the operation; all ranks run the same list.
    pub ordinal: u64,
    /// Number of ticks within operations.
    pub ticks: u64,
}

/// Bytes of one kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindNow {
    /// The kind.
    pub kind: MemKind,
    /// Its bytes.
    #[serde(flatten)]
    pub held: Held,
}

/// Current, peak and planned bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Held now.
    pub now: u64,
    /// Maximum held since the first step of this process.
    pub peak: u64,
    /// Maximum of the plan, over all programs of the run.
    pub planned: u64,
}

impl Heartbeat {
    /// The file of `rank`.
    pub fn path(flight_dir: &Path, rank: usize) -> PathBuf {
        flight_dir.join(format!("rank_{rank}.progress"))
    }

    /// The newest heartbeat of `rank`; None if there is none that can be read.
    pub fn read(flight_dir: &Path, rank: usize) -> Option<Self> {
        serde_json::from_slice(&files::read(&Self::path(flight_dir, rank), MAX_RECORD_BYTES).ok()?).ok()
    }

    /// Atomically replaces the file of this rank. It need not survive a crash of the node.
    pub fn write(&self, flight_dir: &Path) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(self).expect("plain data");
        files::replace_unsynced(&Self::path(flight_dir, self.rank), &bytes)
    }

    /// The position of the rank.
    pub fn place(&self) -> Place {
        Place { ordinal: self.ordinal, ticks: self.ticks }
    }

    /// Time without a heartbeat that a live rank may take at most.
    pub fn patience_seconds(&self) -> f64 {
        N_BEATS * self.beat_seconds + SLACK_SECONDS
    }
}
