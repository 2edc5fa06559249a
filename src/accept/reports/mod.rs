//! The reports: the facts of an acceptance as JSON, CSV, JUnit, MLLOG and HTML. `docs/acceptance.md` has the
//! schema of `report.json`.
//!
//! Must not know: how a fact was measured.

mod csv;
mod html;
mod junit;
mod mllog;
#[cfg(feature = "figures")]
mod plots;
pub mod screen;
#[cfg(test)]
mod tests;

use super::facts::AcceptanceFacts;
use crate::error::{Error, Result};
use crate::files;
use std::io::Write;
use std::path::Path;

/// Writes every file into `dir`.
///
/// # Errors
/// The operating system's.
pub fn write(facts: &AcceptanceFacts, dir: &Path) -> Result<()> {
    let to = |name: &str, text: String| files::replace(&dir.join(name), |w| w.write_all(text.as_bytes()));
    let internal = |what: &str, e: &dyn std::fmt::Display| Error::Internal(format!("{what}: {e}"));
    let json = serde_json::to_string_pretty(facts).map_err(|e| internal("report.json", &e))?;
    to("report.json", json + "\n")?;
    to("report.csv", csv::table(facts).map_err(|e| internal("report.csv", &e))?)?;
    to("junit.xml", junit::suites(facts).map_err(|e| internal("junit.xml", &e))?)?;
    to("mllog.txt", mllog::lines(facts))?;
    to("report.html", html::page(facts).map_err(|e| internal("report.html", &e))?)
}
