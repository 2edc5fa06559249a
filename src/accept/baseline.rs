//! The figures of an earlier acceptance, to hold this one against.

use super::verdict::Section;
use crate::error::{Error, Result};
use crate::telemetry::replace_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// What the file says it is.
const SCHEMA: &str = "zero3.acceptance.baseline";
/// Of that schema.
const VERSION: u32 = 1;

/// A stored baseline; empty where none was given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Baseline {
    schema: String,
    schema_version: u32,
    /// Ranks of the run.
    pub n_ranks: usize,
    /// [`crate::config::acceptance::Deck::digest`] of its deck, in hexadecimal.
    pub deck: String,
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
}

impl Baseline {
    /// Of what has been measured: every figure but those that must be exact anyway.
    pub fn of(sections: &[Section], n_ranks: usize, deck: u64) -> Self {
        let metrics = sections.iter().flat_map(|s| &s.metrics).filter(|m| !m.correctness);
        let metrics = metrics.filter_map(|m| Some((m.name.clone(), m.value?))).collect();
        Baseline { schema: SCHEMA.into(), schema_version: VERSION, n_ranks, deck: format!("{deck:016x}"), metrics }
    }

    /// The figure of that name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }

    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        !self.schema.is_empty()
    }

    /// Whether it is of another number of ranks, whose figures are not those of `n_ranks`.
    pub fn is_of_other_than(&self, n_ranks: usize) -> bool {
        self.is_given() && self.n_ranks != n_ranks
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no baseline of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let no = |why: &str| {
            let hint = "a baseline is written by `zero3 accept DECK --record-baseline FILE`";
            Error::Input(format!("cannot use the baseline {}: {why}; {hint}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|e| no(&e.to_string()))?;
        let baseline: Baseline = serde_json::from_str(&text).map_err(|e| no(&e.to_string()))?;
        if (baseline.schema.as_str(), baseline.schema_version) != (SCHEMA, VERSION) {
            return Err(no(&format!(
                "it is `{}` version {}, this program reads `{SCHEMA}` version {VERSION}",
                baseline.schema, baseline.schema_version
            )));
        }
        Ok(baseline)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, path: &Path) -> Result<()> {
        replace_file(path, |w| {
            serde_json::to_writer_pretty(&mut *w, self)?;
            w.write_all(b"\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::metric::Metric;
    use super::super::verdict::Ending;
    use super::*;

    #[test]
    fn a_baseline_comes_back_as_written_and_other_files_are_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.json");
        let metrics = vec![
            Metric::info("device.gemm", 0.1 + 0.2, "GFLOP/s"),
            Metric::exactly("device.wrong", 0.0, 0.0, "", ""),
            Metric::skipped("device.mfu", "why"),
        ];
        let section = Section {
            name: "device".into(),
            ending: Ending::Completed,
            reason: String::new(),
            began_s: 0.0,
            took_s: 0.0,
            metrics,
        };
        let baseline = Baseline::of(&[section], 3, 7);
        assert_eq!(baseline.metrics.len(), 1);
        baseline.write(&path).unwrap();
        assert_eq!(Baseline::read(&path).unwrap(), baseline);
        assert!(baseline.is_of_other_than(4) && !baseline.is_of_other_than(3));
        assert!(!Baseline::default().is_of_other_than(4), "none was given");
        for (text, says) in [
            ("{}", "missing field"),
            ("[", "EOF"),
            (r#"{"schema":"x","schema_version":1,"n_ranks":1,"deck":"","metrics":{}}"#, "`x` version 1"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = Baseline::read(&path).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("--record-baseline"), "{said}");
        }
    }
}
