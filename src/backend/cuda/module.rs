//! The loaded kernels: from a name to a function that can be launched.

use super::driver::{fault, in_words};
use super::image::Image;
use super::kernels::Kernel;
use crate::error::Result;
use cudarc::driver::{result as driver, sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;

/// Dynamic shared memory that every kernel may have without asking.
const SHARED_BYTES_UNASKED: u32 = 48 << 10;

/// The kernels of a device.
pub struct Kernels {
    module: sys::CUmodule,
    /// Those that were asked for.
    functions: RefCell<HashMap<Kernel, Function>>,
}

/// One kernel.
#[derive(Clone, Copy)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory it may have so far.
    shared_bytes: u32,
}

impl Kernels {
    /// Loads every kernel on the device of the current context.
    ///
    /// # Errors
    /// The image is for another device.
    pub fn load(image: &Image) -> Result<Self> {
        // SAFETY: a complete image: the compiler of this rank or of rank 0 has just made it, or its digest is
        // that of one it made.
        let module = unsafe { driver::module::load_data(image.bytes().as_ptr().cast()) };
        Ok(Kernels {
            module: module.map_err(|e| fault("cuModuleLoadData", e))?,
            functions: RefCell::default(),
        })
    }

    /// A kernel, which may have this much dynamic shared memory.
    ///
    /// # Panics
    /// Where there is none of this name, or the device has less memory.
    pub fn function(&self, kernel: Kernel, shared_bytes: u32) -> sys::CUfunction {
        let mut functions = self.functions.borrow_mut();
        let function = functions
            .entry(kernel)
            .or_insert_with(|| Function { raw: self.find(kernel), shared_bytes: SHARED_BYTES_UNASKED });
        if shared_bytes > function.shared_bytes {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a module that is loaded.
            let set = unsafe {
                driver::function::set_function_attribute(function.raw, attribute, shared_bytes as i32)
            };
            if let Err(error) = set {
                panic!("{kernel} may not have {shared_bytes} bytes of shared memory: {}", in_words(error));
            }
            function.shared_bytes = shared_bytes;
        }
        function.raw
    }

    fn find(&self, kernel: Kernel) -> sys::CUfunction {
        let name = CString::new(kernel.to_string()).expect("names of kernels are words");
        // SAFETY: a module that is loaded.
        let found = unsafe { driver::module::get_function(self.module, name) };
        found.unwrap_or_else(|error| panic!("there is no kernel {kernel}: {}", in_words(error)))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded above, unloaded once. An error at the end is of no consequence.
        unsafe { driver::module::unload(self.module) }.ok();
    }
}
