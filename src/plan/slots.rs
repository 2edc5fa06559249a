//! Placement of every buffer: each has a kind, a size and a lifetime in the schedule, and an offset in the
//! one arena before step 0.

use crate::dtype::DType;
use crate::telemetry::ledger::MemKind;

/// Regions are aligned to cache lines.
pub const ALIGN: usize = 64;

/// Index into a program's slots.
pub type SlotId = usize;

/// A planned region of the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The tensor it holds, for tables and messages.
    pub name: String,
    /// Its kind in the ledger.
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
    /// For gathered parameters, the instruction that waits for them; before it they count as prefetched.
    pub landed: Option<usize>,
}

impl Slot {
    /// A region not bound to instructions.
    pub fn always(name: String, kind: MemKind, numel: usize, dtype: DType) -> Self {
        Slot { name, kind, numel, dtype, offset: 0, first: 0, last: usize::MAX, landed: None }
    }

    /// Size in bytes, without alignment.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.bytes()
    }

    /// Whether both are live at some instruction.
    pub fn overlaps_in_time(&self, other: &Slot) -> bool {
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

/// Bytes a region takes up.
pub fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Places slots one after the other from `base`; returns the end.
pub fn lay_in_a_row(slots: &mut [Slot], base: usize) -> usize {
    let mut end = base;
    for slot in slots {
        slot.offset = end;
        end += aligned(slot.bytes());
    }
    end
}

/// Peak bytes by kind, and in total, over a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peaks {
    /// Peak of each kind, in the order of [`MemKind::ALL`].
    pub by_kind: Vec<(MemKind, u64)>,
    /// Largest sum of all kinds at one instruction.
    pub total: u64,
    /// The instruction that needs it.
    pub at: usize,
}

impl Peaks {
    /// Adds `bytes` of `kind` that are held all the time.
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

/// Walks the lifetimes of `slots` over `n_instrs` instructions, with `resident` slots live throughout.
pub fn peaks(resident: &[Slot], slots: &[Slot], n_instrs: usize) -> Peaks {
    let index = |kind: MemKind| MemKind::ALL.iter().position(|&k| k == kind).expect("every kind is listed");
    let mut now = vec![0i64; MemKind::ALL.len()];
    for slot in resident {
        now[index(slot.kind)] += slot.bytes() as i64;
    }
    let n_instrs = n_instrs.max(1);
    // Change of each kind at an instruction.
    let mut gains: Vec<Vec<(usize, i64)>> = vec![Vec::new(); n_instrs + 1];
    for slot in slots {
        let bytes = slot.bytes() as i64;
        let mut change =
            |at: usize, kind: MemKind, gain: i64| gains[at.min(n_instrs)].push((index(kind), gain));
        change(slot.first, slot.kind_at(slot.first), bytes);
        if let Some(landed) = slot.landed.filter(|&landed| landed > slot.first) {
            change(landed, slot.kind_at(slot.first), -bytes);
            change(landed, slot.kind, bytes);
        }
        change(slot.last.saturating_add(1), slot.kind_at(slot.last), -bytes);
    }
    let mut by_kind: Vec<(MemKind, u64)> = MemKind::ALL.iter().map(|&k| (k, 0)).collect();
    let (mut total, mut peak_at) = (0, 0);
    for (at, gains) in gains.iter().take(n_instrs).enumerate() {
        gains.iter().for_each(|&(kind, gain)| now[kind] += gain);
        for (entry, &bytes) in by_kind.iter_mut().zip(&now) {
            entry.1 = entry.1.max(bytes as u64);
        }
        let sum = now.iter().sum::<i64>() as u64;
        if sum > total {
            (total, peak_at) = (sum, at);
        }
    }
    Peaks { by_kind, total, at: peak_at }
}
