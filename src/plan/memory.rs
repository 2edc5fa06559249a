//! Where every buffer lies: each one has a kind, a size and a lifetime in the schedule, and gets its offset in
//! the one arena before step 0.

use crate::dtype::DType;
use crate::telemetry::ledger::MemKind;

/// Regions start on cache lines.
pub const ALIGN: usize = 64;

/// Index into a program's slots.
pub type SlotId = usize;

/// A planned region of the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Which tensor it holds, for tables and messages.
    pub name: String,
    /// What it counts as in the ledger.
    pub kind: MemKind,
    /// Elements.
    pub numel: usize,
    /// Element type.
    pub dtype: DType,
    /// Byte offset in the arena.
    pub offset: usize,
    /// First instruction that needs it.
    pub first: usize,
    /// Last instruction that needs it.
    pub last: usize,
    /// Gathered parameters: the instruction that waits for them; before it they count as prefetched.
    pub landed: Option<usize>,
}

impl Slot {
    /// A region that is not bound to instructions.
    pub fn always(name: String, kind: MemKind, numel: usize, dtype: DType) -> Self {
        Slot { name, kind, numel, dtype, offset: 0, first: 0, last: usize::MAX, landed: None }
    }

    /// Size in bytes, without alignment.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.bytes()
    }

    fn overlaps_in_time(&self, other: &Slot) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The ledger kind at instruction `at`.
    pub fn kind_at(&self, at: usize) -> MemKind {
        match self.landed {
            Some(landed) if at < landed => MemKind::Prefetched,
            _ => self.kind,
        }
    }
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Lays slots one after the other from `base`; returns the end.
pub fn lay_in_a_row(slots: &mut [Slot], base: usize) -> usize {
    let mut end = base;
    for slot in slots {
        slot.offset = end;
        end += aligned(slot.bytes());
    }
    end
}

/// Gives every slot the lowest offset at or above `base` that collides with no slot alive at the same time,
/// largest first. Returns the end of the highest slot.
pub fn pack(slots: &mut [Slot], base: usize) -> usize {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(slots[i].bytes()), slots[i].first, i));
    let mut placed: Vec<usize> = Vec::with_capacity(slots.len());
    let mut end = base;
    for i in order {
        let size = aligned(slots[i].bytes());
        let mut neighbours: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| slots[j].overlaps_in_time(&slots[i]))
            .map(|&j| (slots[j].offset, slots[j].offset + aligned(slots[j].bytes())))
            .collect();
        neighbours.sort_unstable();
        let mut offset = base;
        for (start, stop) in neighbours {
            if offset + size <= start {
                break;
            }
            offset = offset.max(stop);
        }
        slots[i].offset = offset;
        end = end.max(offset + size);
        placed.push(i);
    }
    end
}

/// Peak bytes by kind, and of everything at once, over a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peaks {
    /// Peak of each kind on its own, in the order of [`MemKind::ALL`].
    pub by_kind: Vec<(MemKind, u64)>,
    /// Largest sum of all kinds at one instruction.
    pub total: u64,
    /// The instruction that needs it.
    pub at: usize,
}

impl Peaks {
    /// Counts `bytes` of `kind` that are held all the time.
    pub fn add_throughout(&mut self, kind: MemKind, bytes: u64) {
        self.by_kind.iter_mut().filter(|(k, _)| *k == kind).for_each(|(_, peak)| *peak += bytes);
        self.total += bytes;
    }

    /// The larger of each figure.
    pub fn raise(&mut self, other: &Peaks) {
        for (a, b) in self.by_kind.iter_mut().zip(&other.by_kind) {
            a.1 = a.1.max(b.1);
        }
        self.total = self.total.max(other.total);
    }
}

/// Walks the lifetimes of `slots` over `n_instrs` instructions, with `resident` slots alive throughout.
pub fn peaks(resident: &[Slot], slots: &[Slot], n_instrs: usize) -> Peaks {
    let mut by_kind: Vec<(MemKind, u64)> = MemKind::ALL.iter().map(|&k| (k, 0)).collect();
    let index = |kind: MemKind| MemKind::ALL.iter().position(|&k| k == kind).expect("every kind is listed");
    let mut base = vec![0u64; by_kind.len()];
    for slot in resident {
        base[index(slot.kind)] += slot.bytes() as u64;
    }
    let (mut total, mut peak_at) = (0, 0);
    for at in 0..n_instrs.max(1) {
        let mut now = base.clone();
        for slot in slots.iter().filter(|s| s.first <= at && at <= s.last) {
            now[index(slot.kind_at(at))] += slot.bytes() as u64;
        }
        for (entry, &bytes) in by_kind.iter_mut().zip(&now) {
            entry.1 = entry.1.max(bytes);
        }
        let sum = now.iter().sum();
        if sum > total {
            (total, peak_at) = (sum, at);
        }
    }
    Peaks { by_kind, total, at: peak_at }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
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
