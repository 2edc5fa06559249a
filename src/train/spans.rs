//! Spans of a step whose times are read at its end, because a device may not have reached their marks before.
//!
//! Must not know: what is measured (`bookkeeping.rs`), where the times go (`tracing.rs`).

use crate::params::UnitId;
use crate::telemetry::Track;

/// A span between two marks.
pub struct PendingSpan<M> {
    pub(super) kind: SpanKind,
    pub(super) unit: UnitId,
    pub(super) start: M,
    pub(super) end: M,
    /// Whether it belongs to training and counts for its unit.
    pub(super) counts: bool,
}

/// The subject of a [`PendingSpan`].
pub(super) enum SpanKind {
    /// A collective on its queue.
    Collective { track: Track, bytes: u64, live_bytes: u64 },
    /// A wait of the compute queue for a collective.
    Wait { on: Track },
    /// Gathered parameters between their last use and their release.
    UnusedParams { bytes: u64 },
    /// An instruction; in traced steps only.
    Instr { what: &'static str, bytes: u64, live_bytes: u64 },
}
