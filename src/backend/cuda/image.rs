//! Machine code of the kernels for one architecture: compiled by NVRTC from the embedded sources, or cached
//! by an earlier run.
//!
//! [Note: one compiler] All kernels are compiled together, whatever a model uses: the image is then the same
//! for every deck, and it is made once for each architecture of a job. Rank 0 reads it from the cache or
//! compiles it, and sends it to the others over MPI (`cli/on_backend.rs`), so no rank waits for a lock or
//! reads what another one is writing.

use super::cache::Cache;
use super::driver::fault;
use super::{kernels, probe};
use crate::error::{Error, Result};
use cudarc::driver::{result as driver, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr;
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// What a device's machine code is called after: its compute capability, major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture(pub i32, pub i32);

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.0, self.1)
    }
}

impl Architecture {
    /// That of the device of a CUDA ordinal.
    ///
    /// # Errors
    /// There is no such device.
    pub fn of_device(ordinal: usize) -> Result<Self> {
        driver::init().map_err(|e| fault("cuInit", e))?;
        Self::of(driver::device::get(ordinal as i32).map_err(|e| fault("cuDeviceGet", e))?)
    }

    pub(super) fn of(device: sys::CUdevice) -> Result<Self> {
        use sys::CUdevice_attribute as A;
        // SAFETY: a device that the driver has named.
        let get = |attribute| unsafe { driver::device::get_attribute(device, attribute) };
        let get = |attribute| get(attribute).map_err(|e| fault("cuDeviceGetAttribute", e));
        let major = get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok(Architecture(major, get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
    }
}

/// Machine code of every kernel.
pub struct Image(Vec<u8>);

impl Image {
    /// From the cache, or compiled and put there. Says which, and how long it took.
    ///
    /// # Errors
    /// The compiler does not know the architecture, or finds a fault in the sources.
    pub fn obtain(architecture: Architecture, cache: &Cache) -> Result<Self> {
        let began = Instant::now();
        let took = || format!("{:.2} s", began.elapsed().as_secs_f64());
        let name = format!("kernels-{architecture}-{:032x}", digest(architecture));
        if let Some(image) = cache.read(&name) {
            log::info!("kernels for {architecture}: read from {cache} in {}", took());
            return Ok(Image(image));
        }
        let image = compile(architecture)?;
        let compiled = took();
        let cached = if cache.write(&name, &image) { format!(", cached in {cache}") } else { String::new() };
        log::info!("kernels for {architecture}: compiled in {compiled}{cached}");
        Ok(Image(image))
    }

    /// What another rank obtained.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Image(bytes)
    }

    /// As the driver loads it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Of all that an image depends on: sources, options, architecture, and the compiler's version.
fn digest(architecture: Architecture) -> u128 {
    let mut hash = Xxh3::new();
    let mut add = |part: &str| {
        hash.update(&part.len().to_le_bytes());
        hash.update(part.as_bytes());
    };
    add(kernels::MAIN);
    kernels::FILES.iter().for_each(|(name, text)| [name, text].into_iter().for_each(|part| add(part)));
    kernels::FLAGS.iter().for_each(|flag| add(flag));
    add(&architecture.to_string());
    let (major, minor) = probe::nvrtc_version();
    add(&format!("{major}.{minor}"));
    hash.digest128()
}

/// A program of the compiler, destroyed with its last use.
struct Program(nvrtc_sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram, destroyed once.
        unsafe { nvrtc::destroy_program(self.0) }.ok();
    }
}

/// Compiles the kernels.
fn compile(architecture: Architecture) -> Result<Vec<u8>> {
    let c_string = |text: &str| CString::new(text).expect("sources have no zero bytes");
    let main = c_string(kernels::MAIN);
    let (names, texts): (Vec<_>, Vec<_>) =
        kernels::FILES.iter().map(|(n, t)| (c_string(n), c_string(t))).unzip();
    let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (names, texts) = (pointers(&names), pointers(&texts));
    let mut program = ptr::null_mut();
    // SAFETY: strings that outlive the program, as many names as texts.
    let made = unsafe {
        nvrtc_sys::nvrtcCreateProgram(
            &mut program,
            main.as_ptr(),
            c"kernels".as_ptr(),
            names.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    made.result().map_err(|e| Error::Comm(format!("nvrtcCreateProgram: {e}")))?;
    let program = Program(program);
    let target = format!("--gpu-architecture={architecture}");
    let options: Vec<&str> = kernels::FLAGS.iter().copied().chain([target.as_str()]).collect();
    // SAFETY: a living program.
    if let Err(error) = unsafe { nvrtc::compile_program(program.0, &options) } {
        return Err(Error::Comm(format!(
            "libnvrtc cannot compile the kernels for {architecture} ({error}); where it does not know the \
             device, that of a newer CUDA does: {}",
            log_of(&program)
        )));
    }
    let mut bytes = 0;
    // SAFETY: a compiled program; the buffer has the size that the compiler names.
    unsafe {
        let failed = |e| Error::Comm(format!("nvrtcGetCUBIN: {e}"));
        nvrtc_sys::nvrtcGetCUBINSize(program.0, &mut bytes).result().map_err(failed)?;
        let mut cubin = vec![0u8; bytes];
        nvrtc_sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()).result().map_err(failed)?;
        Ok(cubin)
    }
}

/// What the compiler said.
fn log_of(program: &Program) -> String {
    // SAFETY: a living program; the log ends with a zero byte.
    let log = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |s| s.to_string_lossy().trim().to_string())
}
