//! Offsets for buffers with limited lifetimes: two may share space if they are never live at the same time.
//!
//! First fit, largest first. Occupied ranges are stored in a tree over the instructions, so that placing a
//! slot queries a few sets instead of every slot placed before.

use super::slots::{Slot, aligned};
use std::collections::BTreeMap;

/// Gives every slot the lowest offset at or above `base` that collides with no slot live at the same time,
/// largest first. Returns the end of the highest slot.
pub fn pack(slots: &mut [Slot], base: usize) -> usize {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(slots[i].bytes()), slots[i].first, i));
    let mut taken = Taken::new(slots.iter().map(|slot| slot.last + 1).max().unwrap_or(0));
    let mut end = base;
    for i in order {
        let slot = &mut slots[i];
        slot.offset = base;
        let size = aligned(slot.bytes());
        if size > 0 {
            slot.offset = taken.lowest_fit((slot.first, slot.last + 1), base, size);
            taken.insert((slot.first, slot.last + 1), slot.offset, slot.offset + size);
        }
        end = end.max(slot.offset + size);
    }
    end
}

/// Disjoint occupied ranges: start to end.
#[derive(Default)]
struct Places(BTreeMap<usize, usize>);

impl Places {
    /// Adds `start..end`, merged with ranges it overlaps or touches.
    fn insert(&mut self, mut start: usize, mut end: usize) {
        while let Some((&s, &e)) = self.0.range(..=end).next_back().filter(|&(_, &e)| e >= start) {
            (start, end) = (start.min(s), end.max(e));
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    /// The end of a range that overlaps `start..end`, if any.
    fn in_the_way(&self, start: usize, end: usize) -> Option<usize> {
        self.0.range(..end).next_back().map(|(_, &e)| e).filter(|&e| e > start)
    }
}

/// A segment tree over instructions: node `i` covers those of its children `2 i` and `2 i + 1`, leaf
/// `n_leaves + t` is `t`.
struct Taken {
    n_leaves: usize,
    /// Occupied during all instructions of the node.
    throughout: Vec<Places>,
    /// Occupied during some of them.
    sometimes: Vec<Places>,
}

impl Taken {
    fn new(n_instrs: usize) -> Self {
        let n_leaves = n_instrs.next_power_of_two();
        let places = || (0..2 * n_leaves).map(|_| Places::default()).collect();
        Taken { n_leaves, throughout: places(), sometimes: places() }
    }

    /// The smallest set of nodes that covers the instructions `first..end`.
    fn cover(&self, (first, end): (usize, usize)) -> Vec<usize> {
        let (mut low, mut high) = (first + self.n_leaves, end + self.n_leaves);
        let mut nodes = Vec::new();
        while low < high {
            if low % 2 == 1 {
                nodes.push(low);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                nodes.push(high);
            }
            (low, high) = (low / 2, high / 2);
        }
        nodes
    }

    /// The ancestors of `node`.
    fn above(node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(node / 2), |n| Some(n / 2)).take_while(|&n| n > 0)
    }

    /// The lowest offset from `base` at which `size` bytes are free during `life`.
    fn lowest_fit(&self, life: (usize, usize), base: usize, size: usize) -> usize {
        let cover = self.cover(life);
        let mut above: Vec<usize> = cover.iter().flat_map(|&node| Self::above(node)).collect();
        above.sort_unstable();
        above.dedup();
        let within = cover.iter().map(|&node| &self.sometimes[node]);
        let sets: Vec<&Places> = within.chain(above.iter().map(|&node| &self.throughout[node])).collect();
        let mut offset = base;
        while let Some(end) = sets.iter().filter_map(|places| places.in_the_way(offset, offset + size)).max()
        {
            offset = end;
        }
        offset
    }

    fn insert(&mut self, life: (usize, usize), start: usize, end: usize) {
        for node in self.cover(life) {
            self.throughout[node].insert(start, end);
            for n in std::iter::once(node).chain(Self::above(node)) {
                self.sometimes[n].insert(start, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::plan::slots::{ALIGN, peaks};
    use crate::telemetry::ledger::MemKind;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    fn slot(numel: usize, first: usize, last: usize) -> Slot {
        Slot {
            name: format!("{numel}@{first}..={last}"),
            kind: MemKind::Activation,
            numel,
            dtype: DType::F32,
            offset: 0,
            first,
            last,
            landed: None,
        }
    }

    #[test]
    fn slots_apart_in_time_share_their_place() {
        let mut slots = vec![slot(100, 0, 1), slot(100, 2, 3)];
        assert_eq!(pack(&mut slots, 128), 128 + 448);
        assert_eq!(slots[0].offset, slots[1].offset);
    }

    /// The same by asking every slot placed before; returns the offsets.
    fn pack_plainly(slots: &[Slot], base: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_by_key(|&i| (Reverse(slots[i].bytes()), slots[i].first, i));
        let mut offsets = vec![base; slots.len()];
        for (at, &i) in order.iter().enumerate() {
            let size = aligned(slots[i].bytes());
            let before = order[..at].iter().filter(|&&j| slots[j].overlaps_in_time(&slots[i]));
            let mut taken: Vec<(usize, usize)> =
                before.map(|&j| (offsets[j], offsets[j] + aligned(slots[j].bytes()))).collect();
            taken.sort_unstable();
            for (start, end) in taken {
                if offsets[i] + size <= start {
                    break;
                }
                offsets[i] = offsets[i].max(end);
            }
        }
        offsets
    }

    /// The same by asking every slot at every instruction.
    fn peaks_plainly(slots: &[Slot], n_instrs: usize) -> (Vec<u64>, u64) {
        let alive = |at: usize| slots.iter().filter(move |s| s.first <= at && at <= s.last);
        let of_kind = |kind: MemKind| {
            let held = |at| alive(at).filter(|s| s.kind_at(at) == kind).map(|s| s.bytes() as u64).sum();
            (0..n_instrs).map(held).max().unwrap_or(0)
        };
        let together = (0..n_instrs).map(|at| alive(at).map(|s| s.bytes() as u64).sum()).max();
        (MemKind::ALL.map(of_kind).to_vec(), together.unwrap_or(0))
    }

    proptest! {
        #[test]
        fn places_are_those_of_the_plain_search_and_peaks_those_of_the_plain_count(
            shapes in prop::collection::vec((0usize..400, 0usize..70, 0usize..40, any::<bool>()), 1..80)
        ) {
            let mut slots: Vec<Slot> = shapes.iter().map(|&(n, f, d, _)| slot(n, f, f + d)).collect();
            for (slot, &(_, first, _, _)) in slots.iter_mut().zip(&shapes).filter(|(_, shape)| shape.3) {
                (slot.kind, slot.landed) = (MemKind::Gathered, Some((first + 2).min(slot.last)));
            }
            let want = pack_plainly(&slots, 128);
            pack(&mut slots, 128);
            prop_assert_eq!(slots.iter().map(|s| s.offset).collect::<Vec<_>>(), want);
            let got = peaks(&[], &slots, 120);
            let by_kind: Vec<u64> = got.by_kind.iter().map(|(_, bytes)| *bytes).collect();
            prop_assert_eq!((by_kind, got.total), peaks_plainly(&slots, 120));
        }

        #[test]
        fn living_slots_never_overlap_and_the_end_covers_the_peak(
            shapes in prop::collection::vec((0usize..400, 0usize..30, 0usize..8), 1..60)
        ) {
            let mut slots: Vec<Slot> = shapes.iter().map(|&(n, f, d)| slot(n, f, f + d)).collect();
            let end = pack(&mut slots, 64);
            for (i, a) in slots.iter().enumerate() {
                prop_assert!(a.offset >= 64 && a.offset % ALIGN == 0 && a.offset + a.bytes() <= end);
                for b in &slots[..i] {
                    let apart = a.offset + a.bytes() <= b.offset || b.offset + b.bytes() <= a.offset;
                    prop_assert!(!a.overlaps_in_time(b) || apart, "{} {}", a.name, b.name);
                }
            }
            prop_assert!(peaks(&[], &slots, 40).total <= (end - 64) as u64);
        }
    }
}
