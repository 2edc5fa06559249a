//! The sources of the kernels, as they lie beside this file.
//!
//! They are compiled at start for the device at hand (`module.rs`), and in tests by nvcc and for the host.

/// What is compiled: it includes all the rest.
pub const MAIN: &str = "";

/// Every file that is included: its name, and its text.
pub const FILES: &[(&str, &str)] = &[];

/// Options of the compiler, besides the architecture.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=false"];
