//! Handles to memory: an [`Arena`] is one allocation, a [`Buf`] is the only handle to one planned region of
//! it, a [`View`] borrows part of a `Buf`.
//!
//! Addresses are numbers here: host and device memory look the same, and nothing in this file reads through
//! them. A backend turns its own views into slices or device pointers. Exclusive access rests on two facts:
//! a `Buf` is never cloned, and [`super::memory::Memory`] refuses to hand out overlapping ones.

use crate::dtype::DType;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Which processor can read an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Host memory.
    Host,
    /// Memory of a device.
    Device,
}

/// One allocation, made by [`super::Comm::alloc`] before step 0 and freed with its last handle.
pub struct Arena {
    base: u64,
    bytes: usize,
    space: Space,
    /// Keeps the memory alive and frees it (a mapping, an MPI window, a device allocation).
    _owner: Box<dyn Any + Send + Sync>,
}

impl Arena {
    /// Address of the first byte; meaningful to the backend that made it.
    pub(in crate::backend) fn base(&self) -> u64 {
        self.base
    }

    /// Wraps an allocation of `bytes` at `base` that lives as long as `owner`.
    pub(in crate::backend) fn new(
        base: u64,
        bytes: usize,
        space: Space,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Arena { base, bytes, space, _owner: owner })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The one handle to a region of an arena: (arena, offset, numel, dtype).
pub struct Buf {
    arena: Arc<Arena>,
    offset: usize,
    numel: usize,
    dtype: DType,
}

impl Buf {
    /// Only `Memory` makes handles: it checks that the region overlaps no living one.
    pub(in crate::backend) fn new(arena: &Arc<Arena>, offset: usize, numel: usize, dtype: DType) -> Self {
        let bytes = numel * dtype.bytes();
        assert!(
            offset + bytes <= arena.bytes,
            "buffer [{offset}, {}) leaves its arena of {} bytes",
            offset + bytes,
            arena.bytes
        );
        assert_eq!(offset % 64, 0, "buffers start on cache lines");
        Buf { arena: Arc::clone(arena), offset, numel, dtype }
    }

    /// Byte offset in the arena.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Elements.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.bytes()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Reads the whole buffer.
    pub fn view(&self) -> View<'_> {
        View { region: self.region(), life: PhantomData }
    }

    /// Writes the whole buffer.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { region: self.region(), life: PhantomData }
    }

    fn region(&self) -> Region {
        let Buf { ref arena, offset, numel, dtype } = *self;
        Region { addr: arena.base + offset as u64, numel, dtype, space: arena.space }
    }
}

/// Consecutive elements in an arena, as a [`View`] and a [`ViewMut`] name them.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    addr: u64,
    numel: usize,
    dtype: DType,
    space: Space,
}

impl Region {
    /// Elements.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Which memory it lies in.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Address of the first element; meaningful to the backend that made the arena.
    pub(in crate::backend) fn addr(&self) -> u64 {
        self.addr
    }

    /// The elements of `range`.
    fn slice(self, range: Range<usize>) -> Region {
        assert!(
            range.start <= range.end && range.end <= self.numel,
            "range {range:?} of {} elements",
            self.numel
        );
        Region { addr: self.addr + (range.start * self.dtype.bytes()) as u64, numel: range.len(), ..self }
    }
}

/// Shared access to consecutive elements of a [`Buf`].
#[derive(Clone, Copy)]
pub struct View<'a> {
    region: Region,
    life: PhantomData<&'a Buf>,
}

/// Exclusive access to consecutive elements of a [`Buf`].
pub struct ViewMut<'a> {
    region: Region,
    life: PhantomData<&'a mut Buf>,
}

impl Deref for View<'_> {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Deref for ViewMut<'_> {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<'a> View<'a> {
    /// The elements of `range`.
    pub fn range(self, range: Range<usize>) -> View<'a> {
        View { region: self.region.slice(range), life: PhantomData }
    }
}

impl<'a> ViewMut<'a> {
    /// A shorter exclusive borrow of the same elements.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { region: self.region, life: PhantomData }
    }

    /// Shared access to the same elements while `self` is borrowed.
    pub fn as_view(&self) -> View<'_> {
        View { region: self.region, life: PhantomData }
    }

    /// Shared access to the same elements for as long.
    pub fn into_view(self) -> View<'a> {
        View { region: self.region, life: PhantomData }
    }

    /// The same bytes as elements of another type: scratch is f32 whatever is put there.
    pub(in crate::backend) fn reinterpret(self, dtype: DType) -> ViewMut<'a> {
        let bytes = self.numel * self.dtype.bytes();
        ViewMut { region: Region { numel: bytes / dtype.bytes(), dtype, ..self.region }, life: PhantomData }
    }

    /// Only the elements of `range`.
    pub fn range(self, range: Range<usize>) -> ViewMut<'a> {
        ViewMut { region: self.region.slice(range), life: PhantomData }
    }

    /// Two disjoint parts: `[0, mid)` and `[mid, numel)`.
    pub fn split_at(self, mid: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        assert!(mid <= self.numel, "split at {mid} of {} elements", self.numel);
        let part = |range| ViewMut { region: self.region.slice(range), life: PhantomData };
        (part(0..mid), part(mid..self.numel))
    }
}
