//! The kernels as text: CUDA C++ that NVRTC compiles for the device a run finds, unless an earlier run has
//! (`image.rs`).
//!
//! `all.cuh` is the program; it includes the other files by name. They include nothing else, because a node
//! has a driver and NVRTC but no headers of CUDA. A kernel is named by [`Kernel`], which is made for each
//! launch and so owns nothing.

use crate::dtype::DType;
use std::fmt;

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
    ("lion.cu", include_str!("lion.cu")),
    ("norm.cu", include_str!("norm.cu")),
    ("optimizer.cu", include_str!("optimizer.cu")),
    ("rope.cu", include_str!("rope.cu")),
    ("sgd.cu", include_str!("sgd.cu")),
    ("sums.cu", include_str!("sums.cu")),
    ("tiles.cuh", include_str!("tiles.cuh")),
];

/// How to compile it, besides the architecture. Without `--fmad=false` the compiler leaves out roundings
/// where the kernels and the CPU have them.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=false"];

/// A kernel by its name in `all.cuh`: `NAME`, `NAME_T`, `NAME_T_G`, or with the tiles of attention
/// `NAME_T_CHANNELSxROWS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    name: &'static str,
    types: [Option<DType>; 2],
    tile: Option<(usize, usize)>,
}

impl Kernel {
    /// A kernel compiled for one type.
    pub const fn new(name: &'static str) -> Self {
        Kernel { name, types: [None; 2], tile: None }
    }

    /// The kernel for elements of this type: of the first operand, or of the second where the first is set.
    pub fn of(mut self, dtype: DType) -> Self {
        assert!(dtype != DType::U32, "{self} takes f32 or bf16");
        let place = self.types.iter_mut().find(|t| t.is_none());
        *place.expect("kernels have two types at most") = Some(dtype);
        self
    }

    /// The kernel for tiles of `channels` channels, which tiles of `rows` rows pass.
    pub fn with_tile(mut self, channels: usize, rows: usize) -> Self {
        self.tile = Some((channels, rows));
        self
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.types.iter().flatten().try_for_each(|dtype| write!(f, "_{}", dtype.name()))?;
        self.tile.iter().try_for_each(|(channels, rows)| write!(f, "_{channels}x{rows}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_called_as_in_the_list() {
        let add = Kernel::new("add");
        assert_eq!(add.to_string(), "add");
        assert_eq!(add.of(DType::Bf16).to_string(), "add_bf16");
        assert_eq!(add.of(DType::F32).of(DType::Bf16).to_string(), "add_f32_bf16");
        assert_eq!(add.of(DType::F32).with_tile(128, 16).to_string(), "add_f32_128x16");
    }
}
