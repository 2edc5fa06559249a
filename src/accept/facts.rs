//! Everything an acceptance has measured, as plain data: the content of `report.json`, whose schema is in
//! docs/acceptance.md.
//!
//! Must not know: how anything is measured, or which files reports are.

use super::verdict::{SectionResult, Verdict};
use crate::harness::{CollectiveTime, TrainedRun};
use serde::Serialize;
use std::collections::BTreeMap;

/// Identifies the file.
pub const REPORT_SCHEMA: &str = "zero3.acceptance";
/// Raised when a field changes its meaning or is removed; new fields do not raise it.
pub const REPORT_VERSION: u32 = 1;

/// What a rank reports about itself, by name.
pub type RankFacts = BTreeMap<String, String>;

/// Rates of one rank's device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceRates {
    /// Rank.
    pub rank: usize,
    /// f32 matrix products, GFLOP/s.
    pub gemm_f32_gflops: f64,
    /// bf16 matrix products, GFLOP/s.
    pub gemm_bf16_gflops: f64,
    /// Memory bandwidth, GB/s.
    pub memory_gb_per_s: f64,
}

/// All times of collectives and links.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CollectiveFacts {
    /// Every size of every collective.
    pub points: Vec<CollectiveTime>,
    /// Every pair that was measured by itself.
    pub links: Vec<LinkTimes>,
}

/// The link between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LinkTimes {
    /// The lower rank.
    pub a: usize,
    /// The higher rank.
    pub b: usize,
    /// Half the shortest round trip of 8 bytes, microseconds.
    pub latency_us: f64,
    /// Bytes over half the shortest round trip of the largest size, GB/s.
    pub gb_per_s: f64,
}

/// File system rates of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StorageRates {
    /// Rank.
    pub rank: usize,
    /// Its write, from open to the end of fsync, GB/s.
    pub write_gb_per_s: f64,
    /// Its read of the next rank's file, GB/s.
    pub read_gb_per_s: f64,
}

/// Speed of one run of `scaling`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingPoint {
    /// `strong` or `weak`.
    pub mode: &'static str,
    /// Ranks.
    pub n_ranks: usize,
    /// At the median step.
    pub tokens_per_s: f64,
    /// Tokens per second over the ideal: those of one rank, times the ranks.
    pub efficiency: f64,
}

/// The job that is judged.
#[derive(Debug, Clone, Serialize)]
pub struct JobFacts {
    /// Unix time of its start.
    pub started_unix: f64,
    /// Ranks.
    pub n_ranks: usize,
    /// The backend that computes: `cpu` or `cuda`.
    pub backend: &'static str,
    /// Whether metrics are compared with a baseline.
    pub has_baseline: bool,
    /// Versions of the program, MPI and HDF5; the instruction set.
    pub versions: BTreeMap<String, String>,
    /// The deck as TOML, every key written out.
    pub deck: String,
}

/// Everything about an acceptance; serialized it is `report.json`.
#[derive(Debug, Clone, Serialize)]
pub struct AcceptanceFacts {
    schema: &'static str,
    schema_version: u32,
    /// Result and reasons.
    pub verdict: Verdict,
    /// From start to verdict.
    pub seconds: f64,
    /// What ran.
    #[serde(flatten)]
    pub job: JobFacts,
    /// What each rank reported about itself, in rank order.
    pub ranks: Vec<RankFacts>,
    /// Sections in the order they ran.
    pub sections: Vec<SectionResult>,
    /// Rates of each rank's device.
    pub device: Vec<DeviceRates>,
    /// Collectives and links.
    pub collectives: CollectiveFacts,
    /// File system rates of each rank.
    pub storage: Vec<StorageRates>,
    /// Runs of `scaling`.
    pub scaling: Vec<ScalingPoint>,
    /// The reference run, where it came to its end.
    pub reference_run: Option<TrainedRun>,
}

impl AcceptanceFacts {
    /// Of a job that has not measured anything yet.
    pub fn new(job: JobFacts) -> Self {
        AcceptanceFacts {
            schema: REPORT_SCHEMA,
            schema_version: REPORT_VERSION,
            verdict: Verdict { valid: false, accepted: false, reasons: Vec::new() },
            seconds: 0.0,
            job,
            ranks: Vec::new(),
            sections: Vec::new(),
            device: Vec::new(),
            collectives: CollectiveFacts::default(),
            storage: Vec::new(),
            scaling: Vec::new(),
            reference_run: None,
        }
    }

    /// The facts and verdict of a job that ends during `section`.
    pub fn interrupted_in(&self, section: &SectionResult) -> Self {
        let mut facts = self.clone();
        facts.sections.push(section.clone());
        facts.judge(section.began_s + section.took_s);
        facts
    }

    /// Makes the verdict, `seconds` after the start.
    pub fn judge(&mut self, seconds: f64) {
        self.verdict = Verdict::of(&self.sections);
        self.seconds = seconds;
    }
}
