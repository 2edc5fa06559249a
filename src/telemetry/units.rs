//! Per unit, over a whole run: the duration of its collectives, the time compute had to wait for them, and
//! whether its parameters outlived their use. Always on: a few additions per instruction.
//!
//! Must not know: what a unit is.

use serde::{Deserialize, Serialize};

/// Figures of one unit on one rank, summed over the training steps of a process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct UnitTimes {
    /// Time its all-gathers ran, in ms.
    pub gather_ms: f64,
    /// Time compute waited for them.
    pub gather_wait_ms: f64,
    /// Payload received.
    pub gather_bytes: f64,
    /// Time its gradient reductions ran.
    pub reduce_ms: f64,
    /// Time compute waited for them.
    pub reduce_wait_ms: f64,
    /// Payload received.
    pub reduce_bytes: f64,
    /// Gathered bytes times the ms they were held after their last use.
    pub late_byte_ms: f64,
}

impl UnitTimes {
    /// The mean of each figure; zeros for an empty input.
    pub fn mean<'a>(ranks: impl ExactSizeIterator<Item = &'a UnitTimes>) -> Self {
        let n = ranks.len().max(1) as f64;
        ranks.fold(UnitTimes::default(), |sum, r| UnitTimes {
            gather_ms: sum.gather_ms + r.gather_ms / n,
            gather_wait_ms: sum.gather_wait_ms + r.gather_wait_ms / n,
            gather_bytes: sum.gather_bytes + r.gather_bytes / n,
            reduce_ms: sum.reduce_ms + r.reduce_ms / n,
            reduce_wait_ms: sum.reduce_wait_ms + r.reduce_wait_ms / n,
            reduce_bytes: sum.reduce_bytes + r.reduce_bytes / n,
            late_byte_ms: sum.late_byte_ms + r.late_byte_ms / n,
        })
    }

    /// Fraction of the communication time that compute did not wait for, 0 to 1; None without communication.
    pub fn hidden(comm_ms: f64, wait_ms: f64) -> Option<f64> {
        (comm_ms > 0.0).then(|| (1.0 - wait_ms / comm_ms).clamp(0.0, 1.0))
    }
}
