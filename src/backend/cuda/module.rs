//! From the embedded sources to functions that can be launched: compiled by NVRTC for the device's own architecture.

use super::{fault, kernels};
use crate::error::{Error, Result};
use cudarc::driver::{result as driver, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr;

/// The kernels of a device.
pub struct Kernels {
    functions: HashMap<&'static str, Function>,
    modules: Vec<sys::CUmodule>,
}

/// One kernel.
pub struct Function {
    raw: sys::CUfunction,
    name: &'static str,
    /// Dynamic shared memory it may have so far.
    shared_bytes: Cell<u32>,
}

impl Function {
    /// The driver's handle.
    pub fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Asks for more dynamic shared memory than every kernel has; once for each size that is larger than before.
    ///
    /// # Panics
    /// Where the device has less.
    pub fn allow_shared_bytes(&self, bytes: u32) {
        if bytes <= self.shared_bytes.get() {
            return;
        }
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of a module that is loaded.
        let set = unsafe { driver::function::set_function_attribute(self.raw, attribute, bytes as i32) };
        if let Err(error) = set {
            panic!("{} may not have {bytes} bytes of shared memory: {}", self.name, super::in_words(error));
        }
        self.shared_bytes.set(bytes);
    }
}

impl Kernels {
    /// Compiles and loads every kernel for a device of this compute capability; its context is current.
    ///
    /// # Errors
    /// The compiler does not know the architecture, or finds a fault in the sources.
    pub fn load(compute_capability: (i32, i32)) -> Result<Self> {
        let mut kernels = Kernels { functions: HashMap::new(), modules: Vec::new() };
        // One thread for each: they take a second or so, and the compiler is made for it.
        let cubins: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let compile = |unit| scope.spawn(move || compile(unit, compute_capability));
            let threads: Vec<_> = kernels::UNITS.iter().map(compile).collect();
            threads.into_iter().map(|thread| thread.join().expect("compiling does not panic")).collect()
        });
        for (unit, cubin) in kernels::UNITS.iter().zip(cubins) {
            let cubin = cubin?;
            // SAFETY: an image that the compiler has just made, complete.
            let module = unsafe { driver::module::load_data(cubin.as_ptr().cast()) }
                .map_err(|e| fault(&format!("cuModuleLoadData of {}", unit.file), e))?;
            kernels.modules.push(module);
            for &name in unit.kernels {
                let c_name = CString::new(name).expect("names of kernels are words");
                // SAFETY: a module that is loaded.
                let raw = unsafe { driver::module::get_function(module, c_name) }
                    .map_err(|e| fault(&format!("cuModuleGetFunction of {name}"), e))?;
                let before = kernels.functions.insert(name, Function { raw, name, shared_bytes: Cell::new(0) });
                assert!(before.is_none(), "two kernels are called {name}");
            }
        }
        Ok(kernels)
    }

    /// A kernel by name.
    ///
    /// # Panics
    /// Where there is none of this name.
    pub fn function(&self, name: &str) -> &Function {
        self.functions.get(name).unwrap_or_else(|| panic!("there is no kernel {name}"))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded above, unloaded once; the device waits for its streams first. A fault at the end harms nobody.
            unsafe { driver::module::unload(module) }.ok();
        }
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

/// Compiles one unit to a binary for this architecture.
fn compile(unit: &kernels::Unit, (major, minor): (i32, i32)) -> Result<Vec<u8>> {
    let c_string = |text: &str| CString::new(text).expect("sources have no zero bytes");
    let (text, file) = (c_string(unit.text), c_string(unit.file));
    let (names, texts): (Vec<_>, Vec<_>) = kernels::HEADERS.iter().map(|(n, t)| (c_string(n), c_string(t))).unzip();
    let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (names, texts) = (pointers(&names), pointers(&texts));
    let mut program = ptr::null_mut();
    // SAFETY: strings that outlive the program.
    let made = unsafe {
        nvrtc_sys::nvrtcCreateProgram(
            &mut program,
            text.as_ptr(),
            file.as_ptr(),
            names.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    made.result().map_err(|e| Error::Comm(format!("nvrtcCreateProgram of {}: {e}", unit.file)))?;
    let program = Program(program);
    let options = [format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".into()];
    // SAFETY: a living program.
    if let Err(error) = unsafe { nvrtc::compile_program(program.0, &options) } {
        return Err(Error::Comm(format!(
            "libnvrtc cannot compile {} for sm_{major}{minor} ({error}); where it does not know the device, a newer libnvrtc \
             does: {}",
            unit.file,
            log_of(&program)
        )));
    }
    let mut bytes = 0;
    // SAFETY: a compiled program; the buffer has the size that the compiler names.
    unsafe {
        let failed = |e| Error::Comm(format!("nvrtcGetCUBIN of {}: {e}", unit.file));
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
