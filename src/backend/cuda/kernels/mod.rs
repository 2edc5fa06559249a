//! The sources of the kernels, as they lie beside this file, and what they define.
//!
//! They are compiled at start for the device at hand (`module.rs`), and in tests by nvcc and for the host.

/// One compilation unit.
pub struct Unit {
    /// File name, for the compiler's messages.
    pub file: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The kernels it defines.
    pub kernels: &'static [&'static str],
}

/// Every compilation unit.
pub const UNITS: &[Unit] = &[];

/// Every file that a unit includes: name as written in the `#include`, and text.
pub const HEADERS: &[(&str, &str)] = &[];
