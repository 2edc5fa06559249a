//! Completes states that every rank holds whole but only their owners update: an all-gather of each bucket
//! after the update (parameters), before it (gradients, stage 0), or after a restore (all of them).

use super::knobs::Knobs;
use super::packing;
use super::partition::Partition;
use super::placement::{Hold, Placement, State};
use super::slots::Slot;
use crate::params::{ModelSpec, ParamId};
use crate::telemetry::ledger::MemKind;

/// The planned refresh of every state that is held whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Refresh {
    /// Buckets, in order.
    pub buckets: Vec<Bucket>,
    /// Send staging of all buckets: a copy of this rank's slices, since a collective may not read where it
    /// writes.
    pub slots: Vec<Slot>,
    /// End of the highest slot.
    pub end: usize,
}

/// Parameters refreshed together.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// The state.
    pub state: State,
    /// Parameters.
    pub params: Vec<ParamId>,
    /// Their staging, as indices into [`Refresh::slots`].
    pub staging: Vec<usize>,
}

impl Refresh {
    /// Plans buckets of at most `gather_bucket_bytes`, one after the other, above `base`.
    pub fn new(
        spec: &ModelSpec,
        partitions: &[Partition],
        placements: &[Placement],
        knobs: &Knobs,
        base: usize,
    ) -> Self {
        let mut refresh = Refresh { end: base, ..Refresh::default() };
        for state in State::ALL {
            let Some(dtype) = state.dtype(knobs) else { continue };
            let mut bucket_bytes = u64::MAX;
            for (p, partition) in partitions.iter().enumerate() {
                if placements[p].hold(state) == Hold::Sharded {
                    continue;
                }
                let bytes = (dtype.bytes() * partition.padded_numel()) as u64;
                if bucket_bytes.saturating_add(bytes) > knobs.gather_bucket_bytes.min(u64::MAX - 1) {
                    refresh.buckets.push(Bucket { state, params: Vec::new(), staging: Vec::new() });
                    bucket_bytes = 0;
                }
                bucket_bytes += bytes;
                let at = refresh.buckets.len() - 1;
                let name = format!("{}.{} staging", spec.params[p].name, state.name());
                let mut slot = Slot::always(name, MemKind::Staging, partition.shard_numel(), dtype);
                (slot.first, slot.last) = (at, at);
                refresh.buckets[at].params.push(p);
                refresh.buckets[at].staging.push(refresh.slots.len());
                refresh.slots.push(slot);
            }
        }
        refresh.end = packing::pack(&mut refresh.slots, base);
        refresh
    }

    /// The buckets of one state.
    pub fn of(&self, state: State) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(move |b| b.state == state)
    }

    /// Bytes a rank receives when `state` is refreshed.
    pub fn received_bytes(&self, state: State, world_size: usize) -> u64 {
        let slots = self.of(state).flat_map(|b| &b.staging).map(|&s| self.slots[s].bytes() as u64);
        slots.sum::<u64>() * (world_size as u64 - 1)
    }
}
