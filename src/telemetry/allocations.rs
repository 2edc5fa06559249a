//! The program's allocator, [`Counting`]: the system's, with two additions.
//!
//! It counts how often a step asks the heap for memory, and on whose behalf, so that "the arena is all there
//! is" can be held against a number. Only threads that say so are counted (a rank's main thread, its queues
//! and its compute threads), so writers in the background do not show.
//!
//! And each of these threads keeps what crate `gemm` packs in: it wants a buffer for nearly every product,
//! some of megabytes, and takes none from its caller. Out of the heap it would come from another place each
//! time, and what lies between would make the heap grow long after the first step.
//!
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
    /// Crate `gemm`: packing buffers of matrix products that are larger than any before on that thread.
    Products,
    /// Crates `rayon` and `gemm` where several threads compute: lists of tasks, and what a task notes for
    /// itself.
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
    /// Whose allocations this thread makes; none where it is not counted. Has no destructor, so that the
    /// allocator may ask at any time.
    static OWNER: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Counts this thread from now on; what it asks for is put down to `owner` where nobody says otherwise.
///
/// # Panics
/// For [`Owner::Products`]: that is [`packing`].
pub fn count_this_thread(owner: Owner) {
    assert_ne!(owner, Owner::Products, "products are counted by `packing`");
    OWNER.set(Some(owner));
}

/// Runs `work` with what it allocates on this thread put down to `owner`; where the thread is not counted
/// nothing is.
///
/// # Panics
/// For [`Owner::Products`]: that is [`packing`].
pub fn on_behalf_of<T>(owner: Owner, work: impl FnOnce() -> T) -> T {
    assert_ne!(owner, Owner::Products, "products are counted by `packing`");
    put_down_to(owner, work)
}

/// The same for a matrix product of crate `gemm`, which gets the pieces that the thread keeps.
///
/// # Safety
/// What `work` allocates on this thread is given back on this thread. Another one would give a piece to the
/// heap, and this one would not know.
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

/// What the counted threads asked for since the last call. The process has one set of counters.
pub fn take() -> [Allocations; Owner::ALL.len()] {
    Owner::ALL.map(|owner| {
        let of = &COUNTERS[owner as usize];
        let [count, bytes, largest_bytes] = [&of.count, &of.bytes, &of.largest].map(|c| c.swap(0, Relaxed));
        Allocations { owner, count, bytes, largest_bytes }
    })
}

/// A buffer that a thread keeps for packing.
#[derive(Clone, Copy)]
struct Piece {
    start: *mut u8,
    /// Its size and alignment; none before there is one.
    layout: Option<Layout>,
    /// Somebody has it.
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
    /// `gemm` has one for as long as the thread lives, and some for the time of a product. As [`OWNER`]
    /// without a destructor: they are kept to the end of the process.
    static PACKING: Cell<[Piece; N_PIECES]> = const { Cell::new([Piece::NONE; N_PIECES]) };
}

/// More than a product has at once, and those that its thread takes up while it waits for others; were it
/// more, the heap would be asked, and that counted.
const N_PIECES: usize = 8;

/// The system's allocator, counted, with a kept piece for packing.
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

    /// One of the thread's pieces, where it is for packing and one is free: the smallest that fits, or
    /// another made larger.
    fn lend(layout: Layout) -> Option<*mut u8> {
        if OWNER.get() != Some(Owner::Products) {
            return None;
        }
        let mut pieces = PACKING.get();
        let free = pieces.iter_mut().filter(|piece| !piece.lent);
        let piece = free.min_by_key(|piece| (!piece.fits(layout), piece.size()))?;
        if !piece.fits(layout) {
            if let Some(kept) = piece.layout {
                // SAFETY: it was allocated below with this layout, and nobody has it.
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

    /// The thread's piece that begins at `start`, if one does and is lent.
    fn lent(pieces: &mut [Piece; N_PIECES], start: *mut u8) -> Option<&mut Piece> {
        pieces.iter_mut().find(|piece| piece.lent && piece.start == start)
    }

    /// Whether `start` was one of the thread's pieces, which is now kept for the next product.
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

// SAFETY: every block is the system allocator's own, and handed out once until it comes back; counting and
// lending neither allocate from here nor unwind. A piece comes back on the thread it was lent to: [`packing`]
// asks its caller for that.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(start) = Self::lend(layout) {
            return start;
        }
        Self::note(layout.size());
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(start) = Self::lend(layout) {
            // SAFETY: the piece is as large as the layout says, and the caller's alone.
            unsafe { start.write_bytes(0, layout.size()) };
            return start;
        }
        Self::note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if Self::lent(&mut PACKING.get(), old).is_some() {
            // SAFETY: the caller keeps to the contract of `realloc`: the new size is one, and the old block
            // is as large as `layout` says.
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
