//! `RUN/flight/rank_N.progress`: what a rank says of itself every few seconds while it lives.
//!
//! The recorder's second thread writes it; the watchdogs of the other ranks and `zero3 watch` read it. Must
//! not know: what an operation is.

use crate::files::{self, MAX_RECORD_BYTES};
use crate::telemetry::ledger::MemKind;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Directory of the files under the run directory.
pub const FLIGHT_DIR: &str = "flight";

/// Beats without a new sign after which a rank counts as gone.
const N_BEATS: f64 = 5.0;
/// What a file may take to be written and seen besides.
const SLACK_SECONDS: f64 = 3.0;

/// One rank, at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    /// Which rank.
    pub rank: usize,
    /// Ranks of the job.
    pub world_size: usize,
    /// Its node.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Unix time at which its recorder began.
    pub started_unix: f64,
    /// Counts up as long as the process lives.
    pub beat: u64,
    /// At most so long after the last one.
    pub beat_seconds: f64,
    /// Unix time of this sign.
    pub updated_unix: f64,
    /// Number of the operation; all ranks run the same list.
    pub ordinal: u64,
    /// Signs of getting on within operations.
    pub ticks: u64,
    /// The step that is under way.
    pub step: u64,
    /// The operation.
    pub what: String,
    /// Unix time at which it began.
    pub since_unix: f64,
    /// Units whose parameters are whole now.
    pub gathered: Vec<String>,
    /// Units whose parameters are on their way.
    pub gathering: Vec<String>,
    /// Bytes of the ledger by kind, kinds that are never held left out; none before memory is there.
    pub memory: Vec<KindNow>,
    /// The same of all kinds together.
    pub memory_total: Held,
}

/// Where a rank's main thread is: another place whenever it has got on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the operation; all ranks run the same list.
    pub ordinal: u64,
    /// Signs of getting on within operations.
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

/// Bytes that are held, were held, and may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Held now.
    pub now: u64,
    /// Most that were held since the first step of this process.
    pub peak: u64,
    /// Most that the plan holds, over all programs the run has.
    pub planned: u64,
}

impl Heartbeat {
    /// The file of `rank`.
    pub fn path(flight_dir: &Path, rank: usize) -> PathBuf {
        flight_dir.join(format!("rank_{rank}.progress"))
    }

    /// The newest sign of `rank`; None where there is none that can be read.
    pub fn read(flight_dir: &Path, rank: usize) -> Option<Self> {
        serde_json::from_slice(&files::read(&Self::path(flight_dir, rank), MAX_RECORD_BYTES).ok()?).ok()
    }

    /// Replaces the file of this rank in one piece. It need not outlive the node.
    pub fn write(&self, flight_dir: &Path) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(self).expect("plain data");
        files::replace_unsynced(&Self::path(flight_dir, self.rank), &bytes)
    }

    /// Where the rank is.
    pub fn place(&self) -> Place {
        Place { ordinal: self.ordinal, ticks: self.ticks }
    }

    /// How long no sign may come from a rank that lives.
    pub fn patience_seconds(&self) -> f64 {
        N_BEATS * self.beat_seconds + SLACK_SECONDS
    }
}
