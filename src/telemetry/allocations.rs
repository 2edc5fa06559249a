//! How often a step asks the heap for memory, and who asks: counted, so that "the arena is all there is" can be held against
//! a number.
//!
//! [`Counting`] is the program's allocator: the system's, with two counters in front. Only threads that say so are counted (a
//! rank's main thread and its queues), so writers in the background do not show. Compute threads beside the main one are
//! not counted.
//! Must not know: what a step does.

use serde::{Deserialize, Serialize};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// This program.
    Program,
    /// Crate `gemm`: the packing buffers of a matrix product, and their bookkeeping.
    Products,
    /// Crate `rayon`: its list of tasks for the compute threads.
    Tasks,
}

impl Owner {
    /// All, in the order of the counters.
    const ALL: [Owner; 3] = [Owner::Program, Owner::Products, Owner::Tasks];
}

/// What one owner asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocations {
    /// Who.
    pub owner: Owner,
    /// How often.
    pub count: u64,
    /// How much in all, in bytes.
    pub bytes: u64,
    /// The largest single piece, in bytes.
    pub largest_bytes: u64,
}

struct Counters {
    count: AtomicU64,
    bytes: AtomicU64,
    largest: AtomicU64,
}

static COUNTERS: [Counters; Owner::ALL.len()] =
    [const { Counters { count: AtomicU64::new(0), bytes: AtomicU64::new(0), largest: AtomicU64::new(0) } };
        Owner::ALL.len()];

thread_local! {
    /// Whose allocations this thread makes; none where it is not counted. Has no destructor, so that the allocator may ask at
    /// any time.
    static OWNER: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Counts this thread from now on.
pub fn count_this_thread() {
    OWNER.set(Some(Owner::Program));
}

/// Runs `work` with what it allocates on this thread put down to `owner`; where the thread is not counted nothing is.
pub fn on_behalf_of<T>(owner: Owner, work: impl FnOnce() -> T) -> T {
    let before = OWNER.get();
    OWNER.set(before.map(|_| owner));
    let result = work();
    OWNER.set(before);
    result
}

/// What the counted threads asked for since the last call. The process has one set of counters.
pub fn take() -> [Allocations; Owner::ALL.len()] {
    Owner::ALL.map(|owner| {
        let of = &COUNTERS[owner as usize];
        let [count, bytes, largest_bytes] = [&of.count, &of.bytes, &of.largest].map(|c| c.swap(0, Relaxed));
        Allocations { owner, count, bytes, largest_bytes }
    })
}

/// The system's allocator, counted.
pub struct Counting;

impl Counting {
    fn note(bytes: usize) {
        if let Some(owner) = OWNER.get() {
            let of = &COUNTERS[owner as usize];
            of.count.fetch_add(1, Relaxed);
            of.bytes.fetch_add(bytes as u64, Relaxed);
            of.largest.fetch_max(bytes as u64, Relaxed);
        }
    }
}

// SAFETY: every call is the system allocator's own; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::note(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, new_size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}
