//! Whether this process can compute on a GPU: the driver, the libraries, the symbols they have to have, their
//! versions, a device. What is missing is said in one sentence, with what would mend it.
//!
//! A library is first looked for and then asked for each symbol, because crate `cudarc` panics at the first
//! call of what is not there.

use super::driver::in_words;
use cudarc::driver::{result as driver, sys};
use cudarc::{cublaslt, nccl, nvrtc};

/// Oldest CUDA version of the driver, as the driver counts: the events of 12.8 are used.
const OLDEST_DRIVER: i32 = 12_080;

/// Oldest NCCL, as it counts: 2.19 has buffers that are registered by the user.
const OLDEST_NCCL: i32 = 21_900;

/// Oldest device: bf16 came with compute capability 8.0.
const OLDEST_DEVICE: (i32, i32) = (8, 0);

const DRIVER_SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGetErrorName",
    "cuGetErrorString",
];

const NVRTC_SYMBOLS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
];

const CUBLASLT_SYMBOLS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];

const NCCL_SYMBOLS: &[&str] = &[
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommRegister",
    "ncclCommDeregister",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclAllGather",
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclReduceScatter",
    "ncclSend",
    "ncclRecv",
];

/// A library as this file sees it.
struct Library {
    /// What it is to a person.
    what: &'static str,
    /// The name it is looked for by.
    name: &'static str,
    /// What brings it.
    remedy: &'static str,
    is_present: fn() -> bool,
    /// The first of the symbols that it has not.
    lacks: fn() -> Option<&'static str>,
}

/// `library!(module, ...)`: how to ask a library of crate `cudarc`.
macro_rules! library {
    ($module:path, $symbols:ident, $what:literal, $name:literal, $remedy:literal) => {{
        use $module as sys;
        Library {
            what: $what,
            name: $name,
            remedy: $remedy,
            // SAFETY: loading runs the library's initialisers; it is a library of the CUDA toolkit, by its
            // name.
            is_present: || unsafe { sys::is_culib_present() },
            lacks: || {
                // SAFETY: as above; the symbol is looked up and never called as this type.
                let has = |symbol: &str| unsafe {
                    sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()).is_ok()
                };
                $symbols.iter().copied().find(|symbol| !has(symbol))
            },
        }
    }};
}

impl Library {
    fn check(&self) -> Result<(), String> {
        let Library { what, name, remedy, .. } = self;
        if !(self.is_present)() {
            return Err(format!("{what} cannot be loaded ({name}): {remedy}"));
        }
        match (self.lacks)() {
            Some(symbol) => Err(format!(
                "{what} ({name}) has no {symbol}, it is too old or not what it is called: {remedy}"
            )),
            None => Ok(()),
        }
    }
}

/// The devices that this process sees: PCI bus ids in the order of CUDA ordinals; none where the driver shows
/// none. `collectives` says whether NCCL is needed.
///
/// # Errors
/// In one sentence: what is missing or too old, and what would mend it.
pub fn devices(collectives: bool) -> Result<Vec<String>, String> {
    let driver_library = library!(
        cudarc::driver::sys,
        DRIVER_SYMBOLS,
        "the NVIDIA driver",
        "libcuda.so.1",
        "run on a node with a GPU and its driver (version 570 or newer), or set run.backend = \"cpu\""
    );
    driver_library.check()?;
    let failed = |call: &str, error| format!("the NVIDIA driver does not start: {call}: {}", in_words(error));
    match driver::init() {
        Err(driver::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
        started => started.map_err(|e| failed("cuInit", e))?,
    }
    let mut version = 0;
    // SAFETY: the call writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| failed("cuDriverGetVersion", e))?;
    if version < OLDEST_DRIVER {
        return Err(format!(
            "the NVIDIA driver is for CUDA {}, zero3 needs one for CUDA {} or newer (version 570): update \
             the driver",
            cuda_version(version),
            cuda_version(OLDEST_DRIVER)
        ));
    }
    let n_devices = driver::device::get_count().map_err(|e| failed("cuDeviceGetCount", e))?;
    let bus_ids = (0..n_devices).map(|i| usable(i).map_err(|e| failed("looking at a device", e))?);
    let bus_ids = bus_ids.collect::<Result<Vec<_>, _>>()?;
    check_libraries(version, collectives)?;
    Ok(bus_ids)
}

/// The bus id of a device, or why it is not used.
fn usable(ordinal: i32) -> Result<Result<String, String>, driver::DriverError> {
    use sys::CUdevice_attribute as A;
    let device = driver::device::get(ordinal)?;
    // SAFETY: a device that the driver has named.
    unsafe {
        let major = driver::device::get_attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = driver::device::get_attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) < OLDEST_DEVICE {
            let name = driver::device::get_name(device)?;
            return Ok(Err(format!(
                "device {ordinal}, {name}, has compute capability {major}.{minor}, zero3 needs {}.{} or \
                 newer (Ampere): hide it with CUDA_VISIBLE_DEVICES, or set run.backend = \"cpu\"",
                OLDEST_DEVICE.0, OLDEST_DEVICE.1
            )));
        }
    }
    bus_id(device).map(Ok)
}

/// Where a device is in its node, as `0000:17:00.0`.
pub fn bus_id(device: sys::CUdevice) -> Result<String, driver::DriverError> {
    let mut text = [0u8; 32];
    // SAFETY: a device that the driver has named; the buffer has room for the 13 bytes of a bus id.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, device) }.result()?;
    Ok(String::from_utf8_lossy(text.split(|&b| b == 0).next().unwrap_or_default()).into_owned())
}

/// The libraries beside the driver, which is for this CUDA version.
fn check_libraries(driver_version: i32, collectives: bool) -> Result<(), String> {
    let toolkit = "put the directory of CUDA's libraries in LD_LIBRARY_PATH (those of a PyTorch are \
                   nvidia/*/lib under its site-packages)";
    let compiler =
        library!(nvrtc::sys, NVRTC_SYMBOLS, "CUDA's run-time compiler", "libnvrtc.so.13 or .12", "");
    Library { remedy: toolkit, ..compiler }.check()?;
    check_major(compiler.what, nvrtc_version().0, driver_version)?;
    let products = library!(cublaslt::sys, CUBLASLT_SYMBOLS, "cuBLASLt", "libcublasLt.so.13 or .12", "");
    Library { remedy: toolkit, ..products }.check()?;
    // SAFETY: the call takes nothing.
    check_major(
        products.what,
        unsafe { cublaslt::sys::cublasLtGetVersion() } as i32 / 10_000,
        driver_version,
    )?;
    if !collectives {
        return Ok(());
    }
    library!(
        nccl::sys,
        NCCL_SYMBOLS,
        "NCCL",
        "libnccl.so",
        "put its directory in LD_LIBRARY_PATH; wheels bring libnccl.so.2 alone, so make a link to it of the \
         name libnccl.so there, or run on one rank"
    )
    .check()?;
    let version = nccl::result::get_nccl_version()
        .map_err(|e| format!("ncclGetVersion failed with code {}", e.0 as u32))?;
    if version < OLDEST_NCCL {
        return Err(format!(
            "NCCL is version {}, zero3 needs {} or newer: put a newer one first in LD_LIBRARY_PATH",
            nccl_version(version),
            nccl_version(OLDEST_NCCL)
        ));
    }
    Ok(())
}

/// Libraries run with the driver of their own major version of CUDA, and with later ones.
fn check_major(what: &str, major: i32, driver_version: i32) -> Result<(), String> {
    let of_driver = driver_version / 1000;
    if major <= of_driver {
        return Ok(());
    }
    Err(format!(
        "{what} is of CUDA {major}, and the NVIDIA driver is for CUDA {}: update the driver, or have only \
         libraries of CUDA {of_driver} in LD_LIBRARY_PATH",
        cuda_version(driver_version)
    ))
}

/// Major and minor.
pub(super) fn nvrtc_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes two integers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    (major, minor)
}

/// 12080 is 12.8.
fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// 22809 is 2.28.9.
fn nccl_version(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// What was found, for banners and summaries; once [`devices`] has found all.
pub fn versions(collectives: bool) -> Vec<(&'static str, String)> {
    let mut driver_version = 0;
    // SAFETY: the calls write one integer, and take nothing.
    let cublaslt_version = unsafe {
        sys::cuDriverGetVersion(&mut driver_version);
        cublaslt::sys::cublasLtGetVersion()
    };
    let (major, minor) = nvrtc_version();
    let mut versions = vec![
        ("cuda_driver", cuda_version(driver_version)),
        ("nvrtc", format!("{major}.{minor}")),
        ("cublaslt", cublaslt_version.to_string()),
    ];
    if collectives && let Ok(version) = nccl::result::get_nccl_version() {
        versions.push(("nccl", nccl_version(version)));
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that is called and not asked for would be a panic of crate `cudarc` where a library has not
    /// got it.
    #[test]
    fn every_function_of_nccl_that_is_called_is_asked_for() {
        let text = include_str!("nccl.rs");
        let called =
            text.split("sys::").skip(1).filter_map(|rest| rest.split_once('(').map(|(name, _)| name));
        let functions =
            called.filter(|name| name.starts_with("nccl") && name.chars().all(char::is_alphanumeric));
        let missing: Vec<&str> = functions.filter(|name| !NCCL_SYMBOLS.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn versions_are_read_as_their_makers_write_them() {
        assert_eq!([13_000, 12_080, 12_040].map(cuda_version), ["13.0", "12.8", "12.4"]);
        assert_eq!([22_809, 21_900, 23_004].map(nccl_version), ["2.28.9", "2.19.0", "2.30.4"]);
    }
}
