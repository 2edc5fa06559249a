//! The kernels as text: CUDA C++ that NVRTC compiles when a run starts, for the device it runs on.
//!
//! `all.cuh` is the program; it includes the other files by name. They include nothing else, because a node has a
//! driver and NVRTC but no headers of CUDA.

/// The text to compile.
pub const MAIN: &str = include_str!("all.cuh");

/// What it includes: (name, text).
pub const FILES: &[(&str, &str)] = &[
    ("attention.cu", include_str!("attention.cu")),
    ("common.cuh", include_str!("common.cuh")),
    ("cross_entropy.cu", include_str!("cross_entropy.cu")),
    ("elementwise.cu", include_str!("elementwise.cu")),
    ("embedding.cu", include_str!("embedding.cu")),
    ("exp.cuh", include_str!("exp.cuh")),
    ("norm.cu", include_str!("norm.cu")),
    ("optimizer.cu", include_str!("optimizer.cu")),
    ("rope.cu", include_str!("rope.cu")),
    ("sums.cu", include_str!("sums.cu")),
    ("tiles.cuh", include_str!("tiles.cuh")),
];

/// How to compile it, besides the architecture. Without `--fmad=false` the compiler leaves out roundings where the kernels
/// and the CPU have them.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=false"];
