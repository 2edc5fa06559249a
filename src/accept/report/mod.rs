//! The reports: one structure, written as JSON, CSV, JUnit, MLLOG and HTML. `docs/acceptance.md` has the schema of `report.json`.

mod csv;
mod html;
mod junit;
mod mllog;
mod plots;
pub mod screen;

use super::collectives::Measured;
use super::groups::Trained;
use super::lab::Lab;
use super::verdict::{Section, Verdict};
use super::{Facts, device, scaling, storage};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files;
use crate::telemetry::time_limit::unix_now;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// What the file says it is.
pub const SCHEMA: &str = "zero3.acceptance";
/// Raised when a field changes its meaning or goes; new fields do not raise it.
pub const VERSION: u32 = 1;

/// Everything about an acceptance.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    schema: &'static str,
    schema_version: u32,
    /// The one line that counts, and what speaks against it.
    pub verdict: Verdict,
    /// Unix time of the start.
    pub started_unix: f64,
    /// From start to verdict.
    pub seconds: f64,
    /// Ranks.
    pub n_ranks: usize,
    /// What computed: `cpu` or `cuda`.
    pub backend: &'static str,
    /// Whether figures were held against a baseline.
    pub has_baseline: bool,
    /// Program, MPI, HDF5, instruction set.
    pub versions: BTreeMap<String, String>,
    /// The deck, every key written out.
    pub deck: String,
    /// What each rank said of itself, in rank order.
    pub ranks: Vec<Facts>,
    /// Sections in the order they ran.
    pub sections: Vec<Section>,
    /// Rates of each rank's device.
    pub device: Vec<device::Point>,
    /// Every size of every collective, and every pair.
    pub collectives: Measured,
    /// Write and read of each rank.
    pub storage: Vec<storage::Point>,
    /// Tokens per second by ranks.
    pub scaling: Vec<scaling::Point>,
    /// Steps of the reference run.
    pub reference_run: Option<Trained>,
}

impl Report {
    /// Of a job that has found nothing yet.
    pub fn new<B: Backend>(lab: &Lab<'_, B>) -> Self {
        Report {
            schema: SCHEMA,
            schema_version: VERSION,
            verdict: Verdict { valid: false, accepted: false, reasons: Vec::new() },
            started_unix: unix_now() - lab.started.elapsed().as_secs_f64(),
            seconds: 0.0,
            n_ranks: lab.n(),
            backend: B::NAME,
            has_baseline: lab.baseline.is_given(),
            versions: lab.versions.clone(),
            deck: lab.deck.to_toml(),
            ranks: Vec::new(),
            sections: Vec::new(),
            device: Vec::new(),
            collectives: Measured::default(),
            storage: Vec::new(),
            scaling: Vec::new(),
            reference_run: None,
        }
    }

    /// As it is in the midst of `section`: what a job leaves that does not come to its end.
    pub fn amid(&self, section: &Section) -> Self {
        let mut report = self.clone();
        report.sections.push(section.clone());
        report.judge(section.began_s + section.took_s);
        report
    }

    /// Comes to its verdict, so many seconds after the start.
    pub fn judge(&mut self, seconds: f64) {
        self.verdict = Verdict::of(&self.sections);
        self.seconds = seconds;
    }

    /// Writes every file into `dir`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let to = |name: &str, text: String| files::replace(&dir.join(name), |w| w.write_all(text.as_bytes()));
        let internal = |what: &str, e: &dyn std::fmt::Display| Error::Internal(format!("{what}: {e}"));
        let json = serde_json::to_string_pretty(self).map_err(|e| internal("report.json", &e))?;
        to("report.json", json + "\n")?;
        to("report.csv", csv::table(self).map_err(|e| internal("report.csv", &e))?)?;
        to("junit.xml", junit::suites(self).map_err(|e| internal("junit.xml", &e))?)?;
        to("mllog.txt", mllog::lines(self))?;
        to("report.html", html::page(self).map_err(|e| internal("report.html", &e))?)
    }
}

#[cfg(test)]
mod tests;
