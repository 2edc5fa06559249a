//! The program's allocator, [`Counting`]: the system allocator, with two additions.
//!
//! It counts the heap allocations of a step, and their owner, to verify that the arena is the only memory in
//! use. Only threads that opt in are counted (a rank's main thread, its queues and its compute threads), so
//! background writers are not included.
//!
//! In addition, each of these threads retains the packing buffers of crate `gemm`, which needs one for nearly
//! every product, some of megabytes, and does not accept one from its caller. From the heap each would come
//! from a different place, and fragmentation would grow the heap long after the first step.
//!
//! Must not know: what a step does.

use serde::{Deserialize, Serialize};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The owner of allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// This program.
    Program,
    /// Crate `gemm`: packing buffers of matrix products larger than any before on that thread.
    Products,
    /// Crates `rayon` and `gemm` with several threads: task lists, and the bookkeeping of tasks.
    Tasks,
}

impl Owner {
    /// All, in the order of the counters.
    const ALL: [Owner; 3] = [Owner::Program, Owner::Products, Owner::Tasks];
}

/// The allocations of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocations {
    /// The owner.
    pub owner: Owner,
    /// Number of allocations.
    pub count: u64,
    /// Total size, in bytes.
    pub bytes: u64,
    /// The largest single allocation, in bytes.
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
    /// The owner of this thread's allocations; none if it is not counted. Has no destructor, so that the
    /// allocator may access it at any time.
    static OWNER: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Counts this thread from now on; its allocations belong to `owner` unless specified otherwise.
///
/// # Panics
/// For [`Owner::Products`]: that is [`packing`].
pub fn count_this_thread(owner: Owner) {
    assert_ne!(owner, Owner::Products, "products are counted by `packing`");
    OWNER.set(Some(owner));
}

/// Runs `work` with its allocations on this thread attributed to `owner`; no effect if the thread is not
/// counted.
///
/// # Panics
/// For [`Owner::Products`]: that is [`packing`].
pub fn on_behalf_of<T>(owner: Owner, work: impl FnOnce() -> T) -> T {
    assert_ne!(owner, Owner::Products, "products are counted by `packing`");
    put_down_to(owner, work)
}

/// The same for a matrix product of crate `gemm`, which uses the buffers retained by the thread.
///
/// # Safety
/// Allocations of `work` on this thread must be freed on this thread. Another one would return a buffer to
/// the heap without this one noticing.
pub unsafe fn packing<T>(work: impl FnOnce() -> T) -> T {
    put_down_to(Owner::Products, work)
}

fn put_down_to<T>(owner: Owner, work: impl FnOnce() -> T) -> T {
    let before = OWNER.get();
    OWNER.set(before.map(|_| owner));
    let result = work();
    OWNER.set(before);
    result
}

/// The allocations of the counted threads since the last call. The process has one set of counters.
pub fn take() -> [Allocations; Owner::ALL.len()] {
    Owner::ALL.map(|owner| {
        let of = &COUNTERS[owner as usize];
        let [count, bytes, largest_bytes] = [&of.count, &of.bytes, &of.largest].map(|c| c.swap(0, Relaxed));
        Allocations { owner, count, bytes, largest_bytes }
    })
}

/// A packing buffer retained by a thread.
#[derive(Clone, Copy)]
struct Piece {
    start: *mut u8,
    /// Its size and alignment; none before it is allocated.
    layout: Option<Layout>,
    /// Whether it is in use.
    lent: bool,
}

impl Piece {
    const NONE: Piece = Piece { start: std::ptr::null_mut(), layout: None, lent: false };

    fn size(&self) -> usize {
        self.layout.map_or(0, |kept| kept.size())
    }

    fn fits(&self, layout: Layout) -> bool {
        self.layout.is_some_and(|kept| kept.size() >= layout.size() && kept.align() >= layout.align())
    }
}

thread_local! {
    /// `gemm` holds one for as long as the thread lives, and some during a product. Like [`OWNER`] without a
    /// destructor: they live to the end of the process.
    static PACKING: Cell<[Piece; N_PIECES]> = const { Cell::new([Piece::NONE; N_PIECES]) };
}

/// More than a product needs at once, including those that its thread runs while it waits for others; beyond
/// this, the heap would be used, and counted.
const N_PIECES: usize = 8;

/// The system's allocator, counted, with retained packing buffers.
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

    /// One of the thread's buffers, if the allocation is for packing and one is free: the smallest that fits,
    /// or another one enlarged.
    fn lend(layout: Layout) -> Option<*mut u8> {
        if OWNER.get() != Some(Owner::Products) {
            return None;
        }
        let mut pieces = PACKING.get();
        let free = pieces.iter_mut().filter(|piece| !piece.lent);
        let piece = free.min_by_key(|piece| (!piece.fits(layout), piece.size()))?;
        if !piece.fits(layout) {
            if let Some(kept) = piece.layout {
                // SAFETY: it was allocated below with this layout, and is not in use.
                unsafe { System.dealloc(piece.start, kept) };
            }
            Self::note(layout.size());
            // SAFETY: not of size 0.
            piece.start = unsafe { System.alloc(layout) };
            piece.layout = (!piece.start.is_null()).then_some(layout);
        }
        piece.lent = piece.layout.is_some();
        let lent = piece.lent.then_some(piece.start);
        PACKING.set(pieces);
        lent
    }

    /// The thread's buffer that starts at `start`, if there is one and it is in use.
    fn lent(pieces: &mut [Piece; N_PIECES], start: *mut u8) -> Option<&mut Piece> {
        pieces.iter_mut().find(|piece| piece.lent && piece.start == start)
    }

    /// Whether `start` was one of the thread's buffers, which is now available for the next product.
    fn take_back(start: *mut u8) -> bool {
        let mut pieces = PACKING.get();
        let piece = Self::lent(&mut pieces, start);
        let is_ours = piece.map(|piece| piece.lent = false).is_some();
        if is_ours {
            PACKING.set(pieces);
        }
        is_ours
    }
}

// SAFETY: every block comes from the system allocator, and is handed out once until it is returned; counting
// and lending neither allocate from here nor unwind. A buffer is returned on the thread it was lent to, as
// [`packing`] requires.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(start) = Self::lend(layout) {
            return start;
        }
        Self::note(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(start) = Self::lend(layout) {
            // SAFETY: the buffer is as large as the layout requires, and owned by the caller alone.
            unsafe { start.write_bytes(0, layout.size()) };
            return start;
        }
        Self::note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if Self::lent(&mut PACKING.get(), old).is_some() {
            // SAFETY: the caller upholds the contract of `realloc`: the new size is valid, and the old block
            // is as large as `layout`.
            return unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new.is_null() {
                    new.copy_from_nonoverlapping(old, layout.size().min(new_size));
                    self.dealloc(old, layout);
                }
                new
            };
        }
        Self::note(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, new_size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        if !Self::take_back(old) {
            // SAFETY: as above.
            unsafe { System.dealloc(old, layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_counted_thread(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                count_this_thread(Owner::Program);
                work();
            });
            thread.join().expect("the work does not panic");
        });
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).expect("a power of two")
    }

    #[test]
    fn packing_gets_the_same_piece_until_it_is_too_small() {
        on_a_counted_thread(|| {
            // SAFETY: each block is written within its size and given back once.
            put_down_to(Owner::Products, || unsafe {
                let first = Counting.alloc(layout(8000));
                first.write_bytes(1, 8000);
                Counting.dealloc(first, layout(8000));
                let smaller = Counting.alloc(layout(5000));
                assert_eq!(first, smaller);
                let others = [(); N_PIECES].map(|()| Counting.alloc(layout(5000)));
                for other in others {
                    assert_ne!(other, smaller, "lent once at a time");
                    other.write_bytes(2, 5000);
                }
                assert_eq!(*smaller, 1);
                others.into_iter().chain([smaller]).for_each(|block| Counting.dealloc(block, layout(5000)));
                let growing = Counting.alloc(layout(100));
                growing.write_bytes(4, 100);
                let grown = Counting.realloc(growing, layout(100), 9000);
                assert!(std::slice::from_raw_parts(grown, 100).iter().all(|&byte| byte == 4));
                Counting.dealloc(grown, layout(9000));
                let larger = Counting.alloc(layout(1 << 20));
                larger.write_bytes(3, 1 << 20);
                Counting.dealloc(larger, layout(1 << 20));
                assert_eq!(Counting.alloc(layout(1 << 19)), larger, "the one that fits");
                Counting.dealloc(larger, layout(1 << 19));
            });
        });
    }

    #[test]
    #[should_panic(expected = "products are counted by `packing`")]
    fn no_safe_call_lends() {
        on_behalf_of(Owner::Products, || ());
    }

    #[test]
    fn nobody_else_gets_it() {
        on_a_counted_thread(|| {
            // SAFETY: as above.
            unsafe {
                let kept = put_down_to(Owner::Products, || {
                    let kept = Counting.alloc(layout(8000));
                    Counting.dealloc(kept, layout(8000));
                    kept
                });
                let other = Counting.alloc(layout(8000));
                assert_ne!(other, kept);
                Counting.dealloc(other, layout(8000));
            }
        });
    }
}
