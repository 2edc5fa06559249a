//! One kernel launch: its name, its grid, its arguments in order, its queue.
//!
//! Values are copied when the kernel is launched; buffers are kept alive and in order by what their owners do
//! anyway: `Memory` reuses a region only after the event of its last use.

use super::device::CudaDevice;
use super::driver::fault;
use super::grid::{CHUNK, Grid, THREADS};
use super::kernels::Kernel;
use crate::backend::{Queue, View, ViewMut};
use std::ffi::c_void;

/// Most arguments of a kernel.
const MAX_ARGS: usize = 24;

/// Most blocks per multiprocessor; where there is more to do, the threads of a grid loop.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;

/// A launch in the making: arguments in the kernel's order, then [`Launch::go`].
#[must_use = "a kernel runs when `go` is called"]
pub struct Launch<'a> {
    device: &'a CudaDevice,
    queue: Queue,
    kernel: Kernel,
    grid: Grid,
    /// Each argument in the first bytes of its word, as a little-endian host has it.
    args: [u64; MAX_ARGS],
    n_args: usize,
}

impl CudaDevice {
    /// As many blocks of [`THREADS`] threads as there is work for, within what the device runs at once.
    pub(super) fn blocks(&self, wanted: usize) -> Grid {
        let most = self.props().n_multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR;
        Grid::row(wanted.min(most) as u32, THREADS as u32)
    }

    /// A grid of a thread for each chunk of `n` elements.
    pub(super) fn grid_over(&self, n: usize) -> Grid {
        self.blocks(n.div_ceil(CHUNK * THREADS))
    }

    /// A grid of a thread for each chunk of each of `rows` rows of `c` elements.
    pub(super) fn blocks_over_rows(&self, rows: usize, c: usize) -> Grid {
        self.blocks((rows * c.div_ceil(CHUNK)).div_ceil(THREADS))
    }

    /// A launch on the compute queue.
    pub fn launch(&self, kernel: Kernel, grid: Grid) -> Launch<'_> {
        self.launch_on(Queue::Compute, kernel, grid)
    }

    /// A launch on any queue.
    pub fn launch_on(&self, queue: Queue, kernel: Kernel, grid: Grid) -> Launch<'_> {
        Launch { device: self, queue, kernel, grid, args: [0; MAX_ARGS], n_args: 0 }
    }
}

impl Launch<'_> {
    fn arg(mut self, word: u64) -> Self {
        self.args[self.n_args] = word;
        self.n_args += 1;
        self
    }

    /// A pointer the kernel reads through.
    pub fn read(self, view: View<'_>) -> Self {
        self.arg(view.addr())
    }

    /// A pointer the kernel writes (and perhaps reads) through.
    pub fn write(self, view: ViewMut<'_>) -> Self {
        self.arg(view.addr())
    }

    /// A pointer the kernel reads through, null where there is nothing.
    pub fn read_or_null(self, view: Option<View<'_>>) -> Self {
        self.arg(view.map_or(0, |view| view.addr()))
    }

    /// A pointer the kernel writes through, null where there is nothing.
    pub fn write_or_null(self, view: Option<ViewMut<'_>>) -> Self {
        self.arg(view.map_or(0, |view| view.addr()))
    }

    /// An `int`.
    pub fn int(self, value: i32) -> Self {
        self.arg(u64::from(value as u32))
    }

    /// A `long long`.
    pub fn long(self, value: i64) -> Self {
        self.arg(value as u64)
    }

    /// A `float`.
    pub fn float(self, value: f32) -> Self {
        self.arg(u64::from(value.to_bits()))
    }

    /// Puts the kernel on its queue.
    ///
    /// # Panics
    /// Where there is no such kernel, or the driver refuses the launch: a fault of this program.
    pub fn go(mut self) {
        let Grid { blocks, threads, shared_bytes } = self.grid;
        if blocks == 0 {
            return;
        }
        let function = self.device.kernels.function(self.kernel, shared_bytes);
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (pointer, arg) in pointers.iter_mut().zip(&mut self.args) {
            *pointer = std::ptr::from_mut(arg).cast();
        }
        // SAFETY: the function is of a module that lives as long as the device; each pointer leads to 8 bytes
        // of which the driver copies as many as the parameter has before it returns; the stream is the
        // device's own. What the kernel does with its pointers is the contract of the operation that launches
        // it.
        let launched = unsafe {
            cudarc::driver::result::launch_kernel(
                function,
                (blocks, 1, 1),
                (threads, 1, 1),
                shared_bytes,
                self.device.streams.raw(self.queue),
                &mut pointers[..self.n_args],
            )
        };
        if let Err(error) = launched {
            fault(&format!("launch of {} with {:?}", self.kernel, self.grid), error).raise();
        }
    }
}
