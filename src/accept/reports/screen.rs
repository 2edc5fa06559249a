//! What rank 0 prints: each section as it ends, then the verdict.

use crate::accept::facts::AcceptanceFacts;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::{Ending, SectionResult};
use crate::{human, say};
use std::path::Path;

/// Width of the column of names.
const NAME_WIDTH: usize = 40;

/// Prints a line. The reader may have closed the pipe; the files and the exit code remain.
fn print(text: &str) {
    say::out(text).ok();
}

/// Prints a section.
pub fn section(result: &SectionResult) {
    print(&section_text(result));
}

fn section_text(result: &SectionResult) -> String {
    let head = match result.ending {
        Ending::Completed => human::seconds(result.took_s),
        Ending::NotAsked | Ending::Skipped => format!("skipped: {}", result.reason),
        Ending::Failed => format!("could not continue: {}", result.reason),
        Ending::UnderWay => format!("is not over: {}", result.reason),
    };
    let lines = result.metrics.iter().map(|metric| format!("\n  {}", line(metric)));
    format!("{}  {head}{}", result.section, lines.collect::<String>())
}

/// The line of a metric.
pub fn line(metric: &Metric) -> String {
    let figure = metric.value.map_or(String::new(), |v| format!("{} {}", show(v), metric.unit));
    let mut text =
        format!("{:<7} {:<NAME_WIDTH$} {:<18}", metric.status.name(), metric.name, figure.trim_end());
    if let Some(compared_with) = metric.compared_with() {
        text += &format!(" [{compared_with}]");
    }
    if !metric.reason.is_empty() {
        text += &format!(" {}", metric.reason);
    }
    text.trim_end().into()
}

/// Prints the verdict, and where the reports are, if they could be written.
pub fn verdict(facts: &AcceptanceFacts, dir: &Path, is_written: bool) {
    let mut text = String::new();
    for reason in &facts.verdict.reasons {
        text += &format!("\nagainst: {reason}");
    }
    if is_written {
        text += &format!(
            "\nreports: {}/report.html, report.json, report.csv, junit.xml, mllog.txt",
            dir.display()
        );
    }
    print(&format!("{text}\n\n{}", facts.verdict.line()));
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
        for part in
            ["FAIL    a.b", "9 GB/s", "[deck 10 -5% +20%]", "rank 1 on n2; below the lowest good value 9.5"]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(line(&Metric::skipped("a.b", "why")).ends_with("why"));
    }
}
