//! The CUDA backend: kernels compiled at start for the device at hand, products by cuBLASLt, collectives by NCCL.
//!
//! Nothing of CUDA is linked: the driver and the libraries are loaded when a run asks for this backend (crate `cudarc`), so
//! one program serves nodes with and without GPUs. `probe.rs` finds out whether all is there and says in one
//! sentence what is not; after it, a call that fails is a fault of the device or of this program.
//!
//! The host runs ahead: it puts a whole step on four streams and waits once, where it needs the gradient norm. Order between
//! streams is by events alone. So a call on this device returns before its work is done, and an error may show later than
//! its cause.
//!
//! Must not know: what a transformer is, files.

pub mod kernels;
mod launch;
mod module;
mod streams;

pub use launch::{Grid, Launch};
pub use streams::{Event, Mark};

use crate::error::{Error, Result};
use cudarc::driver::result::DriverError;
use cudarc::driver::{result as driver, sys};
use module::Kernels;
use std::rc::Rc;
use streams::Streams;

/// What kernels are sized by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Props {
    /// The device's name.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub n_multiprocessors: u32,
    /// Largest dynamic shared memory of a block, for kernels that ask.
    pub max_shared_bytes: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// Device memory in all.
    pub memory_bytes: usize,
}

/// One GPU, for the thread that opened it.
pub struct CudaDevice {
    // Field order is drop order: functions and streams go before the context.
    kernels: Kernels,
    streams: Rc<Streams>,
    props: Props,
    _context: Context,
}

/// The device's primary context, current on this thread.
struct Context(sys::CUdevice);

impl Context {
    fn retain(device: sys::CUdevice) -> Result<Self> {
        // SAFETY: a device that the driver has named; retained here, released once.
        unsafe {
            let raw = driver::primary_ctx::retain(device).map_err(|e| fault("cuDevicePrimaryCtxRetain", e))?;
            let context = Context(device);
            driver::ctx::set_current(raw).map_err(|e| fault("cuCtxSetCurrent", e))?;
            Ok(context)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained above. A fault at the end harms nobody.
        unsafe { driver::primary_ctx::release(self.0) }.ok();
    }
}

impl CudaDevice {
    /// Opens a device and compiles the kernels for it.
    ///
    /// # Errors
    /// There is no such device, or the driver or the compiler fails.
    pub fn open(ordinal: usize) -> Result<Self> {
        driver::init().map_err(|e| fault("cuInit", e))?;
        let device = driver::device::get(ordinal as i32).map_err(|e| fault("cuDeviceGet", e))?;
        let context = Context::retain(device)?;
        let props = Props::of(device)?;
        let kernels = Kernels::load(props.compute_capability)?;
        let streams = Rc::new(Streams::create()?);
        let device = CudaDevice { kernels, streams, props, _context: context };
        device.streams.drain(crate::backend::Queue::Compute)?;
        Ok(device)
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
        let get = |attribute| get(attribute).map_err(|e| fault("cuDeviceGetAttribute", e));
        Ok(Props {
            name: driver::device::get_name(device).map_err(|e| fault("cuDeviceGetName", e))?,
            compute_capability: (
                get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            n_multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            max_shared_bytes: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            warp_size: get(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)? as u32,
            // SAFETY: as above.
            memory_bytes: unsafe { driver::device::total_mem(device) }.map_err(|e| fault("cuDeviceTotalMem", e))?,
        })
    }
}

/// A driver's error with its name, number and text.
fn in_words(error: DriverError) -> String {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map_or(String::new(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({}): {}", text(error.error_name()), error.0 as u32, text(error.error_string()))
}

/// A failed call of the driver.
fn fault(call: &str, error: DriverError) -> Error {
    Error::Comm(format!("{call} failed: {}", in_words(error)))
}
