//! How many threads run a kernel.
//!
//! What a block does and how many threads share a row follow from the shape alone, so the bits of a result
//! do, too; how many blocks there are follows from the device, and no kernel's result depends on it.

/// The blocks and threads of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks, all in x; 0 where there is nothing to do.
    pub blocks: u32,
    /// Threads of a block, all in x.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// `blocks` blocks in a row, without dynamic shared memory.
    pub fn row(blocks: u32, threads: u32) -> Self {
        Grid { blocks, threads, shared_bytes: 0 }
    }
}

/// Elements that a thread moves at a time: `CHUNK` of kernels/common.cuh.
pub const CHUNK: usize = 8;

/// Threads of a block where a kernel has no reason for another number: `MAX_THREADS` of kernels/common.cuh.
pub const THREADS: usize = 256;

/// Threads of a warp.
pub const WARP: usize = 32;

/// An `int` argument of a kernel.
pub fn int(x: usize) -> i32 {
    i32::try_from(x).unwrap_or_else(|_| panic!("{x} does not fit into an int of a kernel"))
}
