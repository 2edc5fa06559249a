//! What a check found, and the table that is printed.

use serde::Serialize;
use std::fmt;

/// Error and speed of one kernel on elements of one type.
#[derive(Debug, Clone, Serialize)]
pub struct KernelResult {
    /// Its name, e.g. `layer_norm_forward`.
    pub kernel: &'static str,
    /// Type of activations.
    pub dtype: &'static str,
    /// Largest error of an element: `|got - want| / max(1, |want|)`.
    pub error: f64,
    /// Largest error allowed.
    pub tolerance: f64,
    /// Whether `error` is within `tolerance`.
    pub passed: bool,
    /// Shape it was timed on.
    pub shape: String,
    /// Time of one call, the best of several.
    pub ms: f64,
    /// Bytes it must read and write, each once, over that time, in GB/s.
    pub gb_per_s: f64,
    /// Floating-point operations over that time, in TFLOP/s; 0 for kernels bound by memory.
    pub tflop_per_s: f64,
}

/// Results of all kernels.
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
