//! From metrics to one word: VALID or INVALID, ACCEPTED or NOT ACCEPTED. Pure.

use super::metric::{Metric, Status};
use crate::error::Exit;
use serde::{Deserialize, Serialize};

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It measured all it could.
    Completed,
    /// It was not asked for.
    NotAsked,
    /// It did not run, because of time, a stop, or a section that it depends on.
    Skipped,
    /// It began and could not go on.
    Failed,
    /// It had begun when this was written: the job is in it, or has ended there.
    UnderWay,
}

/// One section and what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Name, as `run.sections` has it.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
    /// Why it did not run or could not go on; else empty.
    pub reason: String,
    /// Seconds from the start of the job to its begin.
    pub began_s: f64,
    /// Seconds it took.
    pub took_s: f64,
    /// What it found.
    pub metrics: Vec<Metric>,
}

impl Section {
    /// One that begins now, so many seconds after the start of the job.
    pub fn begun(name: &str, began_s: f64) -> Self {
        let reason = format!("it began {began_s:.0} s after the start, and the job is in it or has ended there");
        Section { name: name.into(), ending: Ending::UnderWay, reason, began_s, took_s: 0.0, metrics: Vec::new() }
    }

    /// Its results are right, whatever their speed: what depends on it may run.
    pub fn is_sound(&self) -> bool {
        self.ending == Ending::Completed && !self.metrics.iter().any(|m| m.correctness && m.status == Status::Fail)
    }
}

/// The sections that must be sound before `section` runs.
fn needs(section: &str) -> &'static [&'static str] {
    match section {
        // Ranks of different programs or decks measure nothing together.
        "device" | "collectives" | "storage" | "training" => &["inventory"],
        "scaling" => &["training"],
        "elasticity" => &["training", "storage"],
        _ => &[],
    }
}

/// Why `section` cannot run after `done`: the first section it needs that ran and is not sound, or was skipped.
pub fn blocked(section: &str, done: &[Section]) -> Option<String> {
    let of = |name: &&str| done.iter().find(|s| s.name == **name);
    let bad = needs(section).iter().filter_map(of).find(|s| s.ending != Ending::NotAsked && !s.is_sound())?;
    Some(match bad.ending {
        Ending::Completed => format!("{} found wrong results", bad.name),
        _ => format!("{} did not complete", bad.name),
    })
}

/// The one line that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// All that was asked for was measured, and every result was right: the figures mean something.
    pub valid: bool,
    /// Valid, and no figure is outside its tolerances.
    pub accepted: bool,
    /// What speaks against either, a line each.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// Of all sections.
    pub fn of(sections: &[Section]) -> Self {
        let mut reasons = Vec::new();
        let mut valid = sections.iter().any(|s| s.ending == Ending::Completed);
        if !valid {
            reasons.push("nothing was measured".to_string());
        }
        for section in sections {
            let lacks = match section.ending {
                Ending::Completed | Ending::NotAsked => None,
                Ending::Skipped => Some("did not run"),
                Ending::Failed => Some("could not go on"),
                Ending::UnderWay => Some("is not over"),
            };
            if let Some(lacks) = lacks {
                valid = false;
                reasons.push(format!("{} {lacks}: {}", section.name, section.reason));
            }
            for metric in section.metrics.iter().filter(|m| m.status == Status::Fail) {
                valid &= !metric.correctness;
                let value =
                    metric.value.map_or(String::new(), |v| format!(" = {} {}", super::metric::show(v), metric.unit));
                reasons.push(format!("{}{}: {}", metric.name, value.trim_end(), metric.reason));
            }
        }
        let accepted = valid && reasons.is_empty();
        Verdict { valid, accepted, reasons }
    }

    /// `VALID ACCEPTED` and so on.
    pub fn line(&self) -> String {
        let valid = if self.valid { "VALID" } else { "INVALID" };
        let accepted = if self.accepted { "ACCEPTED" } else { "NOT ACCEPTED" };
        format!("{valid}  {accepted}")
    }

    /// What a scheduler is told.
    pub fn exit(&self) -> Exit {
        if self.accepted { Exit::Finished } else { Exit::NotAccepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &str, ending: Ending, metrics: Vec<Metric>) -> Section {
        Section { name: name.into(), ending, reason: "why".into(), began_s: 0.0, took_s: 1.0, metrics }
    }

    fn slow() -> Metric {
        Metric::info("device.gemm", 1.0, "GFLOP/s").judged(&"10 -10%".parse().unwrap(), None, None)
    }

    #[test]
    fn slow_is_valid_and_not_accepted_wrong_is_invalid() {
        use Ending::*;
        let wrong = Metric::exactly("device.wrong", 3.0, 0.0, "", "rank 1");
        for (sections, line, exit) in [
            (vec![section("device", Completed, vec![])], "VALID  ACCEPTED", Exit::Finished),
            (vec![section("device", Completed, vec![slow()])], "VALID  NOT ACCEPTED", Exit::NotAccepted),
            (vec![section("device", Completed, vec![wrong])], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
            (
                vec![section("device", Completed, vec![]), section("storage", Skipped, vec![])],
                "INVALID  NOT ACCEPTED",
                Exit::NotAccepted,
            ),
            (
                vec![section("device", Completed, vec![]), section("storage", NotAsked, vec![])],
                "VALID  ACCEPTED",
                Exit::Finished,
            ),
            (vec![section("device", Failed, vec![])], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
            (vec![section("device", UnderWay, vec![])], "INVALID  NOT ACCEPTED", Exit::NotAccepted),
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
            section("inventory", Ending::Completed, vec![]),
            section("device", Ending::Completed, vec![slow()]),
            section("training", Ending::Completed, vec![wrong]),
        ];
        assert_eq!(blocked("storage", &done), None);
        assert_eq!(blocked("scaling", &done).unwrap(), "training found wrong results");
        assert_eq!(blocked("collectives", &done), None, "slowness is no gate");
        assert_eq!(blocked("scaling", &[section("training", Ending::NotAsked, vec![])]), None);
    }
}
