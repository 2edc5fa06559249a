//! The metrics of an earlier acceptance, as references for this one.

use super::{SectionResult, golden_losses};
use crate::accept::facts::{REPORT_SCHEMA, REPORT_VERSION};
use crate::config::acceptance::Deck;
use crate::error::{Error, Result};
use crate::files::{self, MAX_RECORD_BYTES};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Identifies the file.
const SCHEMA: &str = "zero3.acceptance.baseline";
/// Version of that schema.
const VERSION: u32 = 1;

/// A stored baseline; empty where none was given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Baseline {
    schema: String,
    schema_version: u32,
    /// Ranks of the run.
    pub n_ranks: usize,
    /// The values of its deck that metrics depend on, by key.
    pub sizes: BTreeMap<String, String>,
    /// Values by metric.
    pub metrics: BTreeMap<String, f64>,
}

/// The values of a deck that metrics depend on, by key; `backend` is the one that computes.
fn sizes(deck: &Deck, backend: &str) -> BTreeMap<String, String> {
    let Deck { run, device, collectives, storage, .. } = deck;
    [
        ("run.backend", backend.to_string()),
        ("run.threads_per_rank", run.threads_per_rank.to_string()),
        ("run.peak_gflops", run.peak_gflops.to_string()),
        ("device.gemm_n", device.gemm_n.to_string()),
        ("device.memory_bytes", device.memory_bytes.to_string()),
        ("collectives.max_bytes", collectives.max_bytes.to_string()),
        ("storage.bytes_per_rank", storage.bytes_per_rank.to_string()),
        ("storage.n_files", storage.n_files.to_string()),
        ("training", golden_losses::reference_name(deck)),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into()
}

impl Baseline {
    /// Every measured value, without those that must be exact anyway.
    pub fn of(sections: &[SectionResult], n_ranks: usize, deck: &Deck, backend: &str) -> Self {
        let metrics = sections.iter().flat_map(|s| &s.metrics).filter(|m| !m.correctness);
        let metrics = metrics.filter_map(|m| Some((m.name.clone(), m.value?))).collect();
        Baseline {
            schema: SCHEMA.into(),
            schema_version: VERSION,
            n_ranks,
            sizes: sizes(deck, backend),
            metrics,
        }
    }

    /// The value of the metric `name`.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }

    /// Whether one was given.
    pub fn is_given(&self) -> bool {
        !self.schema.is_empty()
    }

    /// Whether it was measured on another number of ranks than `n_ranks`.
    pub fn has_other_rank_count(&self, n_ranks: usize) -> bool {
        self.is_given() && self.n_ranks != n_ranks
    }

    /// # Errors
    /// It was measured with other sizes than those of `deck`, or on another backend: such values cannot be
    /// compared.
    pub fn check(&self, deck: &Deck, backend: &str) -> Result<()> {
        let own = sizes(deck, backend);
        let differs = own.iter().filter(|(key, _)| self.is_given() && self.sizes.get(*key) != own.get(*key));
        let line = |(key, own): (&String, &String)| {
            let stored = self.sizes.get(key).map_or("nothing", String::as_str);
            format!("  {key}: {stored} there, {own} here")
        };
        let lines: Vec<String> = differs.map(line).collect();
        if lines.is_empty() {
            return Ok(());
        }
        Err(Error::Input(format!(
            "the baseline was measured with another deck:\n{}\nuse its sizes, or record a baseline of these \
             with --record-baseline FILE",
            lines.join("\n")
        )))
    }

    /// Reads a file: a baseline, or the report.json of a run.
    ///
    /// # Errors
    /// It cannot be read, is neither of these, has another version, or is the report of an INVALID run.
    pub fn read(path: &Path) -> Result<Self> {
        let no = |why: String| {
            let hint = "a baseline is the report.json of a run, or written by `zero3 accept DECK \
                        --record-baseline FILE`";
            Error::Input(format!("cannot use the baseline {}: {why}; {hint}", path.display()))
        };
        let text = files::read_text(path, MAX_RECORD_BYTES).map_err(|e| no(e.to_string()))?;
        let json: Value = serde_json::from_str(&text).map_err(|e| no(e.to_string()))?;
        let schema =
            (json["schema"].as_str().unwrap_or("nothing"), json["schema_version"].as_u64().unwrap_or(0));
        match schema {
            (SCHEMA, version) if version == u64::from(VERSION) => {
                serde_json::from_value(json).map_err(|e| no(e.to_string()))
            }
            (REPORT_SCHEMA, version) if version == u64::from(REPORT_VERSION) => of_report(&json).map_err(no),
            (schema, version) => Err(no(format!(
                "it says that it is `{schema}` version {version}; this program reads `{SCHEMA}` version \
                 {VERSION} and `{REPORT_SCHEMA}` version {REPORT_VERSION}"
            ))),
        }
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain data") + "\n";
        files::write_output(path, text.as_bytes())
    }
}

/// The metrics of a report.json.
fn of_report(report: &Value) -> std::result::Result<Baseline, String> {
    if report["verdict"]["valid"] != true {
        return Err("it is the report of an INVALID run, whose values mean nothing".into());
    }
    let sections =
        Vec::<SectionResult>::deserialize(&report["sections"]).map_err(|e| format!("its sections: {e}"))?;
    let n_ranks = usize::deserialize(&report["n_ranks"]).map_err(|e| format!("its n_ranks: {e}"))?;
    let backend = report["backend"].as_str().ok_or("it has no backend")?;
    let deck = report["deck"].as_str().unwrap_or_default();
    let deck = Deck::parse(deck, &[], "the deck of the report").map_err(|e| format!("its deck: {e}"))?;
    Ok(Baseline::of(&sections, n_ranks, &deck, backend))
}

#[cfg(test)]
mod tests {
    use super::super::Ending;
    use super::super::metric::Metric;
    use super::*;
    use crate::config::acceptance::Section;

    #[test]
    fn a_baseline_comes_back_as_written_and_other_files_are_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.json");
        let metrics = vec![
            Metric::info("device.gemm", 0.1 + 0.2, "GFLOP/s"),
            Metric::exactly("device.wrong", 0.0, 0.0, "", ""),
            Metric::skipped("device.mfu", "why"),
        ];
        let section = SectionResult {
            section: Section::Device,
            ending: Ending::Completed,
            reason: String::new(),
            began_s: 0.0,
            took_s: 0.0,
            metrics,
        };
        let deck = |line: &str| Deck::parse(&format!("run.dir = \"r\"\n{line}"), &[], "test.toml").unwrap();
        let baseline = Baseline::of(&[section], 3, &deck(""), "cpu");
        assert_eq!(baseline.metrics.len(), 1);
        baseline.write(&path).unwrap();
        assert_eq!(Baseline::read(&path).unwrap(), baseline);
        assert!(baseline.has_other_rank_count(4) && !baseline.has_other_rank_count(3));
        assert!(!Baseline::default().has_other_rank_count(4), "none was given");
        baseline.check(&deck("run.checkpoint_dir = \"elsewhere\"\ndevice.slow_rank = 0.3"), "cpu").unwrap();
        let said = baseline.check(&deck("device.gemm_n = 64"), "cpu").unwrap_err().to_string();
        assert!(
            said.contains("device.gemm_n: 1024 there, 64 here") && !said.contains("memory_bytes"),
            "{said}"
        );
        let said = baseline.check(&deck(""), "cuda").unwrap_err().to_string();
        assert!(said.contains("run.backend: cpu there, cuda here"), "{said}");
        Baseline::default().check(&deck("device.gemm_n = 64"), "cpu").unwrap();
        for (text, says) in [
            ("{}", "it says that it is `nothing` version 0"),
            ("[", "EOF"),
            (r#"{"schema":"zero3.acceptance.baseline","schema_version":1}"#, "missing field"),
            (r#"{"schema":"zero3.acceptance.baseline","schema_version":2}"#, "version 2; this program reads"),
            (
                r#"{"schema":"zero3.acceptance","schema_version":1,"verdict":{"valid":false}}"#,
                "an INVALID run",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = Baseline::read(&path).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("--record-baseline"), "{said}");
        }
    }
}
