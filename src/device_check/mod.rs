//! `zero3 device check`: every kernel of a device against its naive f64 sibling, and how fast it is on the
//! shapes of a real model. To be run on a node before the first training run there.
//!
//! Must not know: ranks, plans, files. It is generic over the device, so that its own tests run it on a CPU.

mod attention_cases;
mod bench;
mod cases;
mod llama_cases;
mod products;
mod step_cases;

pub use bench::{KernelResult, Scale};

use crate::backend::{Arena, Device};
use crate::dtype::DType;
use crate::error::Result;
use bench::Bench;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// Every kernel on every element type.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// The device, as it describes itself.
    pub device: String,
    /// A row for each kernel and type.
    pub rows: Vec<KernelResult>,
}

impl DeviceReport {
    /// Whether every kernel is within its tolerance.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.passed)
    }
}

/// Bytes of the arena that [`run`] needs.
pub fn arena_bytes(scale: Scale) -> usize {
    bench::arena_bytes(&scale)
}

/// Elements of the largest sum, for [`Device::reserve`].
pub const SUM_NUMEL: usize = 4096;

/// Checks and times every kernel of `device` in `arena`, which has [`arena_bytes`].
///
/// # Errors
/// The device fails. A kernel whose result is off by more than its tolerance is a row of the report.
pub fn run<D: Device>(device: &D, arena: &Arc<Arena>, scale: &Scale) -> Result<DeviceReport> {
    let mut rows = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        let mut bench = Bench::new(device, arena, dtype, *scale);
        cases::embedding(&mut bench)?;
        cases::layer_norm(&mut bench)?;
        llama_cases::run(&mut bench)?;
        cases::elementwise(&mut bench)?;
        attention_cases::run(&mut bench)?;
        step_cases::run(&mut bench)?;
        products::run(&mut bench)?;
        rows.append(&mut bench.rows);
    }
    Ok(DeviceReport { device: device.describe(), rows })
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.device)?;
        writeln!(
            f,
            "{:<32} {:<5} {:>9} {:>9}  {:<6} {:<18} {:>9} {:>8} {:>8}",
            "kernel", "type", "error", "allowed", "", "shape", "ms", "GB/s", "TFLOP/s"
        )?;
        for row in &self.rows {
            let tflops = if row.tflop_per_s > 0.0 { format!("{:.1}", row.tflop_per_s) } else { "-".into() };
            writeln!(
                f,
                "{:<32} {:<5} {:>9.1e} {:>9.1e}  {:<6} {:<18} {:>9.4} {:>8.1} {:>8}",
                row.kernel,
                row.dtype,
                row.error,
                row.tolerance,
                if row.passed { "ok" } else { "FAILED" },
                row.shape,
                row.ms,
                row.gb_per_s,
                tflops
            )?;
        }
        let failed = self.rows.iter().filter(|row| !row.passed).count();
        match failed {
            0 => write!(f, "PASSED: {} kernels within their tolerance", self.rows.len()),
            n => write!(f, "FAILED: {n} of {} kernels", self.rows.len()),
        }
    }
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
        let kernels: std::collections::BTreeSet<&str> = report.rows.iter().map(|row| &*row.kernel).collect();
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
