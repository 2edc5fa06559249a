//! `zero3 device check`: every kernel of a device against its naive f64 sibling, and how fast it is on the shapes of a real
//! model. What a person runs on a node before the first training run there.
//!
//! Must not know: ranks, plans, files. It is generic over the device, so that its own tests run it on a CPU.

mod attention_cases;
mod bench;
mod cases;
mod llama_cases;
mod products;
mod step_cases;

use crate::backend::{Arena, Device};
use crate::dtype::DType;
use crate::error::Result;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// One kernel on elements of one type.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which, e.g. `layer_norm_forward`.
    pub kernel: Cow<'static, str>,
    /// Of activations.
    pub dtype: &'static str,
    /// Largest error of an element: `|got - want| / max(1, |want|)`.
    pub error: f64,
    /// What is allowed.
    pub tolerance: f64,
    /// Whether it keeps to it.
    pub passed: bool,
    /// Shape it was timed on.
    pub shape: String,
    /// Time of one call, the best of several.
    pub ms: f64,
    /// Bytes it must read and write, each once, by that time, in GB/s.
    pub gb_per_s: f64,
    /// Floating-point operations by that time, in TFLOP/s; 0 for kernels that memory bounds.
    pub tflop_per_s: f64,
}

/// All of them.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was checked.
    pub device: String,
    /// A row for each kernel and type.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether every kernel keeps to its tolerance.
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

/// How large the shapes are that kernels are timed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Rows of activations.
    pub rows: usize,
    /// Tokens per sequence; divides `rows`.
    pub t: usize,
    /// Width.
    pub c: usize,
    /// Heads; divides `c`.
    pub n_heads: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Calls of each kernel, of which the best counts.
    pub n_calls: usize,
}

impl Scale {
    /// GPT-2 124M on micro-batches of 16 sequences.
    pub const GPT2: Scale = Scale { rows: 16 * 1024, t: 1024, c: 768, n_heads: 12, vocab: 50257, n_calls: 10 };
    /// So small that a CPU is done with it at once.
    pub const SMALL: Scale = Scale { rows: 64, t: 16, c: 48, n_heads: 3, vocab: 97, n_calls: 1 };
}

/// Checks and times every kernel of `device` in `arena`, which has [`arena_bytes`].
///
/// # Errors
/// The device fails; an error beyond tolerance is none, it is in the report.
pub fn run<D: Device>(device: &D, arena: &Arc<Arena>, scale: &Scale) -> Result<Report> {
    let mut rows = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        let mut bench = bench::Bench::new(device, arena, dtype, *scale);
        cases::run(&mut bench)?;
        products::run(&mut bench)?;
        rows.append(&mut bench.rows);
    }
    Ok(Report { device: device.describe(), rows })
}

impl fmt::Display for Report {
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
            0 => write!(f, "PASSED: {} kernels keep to their tolerance", self.rows.len()),
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
