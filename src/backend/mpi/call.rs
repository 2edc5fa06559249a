//! The return code of an MPI call as an error.

use crate::error::{Error, Result};
use mpi::ffi;
use std::os::raw::c_int;

/// Turns a return code into an error that names the call and quotes the library.
pub(in crate::backend) fn check(call: &str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = vec![0u8; 512];
    let mut used: c_int = 0;
    // SAFETY: `text` has room for MPI_MAX_ERROR_STRING (256 in Open MPI, 512 in MPICH) bytes.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut used) };
    text.truncate(used.max(0) as usize);
    Err(Error::Comm(format!("{call} failed with code {code}: {}", String::from_utf8_lossy(&text))))
}
