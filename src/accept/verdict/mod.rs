//! From metrics to one line: VALID or INVALID, ACCEPTED or NOT ACCEPTED. Pure.
//!
//! Beside it: what a metric is (`metric.rs`), which limit of the deck applies to it (`metric_limits.rs`),
//! what it is compared with (`baseline.rs`, `golden_losses.rs`), and which rank or link is at fault
//! (`bisect.rs`, `outliers.rs`).
//!
//! Must not know: how anything is measured, or reported.

pub mod baseline;
pub mod bisect;
pub mod golden_losses;
pub mod metric;
pub mod metric_limits;
pub mod outliers;

use crate::config::acceptance::Section;
use crate::error::Exit;
use metric::{Metric, Status};
use serde::{Deserialize, Serialize};

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It ran to its end.
    Completed,
    /// The deck does not ask for it.
    NotAsked,
    /// It did not run: out of time, a stop signal, or wrong results of a section that it needs.
    Skipped,
    /// It began and could not continue.
    Failed,
    /// It was running when this was written: the job is still in it, or ended there.
    UnderWay,
}

/// What a section measured, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SectionResult {
    /// Which section.
    #[serde(rename = "name")]
    pub section: Section,
    /// How it ended.
    pub ending: Ending,
    /// Why it did not run or could not continue; else empty.
    pub reason: String,
    /// When it began, in seconds from the start of the job.
    pub began_s: f64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What it measured.
    pub metrics: Vec<Metric>,
}

impl SectionResult {
    /// A section that begins now, `began_s` seconds after the start of the job.
    pub fn begun(section: Section, began_s: f64) -> Self {
        let reason = format!("it began {began_s:.0} s after the start, and the job is in it or ended there");
        SectionResult { section, ending: Ending::UnderWay, reason, began_s, took_s: 0.0, metrics: Vec::new() }
    }

    /// Whether its results are right, whatever their speed, so that sections that need it may run.
    pub fn is_sound(&self) -> bool {
        self.ending == Ending::Completed
            && !self.metrics.iter().any(|m| m.correctness && m.status == Status::Fail)
    }
}

/// Why `section` cannot run after `done`: the first section that it needs and that ran with wrong results or
/// did not complete.
pub fn blocked(section: Section, done: &[SectionResult]) -> Option<String> {
    let result = |needed: &Section| done.iter().find(|result| result.section == *needed);
    let bad =
        section.needs().iter().filter_map(result).find(|r| r.ending != Ending::NotAsked && !r.is_sound())?;
    Some(match bad.ending {
        Ending::Completed => format!("{} found wrong results", bad.section),
        _ => format!("{} did not complete", bad.section),
    })
}

/// The result of an acceptance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Everything asked for was measured, and every result was right: the measured values mean something.
    pub valid: bool,
    /// Valid, and every metric passes.
    pub accepted: bool,
    /// Reasons against either, a line each.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// The verdict on all sections.
    pub fn of(sections: &[SectionResult]) -> Self {
        let mut reasons = Vec::new();
        let mut valid = sections.iter().any(|s| s.ending == Ending::Completed);
        if !valid {
            reasons.push("nothing was measured".to_string());
        }
        for section in sections {
            let lacking = match section.ending {
                Ending::Completed | Ending::NotAsked => None,
                Ending::Skipped => Some("did not run"),
                Ending::Failed => Some("could not continue"),
                Ending::UnderWay => Some("is not over"),
            };
            if let Some(lacking) = lacking {
                valid = false;
                reasons.push(format!("{} {lacking}: {}", section.section, section.reason));
            }
            for metric in section.metrics.iter().filter(|m| m.status == Status::Fail) {
                valid &= !metric.correctness;
                let value =
                    metric.value.map_or(String::new(), |v| format!(" = {} {}", metric::show(v), metric.unit));
                reasons.push(format!("{}{}: {}", metric.name, value.trim_end(), metric.reason));
            }
        }
        let accepted = valid && reasons.is_empty();
        Verdict { valid, accepted, reasons }
    }

    /// `VALID  ACCEPTED` and so on.
    pub fn line(&self) -> String {
        let valid = if self.valid { "VALID" } else { "INVALID" };
        let accepted = if self.accepted { "ACCEPTED" } else { "NOT ACCEPTED" };
        format!("{valid}  {accepted}")
    }

    /// The exit code of the program.
    pub fn exit(&self) -> Exit {
        if self.accepted { Exit::Finished } else { Exit::NotAccepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(section: Section, ending: Ending, metrics: Vec<Metric>) -> SectionResult {
        SectionResult { section, ending, reason: "why".into(), began_s: 0.0, took_s: 1.0, metrics }
    }

    fn slow() -> Metric {
        Metric::info("device.gemm", 1.0, "GFLOP/s").judged(&"10 -10%".parse().unwrap(), None, None)
    }

    #[test]
    fn slow_is_valid_and_not_accepted_wrong_is_invalid() {
        use Ending::*;
        let wrong = Metric::exactly("device.wrong", 3.0, 0.0, "", "rank 1");
        for (sections, line, exit) in [
            (vec![result(Section::Device, Completed, vec![])], "VALID  ACCEPTED", Exit::Finished),
            (
                vec![result(Section::Device, Completed, vec![slow()])],
                "VALID  NOT ACCEPTED",
                Exit::NotAccepted,
            ),
            (
                vec![result(Section::Device, Completed, vec![wrong])],
                "INVALID  NOT ACCEPTED",
                Exit::NotAccepted,
            ),
            (
                vec![result(Section::Device, Completed, vec![]), result(Section::Storage, Skipped, vec![])],
                "INVALID  NOT ACCEPTED",
                Exit::NotAccepted,
            ),
            (
                vec![result(Section::Device, Completed, vec![]), result(Section::Storage, NotAsked, vec![])],
                "VALID  ACCEPTED",
                Exit::Finished,
            ),
            (vec![result(Section::Device, Failed, vec![])], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
            (vec![result(Section::Device, UnderWay, vec![])], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
            (vec![], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
        ] {
            let verdict = Verdict::of(&sections);
            assert_eq!((verdict.line().as_str(), verdict.exit()), (line, exit), "{verdict:?}");
            assert_eq!(verdict.accepted, verdict.reasons.is_empty());
        }
    }

    #[test]
    fn a_failed_gate_stops_what_depends_on_it_and_nothing_else() {
        let wrong = Metric::exactly("training.bits", 3.0, 0.0, "", "rank 1");
        let done = [
            result(Section::Inventory, Ending::Completed, vec![]),
            result(Section::Device, Ending::Completed, vec![slow()]),
            result(Section::Training, Ending::Completed, vec![wrong]),
        ];
        assert_eq!(blocked(Section::Storage, &done), None);
        assert_eq!(blocked(Section::Scaling, &done).unwrap(), "training found wrong results");
        assert_eq!(blocked(Section::Collectives, &done), None, "slowness is no gate");
        assert_eq!(blocked(Section::Scaling, &[result(Section::Training, Ending::NotAsked, vec![])]), None);
    }
}
