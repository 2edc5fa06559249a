//! What rank 0 prints: each section as it ends, then the verdict.

use super::Report;
use crate::accept::metric::{Metric, show};
use crate::accept::verdict::{Ending, Section};
use crate::telemetry::{human, say};
use std::path::Path;

/// Metrics start their figure here.
const NAME_WIDTH: usize = 40;

/// Nobody may be reading any more; the files and the exit code remain.
fn say(text: &str) {
    say::out(text).ok();
}

/// One section.
pub fn section(section: &Section) {
    say(&section_text(section));
}

fn section_text(section: &Section) -> String {
    let head = match section.ending {
        Ending::Completed => human::seconds(section.took_s),
        Ending::NotAsked | Ending::Skipped => format!("skipped: {}", section.reason),
        Ending::Failed => format!("could not go on: {}", section.reason),
        Ending::UnderWay => format!("is not over: {}", section.reason),
    };
    let lines = section.metrics.iter().map(|metric| format!("\n  {}", line(metric)));
    format!("{}  {head}{}", section.name, lines.collect::<String>())
}

/// One metric.
pub fn line(metric: &Metric) -> String {
    let figure = metric.value.map_or(String::new(), |v| format!("{} {}", show(v), metric.unit));
    let mut text = format!("{:<7} {:<NAME_WIDTH$} {:<18}", metric.status.name(), metric.name, figure.trim_end());
    if let Some(held_against) = metric.held_against() {
        text += &format!(" [{held_against}]");
    }
    if !metric.reason.is_empty() {
        text += &format!(" {}", metric.reason);
    }
    text.trim_end().into()
}

/// The verdict, and where the reports are, if they could be written.
pub fn verdict(report: &Report, dir: &Path, is_written: bool) {
    let mut text = String::new();
    for reason in &report.verdict.reasons {
        text += &format!("\nagainst: {reason}");
    }
    if is_written {
        text += &format!("\nreports: {}/report.html, report.json, report.csv, junit.xml, mllog.txt", dir.display());
    }
    say(&format!("{text}\n\n{}", report.verdict.line()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_verdict_figure_reference_and_reason() {
        let metric = Metric::info("a.b", 9.0, "GB/s")
            .judged(&"10 -5% +20%".parse().unwrap(), None, None)
            .because("rank 1 on n2");
        let words = line(&metric);
        for part in ["FAIL    a.b", "9 GB/s", "[deck 10 -5% +20%]", "rank 1 on n2; below the lowest good value 9.5"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(line(&Metric::skipped("a.b", "why")).ends_with("why"));
    }
}
