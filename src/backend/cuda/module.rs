//! From the embedded sources to functions that can be launched: compiled by NVRTC for the device's own architecture.

use super::{fault, kernels};
use crate::error::{Error, Result};
use cudarc::driver::{result as driver, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr;

/// Dynamic shared memory that every kernel may have without asking.
const SHARED_BYTES_UNASKED: u32 = 48 << 10;

/// The kernels of a device.
pub struct Kernels {
    module: sys::CUmodule,
    /// Those that were asked for, by name.
    functions: RefCell<HashMap<String, Function>>,
}

/// One kernel.
#[derive(Clone, Copy)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory it may have so far.
    shared_bytes: u32,
}

impl Kernels {
    /// Compiles and loads every kernel for a device of this compute capability; its context is current.
    ///
    /// # Errors
    /// The compiler does not know the architecture, or finds a fault in the sources.
    pub fn load(compute_capability: (i32, i32)) -> Result<Self> {
        let cubin = compile(compute_capability)?;
        // SAFETY: an image that the compiler has just made, complete.
        let module =
            unsafe { driver::module::load_data(cubin.as_ptr().cast()) }.map_err(|e| fault("cuModuleLoadData", e))?;
        Ok(Kernels { module, functions: RefCell::default() })
    }

    /// A kernel by name, which may have this much dynamic shared memory.
    ///
    /// # Panics
    /// Where there is none of this name, or the device has less memory.
    pub fn function(&self, name: &str, shared_bytes: u32) -> sys::CUfunction {
        let known = self.functions.borrow().get(name).copied();
        let mut function =
            known.unwrap_or_else(|| Function { raw: self.find(name), shared_bytes: SHARED_BYTES_UNASKED });
        let grows = shared_bytes > function.shared_bytes;
        if grows {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a module that is loaded.
            let set = unsafe { driver::function::set_function_attribute(function.raw, attribute, shared_bytes as i32) };
            if let Err(error) = set {
                panic!("{name} may not have {shared_bytes} bytes of shared memory: {}", super::in_words(error));
            }
            function.shared_bytes = shared_bytes;
        }
        if known.is_none() || grows {
            self.functions.borrow_mut().insert(name.into(), function);
        }
        function.raw
    }

    fn find(&self, name: &str) -> sys::CUfunction {
        let c_name = CString::new(name).expect("names of kernels are words");
        // SAFETY: a module that is loaded.
        let found = unsafe { driver::module::get_function(self.module, c_name) };
        found.unwrap_or_else(|error| panic!("there is no kernel {name}: {}", super::in_words(error)))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded above, unloaded once. A fault at the end harms nobody.
        unsafe { driver::module::unload(self.module) }.ok();
    }
}

/// A program of the compiler, destroyed with its last use.
struct Program(nvrtc_sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram, destroyed once.
        unsafe { nvrtc::destroy_program(self.0) }.ok();
    }
}

/// Compiles the kernels to a binary for this architecture.
fn compile((major, minor): (i32, i32)) -> Result<Vec<u8>> {
    let c_string = |text: &str| CString::new(text).expect("sources have no zero bytes");
    let main = c_string(kernels::MAIN);
    let (names, texts): (Vec<_>, Vec<_>) = kernels::FILES.iter().map(|(n, t)| (c_string(n), c_string(t))).unzip();
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
    let architecture = format!("--gpu-architecture=sm_{major}{minor}");
    let options: Vec<&str> = kernels::FLAGS.iter().copied().chain([architecture.as_str()]).collect();
    // SAFETY: a living program.
    if let Err(error) = unsafe { nvrtc::compile_program(program.0, &options) } {
        return Err(Error::Comm(format!(
            "libnvrtc cannot compile the kernels for sm_{major}{minor} ({error}); where it does not know the device, that of a \
             newer CUDA does: {}",
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
