//! One GPU: what it is, its memory, and what the host asks of it besides kernels.
//!
//! Must not know: ranks.

use super::arena::{self, PendingSum, Seal, Transfers};
use super::driver::fault;
use super::image::{Architecture, Image};
use super::kernels::Kernel;
use super::module::Kernels;
use super::ops::cublaslt::CublasLt;
use super::ops::tiles;
use super::probe;
use super::streams::{Event, Mark, Streams};
use crate::backend::buffer::{Arena, Buf};
use crate::backend::{Device, Ops, Queue, View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact_sum::ExactSum;
use cudarc::driver::{result as driver, sys};
use half::bf16;
use std::borrow::Cow;
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Words of the bins of a sum of squares: low and high halves of 256 bins.
const BIN_WORDS: usize = 512;

/// What kernels are sized by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Props {
    /// The device's name.
    pub name: String,
    /// What its machine code is for.
    pub architecture: Architecture,
    /// Streaming multiprocessors.
    pub n_multiprocessors: u32,
    /// Largest dynamic shared memory of a block, for kernels that ask.
    pub max_shared_bytes: u32,
    /// Device memory in all.
    pub memory_bytes: usize,
    /// Highest clock of the multiprocessors and of the memory, kHz; none where the driver does not say.
    pub clocks_khz: [Option<i32>; 2],
    /// Whether memory corrects its errors, likewise.
    pub has_ecc: Option<bool>,
    /// Where it is in its node, likewise.
    pub bus_id: Option<String>,
}

/// One GPU, for the thread that opened it.
pub struct CudaDevice {
    // Field order is drop order: what lives in the context goes before it.
    transfers: RefCell<Option<Transfers>>,
    /// Bins of a sum of squares, (256, 2) u64.
    bins: RefCell<Buf>,
    pub(super) cublaslt: CublasLt,
    pub(super) kernels: Kernels,
    pub(super) streams: Rc<Streams>,
    props: Props,
    seal: Seal,
    _context: Context,
}

/// The device's primary context, current on this thread.
struct Context(sys::CUdevice);

impl Context {
    fn retain(device: sys::CUdevice) -> Result<Self> {
        // SAFETY: a device that the driver has named; retained here, released once.
        unsafe {
            let raw =
                driver::primary_ctx::retain(device).map_err(|e| fault("cuDevicePrimaryCtxRetain", e))?;
            let context = Context(device);
            driver::ctx::set_current(raw).map_err(|e| fault("cuCtxSetCurrent", e))?;
            Ok(context)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained above. An error at the end is of no consequence.
        unsafe { driver::primary_ctx::release(self.0) }.ok();
    }
}

impl CudaDevice {
    /// Opens a device and loads the kernels, which `image` has for its architecture; `tf32` lets products of
    /// f32 matrices round their operands.
    ///
    /// # Errors
    /// There is no such device, its blocks have too little shared memory for the kernels, or the driver
    /// fails.
    pub fn open(ordinal: usize, tf32: bool, image: &Image) -> Result<Self> {
        driver::init().map_err(|e| fault("cuInit", e))?;
        let device = driver::device::get(ordinal as i32).map_err(|e| fault("cuDeviceGet", e))?;
        let context = Context::retain(device)?;
        let props = Props::of(device)?;
        props.check()?;
        let kernels = Kernels::load(image)?;
        let streams = Rc::new(Streams::create()?);
        let seal = Seal::default();
        // As a view they are twice as many u32.
        let bins = Buf::new(&arena::allocate(&seal, BIN_WORDS * 8)?, 0, BIN_WORDS * 2, DType::U32);
        let (transfers, bins, cublaslt) = (RefCell::default(), RefCell::new(bins), CublasLt::open(tf32)?);
        let device =
            CudaDevice { transfers, bins, cublaslt, kernels, streams, props, seal, _context: context };
        // The clocks are compared for the first time.
        device.streams.drain(Queue::Compute)?;
        Ok(device)
    }

    /// Allocates device memory, before step 0.
    ///
    /// # Errors
    /// The device has less memory free.
    pub fn allocate(&self, bytes: usize) -> Result<Arc<Arena>> {
        arena::allocate(&self.seal, bytes)
    }

    fn transfers(&self) -> Ref<'_, Transfers> {
        Ref::map(self.transfers.borrow(), |t| t.as_ref().expect("`reserve` comes before the first transfer"))
    }

    /// What kernels are sized by.
    pub fn props(&self) -> &Props {
        &self.props
    }
}

impl Props {
    fn of(device: sys::CUdevice) -> Result<Self> {
        use sys::CUdevice_attribute as A;
        // SAFETY: a device that the driver has named.
        let get = |attribute| unsafe { driver::device::get_attribute(device, attribute) };
        let if_given = |attribute| get(attribute).ok();
        let get = |attribute| get(attribute).map_err(|e| fault("cuDeviceGetAttribute", e));
        let clock = |attribute| if_given(attribute).filter(|&khz| khz > 0);
        Ok(Props {
            name: driver::device::get_name(device).map_err(|e| fault("cuDeviceGetName", e))?,
            architecture: Architecture::of(device)?,
            n_multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            max_shared_bytes: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            // SAFETY: as above.
            memory_bytes: unsafe { driver::device::total_mem(device) }
                .map_err(|e| fault("cuDeviceTotalMem", e))?,
            clocks_khz: [A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE]
                .map(clock),
            has_ecc: if_given(A::CU_DEVICE_ATTRIBUTE_ECC_ENABLED).map(|on| on != 0),
            bus_id: probe::bus_id(device).ok(),
        })
    }

    /// Whether the kernels fit.
    fn check(&self) -> Result<()> {
        let needed = tiles::shared_bytes_needed();
        if self.max_shared_bytes >= needed {
            return Ok(());
        }
        Err(Error::Comm(format!(
            "{} gives a block {} bytes of shared memory, and attention needs {needed}: use another device, \
             or set run.backend = \"cpu\"",
            self.name, self.max_shared_bytes
        )))
    }
}

impl Device for CudaDevice {
    type Event = Event;
    type Mark = Mark;
    type Sum = PendingSum;

    fn record(&self, queue: Queue) -> Event {
        self.streams.record(queue)
    }

    #[track_caller]
    fn wait(&self, queue: Queue, event: &Event) {
        self.streams.wait(queue, event);
    }

    fn mark(&self, queue: Queue) -> Mark {
        self.streams.mark(queue)
    }

    fn when(&self, mark: &Mark) -> Result<Instant> {
        self.streams.when(mark)
    }

    fn reserve(&self, n_sums: usize, numel: usize) -> Result<()> {
        let transfers = Transfers::new(&self.seal, n_sums, numel)?;
        let before = self.transfers.replace(Some(transfers));
        assert!(before.is_none(), "memory for transfers is reserved once");
        Ok(())
    }

    fn release(&self) {
        self.transfers.replace(None);
        self.seal.open();
    }

    fn reserved_bytes(n_sums: usize, numel: usize) -> u64 {
        Transfers::pinned_bytes(n_sums, numel) as u64
    }

    fn free_bytes(&self) -> Option<u64> {
        driver::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    fn upload(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()> {
        self.transfers().upload(&self.streams, dst, src)
    }

    fn read<'a>(&self, src: View<'a>) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(match src.dtype() {
            DType::Bf16 => {
                let mut values = vec![bf16::ZERO; src.numel()];
                self.transfers().download(&self.streams, bytemuck::cast_slice_mut(&mut values), src)?;
                values.into_iter().map(f32::from).collect()
            }
            DType::F32 => {
                let mut values = vec![0.0f32; src.numel()];
                self.transfers().download(&self.streams, bytemuck::cast_slice_mut(&mut values), src)?;
                values
            }
            DType::U32 => panic!("token ids are not numbers"),
        }))
    }

    fn start_sum(&self, inp: View<'_>) -> PendingSum {
        assert_eq!(inp.dtype(), DType::F32, "sums are of f32");
        self.transfers().start_sum(&self.streams, inp)
    }

    fn finish_sum(&self, sum: PendingSum) -> Result<f64> {
        self.transfers().finish_sum(&self.streams, sum)
    }

    fn sum_of_squares<'a>(&self, inps: impl IntoIterator<Item = View<'a>>) -> Result<ExactSum> {
        let mut bins = self.bins.borrow_mut();
        self.fill_bytes(bins.view_mut(), 0);
        for inp in inps.into_iter().filter(|inp| inp.numel() > 0) {
            self.launch(Kernel::new("sum_of_squares").of(inp.dtype()), self.grid_over(inp.numel()))
                .write(bins.view_mut())
                .read(inp)
                .long(inp.numel() as i64)
                .go();
        }
        let mut words = [0u64; BIN_WORDS];
        self.transfers().download(&self.streams, bytemuck::cast_slice_mut(&mut words), bins.view())?;
        // Nothing is on the device now: the clocks can be compared.
        self.streams.drain(Queue::Compute)?;
        let bin = |e: usize| u128::from(words[2 * e]) + (u128::from(words[2 * e + 1]) << 32);
        Ok(ExactSum::of_bins(&std::array::from_fn(bin)))
    }

    fn max_d_head() -> Option<usize> {
        Some(tiles::MAX_D_HEAD)
    }

    fn describe(&self) -> String {
        let Props { name, architecture, n_multiprocessors, memory_bytes, .. } = &self.props;
        let gigabytes = *memory_bytes as f64 / 1e9;
        format!("{name} ({architecture}, {n_multiprocessors} multiprocessors, {gigabytes:.1} GB)")
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Props { clocks_khz, has_ecc, bus_id, .. } = &self.props;
        let said = |what: Option<String>| what.unwrap_or("not reported by the driver".into());
        let clock = |khz: Option<i32>| said(khz.map(|khz| format!("{} MHz", khz / 1000)));
        vec![
            ("device clock, highest", clock(clocks_khz[0])),
            ("device memory clock, highest", clock(clocks_khz[1])),
            ("device memory ECC", said(has_ecc.map(|on| if on { "on" } else { "off" }.into()))),
            ("device bus id", said(bus_id.clone())),
        ]
    }
}

impl CudaDevice {
    /// Sets every byte of `dst` on a queue.
    pub(super) fn fill_bytes_on(&self, queue: Queue, dst: ViewMut<'_>, byte: u8) {
        let bytes = dst.numel() * dst.dtype().bytes();
        if bytes == 0 {
            return;
        }
        // SAFETY: the view is of device memory, and so long.
        let filled = unsafe { driver::memset_d8_async(dst.addr(), byte, bytes, self.streams.raw(queue)) };
        filled.unwrap_or_else(|error| fault("cuMemsetD8Async", error).raise());
    }
}
