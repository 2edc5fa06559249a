//! Per unit, over a whole run: how long its collectives took, how much of that compute had to wait for, and whether its
//! parameters outlived their use. Always on: a few additions per instruction.
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
    /// Payload they brought.
    pub gather_bytes: f64,
    /// Time its gradient reductions ran.
    pub reduce_ms: f64,
    /// Time compute waited for them.
    pub reduce_wait_ms: f64,
    /// Payload they brought.
    pub reduce_bytes: f64,
    /// Gathered bytes times the ms they were kept after their last use.
    pub late_byte_ms: f64,
}

/// Numbers in a [`UnitTimes`].
pub const N_TIMES: usize = 7;

impl UnitTimes {
    /// The numbers in a fixed order.
    pub fn to_array(&self) -> [f64; N_TIMES] {
        let UnitTimes {
            gather_ms,
            gather_wait_ms,
            gather_bytes,
            reduce_ms,
            reduce_wait_ms,
            reduce_bytes,
            late_byte_ms,
        } = *self;
        [gather_ms, gather_wait_ms, gather_bytes, reduce_ms, reduce_wait_ms, reduce_bytes, late_byte_ms]
    }

    /// The reverse of [`UnitTimes::to_array`].
    pub fn from_array(numbers: [f64; N_TIMES]) -> Self {
        let [gather_ms, gather_wait_ms, gather_bytes, reduce_ms, reduce_wait_ms, reduce_bytes, late_byte_ms] = numbers;
        UnitTimes { gather_ms, gather_wait_ms, gather_bytes, reduce_ms, reduce_wait_ms, reduce_bytes, late_byte_ms }
    }

    /// Share of the communication time that compute did not wait for, 0 to 1; None where there was none.
    pub fn hidden(comm_ms: f64, wait_ms: f64) -> Option<f64> {
        (comm_ms > 0.0).then(|| (1.0 - wait_ms / comm_ms).clamp(0.0, 1.0))
    }
}
