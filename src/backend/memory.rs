//! Hands out the planned regions of the arena and takes them back.
//!
//! It keeps three promises: two living [`Buf`]s never overlap (checked on every take); the [`Ledger`] holds
//! exactly the bytes of the living buffers; a region is reused only after the event of its last use.

use super::buffer::{Arena, Buf};
use super::{Device, Queue};
use crate::plan::slots::Slot;
use crate::telemetry::ledger::{Ledger, MemKind};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// The arena at run time.
pub struct Memory<D: Device> {
    arena: Arc<Arena>,
    /// Living regions in bytes, ascending. A list, not a tree: it keeps its room from step to step.
    live: Vec<Range<usize>>,
    /// Regions given back, with the last use of each; a later taker waits for it.
    freed: Vec<(Range<usize>, D::Event)>,
    ledger: Arc<Ledger>,
    /// Bytes in the ledger that lie outside the arena, in host memory.
    outside_bytes: Cell<u64>,
    /// Fill what is given back with NaN, so that a use after release shows.
    poison: bool,
}

impl<D: Device> Memory<D> {
    /// Manages `arena`; nothing is taken yet.
    pub fn new(arena: Arc<Arena>, poison: bool) -> Self {
        Memory {
            arena,
            live: Vec::new(),
            freed: Vec::new(),
            ledger: Arc::default(),
            outside_bytes: Cell::new(0),
            poison,
        }
    }

    /// Takes the region of `slot` for work on `queue`. Contents are whatever was there.
    ///
    /// # Panics
    /// Where a living buffer overlaps it: the plan would be wrong.
    pub fn take(&mut self, device: &D, slot: &Slot, kind: MemKind, queue: Queue) -> Buf {
        let range = slot.offset..slot.offset + slot.bytes();
        if !range.is_empty() {
            let at = self.live.partition_point(|living| living.start < range.end);
            if let Some(before) = self.live[..at].last() {
                assert!(
                    before.end <= range.start,
                    "{} at {range:?} overlaps a living buffer at {before:?}",
                    slot.name
                );
            }
            self.live.insert(at, range.clone());
            self.freed.retain(|(freed, last_use)| {
                if freed.start < range.end && range.start < freed.end {
                    device.wait(queue, last_use);
                }
                // Covered regions are forgotten; a region covered in part still guards the rest.
                !(range.start <= freed.start && freed.end <= range.end)
            });
        }
        self.ledger.take(kind, slot.bytes() as u64);
        self.check();
        Buf::new(&self.arena, slot.offset, slot.numel, slot.dtype)
    }

    /// Takes a buffer back after all work on the compute queue so far, and whatever the host has waited for.
    pub fn give(&mut self, device: &D, mut buf: Buf, kind: MemKind) {
        if self.poison {
            device.fill_bytes(buf.view_mut(), 0xff);
        }
        let range = buf.offset()..buf.offset() + buf.bytes();
        if !range.is_empty() {
            let at = self.live.binary_search_by_key(&range.start, |living| living.start);
            let at = at.expect("a buffer given back was taken from this arena");
            assert_eq!(self.live.remove(at), range, "a buffer is given back whole");
            self.freed.push((range, device.record(Queue::Compute)));
        }
        self.ledger.give(kind, buf.bytes() as u64);
        self.check();
    }

    /// Counts a living buffer as another kind from now on.
    pub fn convert(&mut self, buf: &Buf, from: MemKind, to: MemKind) {
        self.ledger.convert(from, to, buf.bytes() as u64);
    }

    /// Counts host memory outside the arena, held for the rest of the run.
    pub fn count_outside(&self, kind: MemKind, bytes: u64) {
        self.ledger.take(kind, bytes);
        self.outside_bytes.set(self.outside_bytes.get() + bytes);
    }

    /// Bytes by kind, now and at peak.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The same, for another thread to look at.
    pub fn share_ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// The ledger and the arena agree.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let living: usize = self.live.iter().map(Range::len).sum();
            let counted = self.ledger.total_now() - self.outside_bytes.get();
            assert_eq!(counted, living as u64, "ledger against living buffers of the arena");
        }
    }
}
