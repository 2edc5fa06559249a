//! `zero3 device check`: every kernel of a device against its naive f64 sibling, and its speed on the shapes
//! of a real model. To be run on a node before the first training run there.
//!
//! Must not know: ranks, plans, files. It is generic over the device, so that its own tests run it on a CPU.

mod attention_cases;
mod bench;
mod cases;
mod llama_cases;
mod products;
mod result;
mod sizes;
mod step_cases;

pub use result::{DeviceReport, KernelResult};
pub use sizes::Scale;

use crate::backend::{Arena, Device};
use crate::dtype::DType;
use crate::error::Result;
use std::sync::Arc;

/// Bytes of the arena that [`run`] needs.
pub fn arena_bytes(scale: Scale) -> usize {
    bench::arena_bytes(&scale)
}

/// Elements of the largest sum, for [`Device::reserve`].
pub const SUM_NUMEL: usize = 4096;

/// Checks and times every kernel of `device` in `arena`, which has [`arena_bytes`].
///
/// # Errors
/// The device fails. A result beyond its tolerance is not an error: the report has it.
pub fn run<D: Device>(device: &D, arena: &Arc<Arena>, scale: &Scale) -> Result<DeviceReport> {
    let mut rows = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        let mut bench = bench::Bench::new(device, arena, dtype, *scale);
        cases::run(&mut bench)?;
        products::run(&mut bench)?;
        rows.append(&mut bench.rows);
    }
    Ok(DeviceReport { device: device.describe(), rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuDevice;
    use crate::backend::cpu::host::test_memory::arena;

    #[test]
    fn the_kernels_of_a_cpu_pass() {
        let device = CpuDevice::new(2).unwrap();
        let report = run(&device, &arena(arena_bytes(Scale::SMALL)), &Scale::SMALL).unwrap();
        assert!(report.passed(), "{report}");
        let kernels: std::collections::BTreeSet<&str> = report.rows.iter().map(|row| row.kernel).collect();
        assert_eq!(report.rows.len(), 2 * kernels.len(), "each kernel on both types: {kernels:?}");
        assert!(report.to_string().contains("PASSED"));
    }

    #[test]
    fn an_error_beyond_tolerance_shows() {
        let device = CpuDevice::new(1).unwrap();
        let mut report = run(&device, &arena(arena_bytes(Scale::SMALL)), &Scale::SMALL).unwrap();
        report.rows[3].passed = false;
        assert!(!report.passed() && report.to_string().contains("FAILED: 1 of"), "{report}");
    }
}
