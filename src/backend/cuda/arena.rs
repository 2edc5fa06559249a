//! Memory: on the device the arena and the bins of the gradient norm, on the host one pinned allocation that
//! all transfers go through.
//!
//! All are made before step 0; after [`Transfers::new`] nothing may be allocated, and [`Seal`] enforces it.

use super::driver::{fault, in_words};
use super::streams::{Event, Streams};
use crate::backend::buffer::{Arena, Space};
use crate::backend::{Queue, View, ViewMut};
use crate::error::{Error, Result};
use cudarc::driver::{result as driver, sys};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// One half of the pinned memory that transfers alternate between.
const HALF_BYTES: usize = 8 << 20;

/// Says that the time to allocate is over.
#[derive(Default)]
pub struct Seal(Cell<bool>);

impl Seal {
    /// Another job begins.
    pub fn open(&self) {
        self.0.set(false);
    }

    fn check(&self, what: &str, bytes: usize) {
        assert!(
            !self.0.get(),
            "{bytes} bytes of {what} are allocated after start: a step would wait for the allocator"
        );
    }
}

/// An allocation on the device.
struct DeviceMemory(sys::CUdeviceptr);

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated below, freed once, by the last handle; the driver lets running work end first.
        unsafe { driver::free_sync(self.0) }.ok();
    }
}

/// Allocates `bytes` on the device of the current context.
///
/// # Errors
/// The device has less memory free.
pub fn allocate(seal: &Seal, bytes: usize) -> Result<Arc<Arena>> {
    seal.check("device memory", bytes);
    // SAFETY: plain allocation; the owner below frees it.
    let addr = unsafe { driver::malloc_sync(bytes.max(1)) }.map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Error::Comm(format!("{bytes} bytes of device memory are required, {}", free()))
        }
        _ => fault("cuMemAlloc", error),
    })?;
    Ok(Arena::new(addr, bytes, Space::Device, Box::new(DeviceMemory(addr))))
}

/// What is free on the device, in words.
fn free() -> String {
    match driver::mem_get_info() {
        Ok((free, total)) => format!("{free} of {total} are free"),
        Err(error) => in_words(error),
    }
}

/// Pinned host memory.
struct Pinned {
    base: *mut u8,
    bytes: usize,
}

impl Pinned {
    fn allocate(seal: &Seal, bytes: usize) -> Result<Self> {
        seal.check("pinned memory", bytes);
        // SAFETY: plain allocation; dropped once.
        let base = unsafe { driver::malloc_host(bytes, 0) }
            .map_err(|e| Error::Comm(format!("cuMemHostAlloc of {bytes} bytes failed: {}", in_words(e))))?;
        // Every byte is a byte from here on.
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { std::ptr::write_bytes(base.cast::<u8>(), 0, bytes) };
        Ok(Pinned { base: base.cast(), bytes })
    }

    /// The bytes `[start, start + n)`.
    ///
    /// # Safety
    /// No transfer to or from them is under way, and no other slice of them lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn slice(&self, start: usize, n: usize) -> &mut [u8] {
        assert!(start + n <= self.bytes, "[{start}, {}) of {} pinned bytes", start + n, self.bytes);
        // SAFETY: inside the allocation; exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), n) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated above, freed once; the driver lets running transfers end first.
        unsafe { driver::free_host(self.base.cast()) }.ok();
    }
}

/// Transfers between host and device.
pub struct Transfers {
    pinned: Pinned,
    /// The last transfer of each half.
    busy: [RefCell<Option<Event>>; 2],
    next: Cell<usize>,
    /// Bytes of one sum's elements, and which places for them are free.
    sum_bytes: usize,
    free_sums: RefCell<Vec<usize>>,
}

/// Elements of a sum on their way to the host.
pub struct PendingSum {
    place: usize,
    numel: usize,
    there: Event,
}

impl Transfers {
    /// Bytes of pinned memory for `n_sums` sums at once of `numel` f32 elements.
    pub fn pinned_bytes(n_sums: usize, numel: usize) -> usize {
        2 * HALF_BYTES + n_sums * numel * 4
    }

    /// Allocates it and ends the time of allocations.
    pub fn new(seal: &Seal, n_sums: usize, numel: usize) -> Result<Self> {
        let pinned = Pinned::allocate(seal, Self::pinned_bytes(n_sums, numel))?;
        seal.0.set(true);
        let busy = [RefCell::new(None), RefCell::new(None)];
        let free_sums = RefCell::new((0..n_sums).collect());
        Ok(Transfers { pinned, busy, next: Cell::new(0), sum_bytes: numel * 4, free_sums })
    }

    /// The half whose turn it is, and where it starts, when its last transfer is done.
    fn half(&self, streams: &Streams) -> Result<usize> {
        let half = self.next.get();
        self.next.set(1 - half);
        if let Some(event) = self.busy[half].take() {
            streams.sync(&event)?;
        }
        Ok(half)
    }

    /// Copies `src` to `dst` on the compute queue. Blocks while both halves are on their way.
    pub fn upload(&self, streams: &Streams, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        assert_eq!(dst.numel() * dst.dtype().bytes(), src.len(), "bytes of an upload");
        let mut addr = dst.addr();
        for chunk in src.chunks(HALF_BYTES) {
            let half = self.half(streams)?;
            // SAFETY: the half's last transfer is done.
            let staged = unsafe { self.pinned.slice(half * HALF_BYTES, chunk.len()) };
            staged.copy_from_slice(chunk);
            // SAFETY: `dst` holds the bytes; the half is touched no more before the event below is past.
            unsafe { driver::memcpy_htod_async(addr, staged, streams.raw(Queue::Compute)) }
                .map_err(|e| fault("cuMemcpyHtoDAsync", e))?;
            self.busy[half].replace(Some(streams.record(Queue::Compute)));
            addr += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies `src`, as the compute queue leaves it, to `dst`; one half is read while the other one fills.
    pub fn download(&self, streams: &Streams, dst: &mut [u8], src: View<'_>) -> Result<()> {
        assert_eq!(src.numel() * src.dtype().bytes(), dst.len(), "bytes of a download");
        streams.wait(Queue::Copy, &streams.record(Queue::Compute));
        let mut addr = src.addr();
        let mut before: Option<(usize, &mut [u8])> = None;
        for chunk in dst.chunks_mut(HALF_BYTES) {
            let half = self.half(streams)?;
            // SAFETY: the half's last transfer is done; it is read after the event below is past.
            unsafe {
                let staged = self.pinned.slice(half * HALF_BYTES, chunk.len());
                driver::memcpy_dtoh_async(staged, addr, streams.raw(Queue::Copy))
                    .map_err(|e| fault("cuMemcpyDtoHAsync", e))?;
            }
            self.busy[half].replace(Some(streams.record(Queue::Copy)));
            addr += chunk.len() as u64;
            if let Some((half, chunk)) = before.replace((half, chunk)) {
                self.unstage(streams, half, chunk)?;
            }
        }
        before.map_or(Ok(()), |(half, chunk)| self.unstage(streams, half, chunk))
    }

    fn unstage(&self, streams: &Streams, half: usize, chunk: &mut [u8]) -> Result<()> {
        if let Some(event) = self.busy[half].take() {
            streams.sync(&event)?;
        }
        // SAFETY: the half's last transfer is done.
        chunk.copy_from_slice(unsafe { self.pinned.slice(half * HALF_BYTES, chunk.len()) });
        Ok(())
    }

    fn sum_start(&self, place: usize) -> usize {
        2 * HALF_BYTES + place * self.sum_bytes
    }

    /// Sends the elements of a sum to the host.
    ///
    /// # Panics
    /// Where more sums are started than there are places for.
    pub fn start_sum(&self, streams: &Streams, inp: View<'_>) -> PendingSum {
        let place = self.free_sums.borrow_mut().pop().expect("sums at once are as many as reserved");
        let bytes = inp.numel() * inp.dtype().bytes();
        assert!(bytes <= self.sum_bytes, "a sum of {bytes} bytes in a place of {}", self.sum_bytes);
        // SAFETY: the place is free, and is read after the event below is past.
        let copied = unsafe {
            let staged = self.pinned.slice(self.sum_start(place), bytes);
            driver::memcpy_dtoh_async(staged, inp.addr(), streams.raw(Queue::Compute))
        };
        if let Err(error) = copied {
            fault("cuMemcpyDtoHAsync", error).raise();
        }
        PendingSum { place, numel: inp.numel(), there: streams.record(Queue::Compute) }
    }

    /// Adds them up in f64, in their order.
    pub fn finish_sum(&self, streams: &Streams, sum: PendingSum) -> Result<f64> {
        streams.sync(&sum.there)?;
        // SAFETY: the transfer is done.
        let staged = unsafe { self.pinned.slice(self.sum_start(sum.place), sum.numel * 4) };
        let total = staged.as_chunks::<4>().0.iter().map(|&bytes| f64::from(f32::from_ne_bytes(bytes))).sum();
        self.free_sums.borrow_mut().push(sum.place);
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the driver is asked, so without one.
    #[test]
    #[should_panic(expected = "8 bytes of device memory are allocated after start")]
    fn device_memory_after_start_is_refused() {
        allocate(&Seal(Cell::new(true)), 8).ok();
    }

    #[test]
    #[should_panic(expected = "8 bytes of pinned memory are allocated after start")]
    fn pinned_memory_after_start_is_refused() {
        Pinned::allocate(&Seal(Cell::new(true)), 8).ok();
    }
}
