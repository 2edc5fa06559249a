//! One measured value, its reference and tolerances, and whether it passes. Pure.

use crate::config::Limit;
use serde::{Deserialize, Serialize};

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Within its tolerances.
    Pass,
    /// Outside its tolerances.
    Fail,
    /// Not compared with anything.
    Info,
    /// Not measured; the reason says why.
    Skipped,
}

impl Status {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Status::Pass => "PASS",
            Status::Fail => "FAIL",
            Status::Info => "INFO",
            Status::Skipped => "SKIPPED",
        }
    }
}

/// Where a reference comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReferenceSource {
    /// The deck.
    Deck,
    /// An earlier run.
    Baseline,
    /// It follows from what the program does: a count that must be 0, a planned number of bytes, an ideal.
    Theory,
    /// The median of this job's ranks, nodes or links.
    Peers,
}

impl ReferenceSource {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ReferenceSource::Deck => "deck",
            ReferenceSource::Baseline => "baseline",
            ReferenceSource::Theory => "theory",
            ReferenceSource::Peers => "peers",
        }
    }
}

/// One measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `section.what`, e.g. `collectives.all_gather.busbw`.
    pub name: String,
    /// None where it was not measured.
    pub value: Option<f64>,
    /// Its unit; empty for counts and shares.
    pub unit: String,
    /// What it is compared with.
    pub reference: Option<f64>,
    /// How far below the reference passes, as a fraction of it; none = any distance.
    pub low: Option<f64>,
    /// How far above passes, as a fraction of the reference; none = any distance.
    pub high: Option<f64>,
    /// Where the reference comes from.
    pub source: Option<ReferenceSource>,
    /// Whether it passes.
    pub status: Status,
    /// Why, naming ranks, hosts and links.
    pub reason: String,
    /// Whether it is about right results, not speed: where it fails, the whole acceptance is INVALID.
    pub correctness: bool,
}

impl Metric {
    /// A value that is not compared with anything.
    pub fn info(name: &str, value: f64, unit: &str) -> Self {
        Metric {
            name: name.into(),
            value: Some(value),
            unit: unit.into(),
            reference: None,
            low: None,
            high: None,
            source: None,
            status: Status::Info,
            reason: String::new(),
            correctness: false,
        }
    }

    /// A value that was not measured.
    pub fn skipped(name: &str, reason: impl Into<String>) -> Self {
        let none = Metric::info(name, 0.0, "");
        Metric { value: None, status: Status::Skipped, reason: reason.into(), ..none }
    }

    /// A value that must be exactly `wanted`: a count of wrong values that must be 0, bytes that must be the
    /// planned ones. `blame` is the reason where it is not.
    pub fn exactly(name: &str, value: f64, wanted: f64, unit: &str, blame: impl Into<String>) -> Self {
        let limit = Limit { reference: None, low: Some(0.0), high: Some(0.0) };
        let mut metric = Metric::info(name, value, unit).judged(&limit, None, Some(wanted));
        metric.correctness = true;
        if metric.status == Status::Fail {
            metric.reason = blame.into();
        }
        metric
    }

    /// The number of ranks or links that stand out from their peers, which must be 0; `outliers` names each.
    pub fn none_of(name: &str, outliers: &[String]) -> Self {
        Metric {
            reference: Some(0.0),
            high: Some(0.0),
            source: Some(ReferenceSource::Peers),
            status: if outliers.is_empty() { Status::Pass } else { Status::Fail },
            reason: outliers.join("; "),
            ..Metric::info(name, outliers.len() as f64, "")
        }
    }

    /// Source, reference and tolerances: `deck 40 -10%`.
    pub fn compared_with(&self) -> Option<String> {
        let reference = self.reference?;
        let percent =
            |sign: &str, x: Option<f64>| x.map_or(String::new(), |x| format!(" {sign}{}%", show(100.0 * x)));
        let source = self.source.map_or("", ReferenceSource::name);
        Some(format!("{source} {}{}{}", show(reference), percent("-", self.low), percent("+", self.high)))
    }

    /// Puts `words` before its reason.
    pub fn because(mut self, words: impl Into<String>) -> Self {
        let words = words.into();
        self.reason = match (words.is_empty(), self.reason.is_empty()) {
            (true, _) => self.reason,
            (_, true) => words,
            _ => format!("{words}; {}", self.reason),
        };
        self
    }

    /// Compares it with the deck's reference, else the baseline's, else theory's.
    pub fn judged(mut self, limit: &Limit, baseline: Option<f64>, theory: Option<f64>) -> Self {
        let Some(value) = self.value else { return self };
        (self.low, self.high) = (limit.low, limit.high);
        if limit.low.is_none() && limit.high.is_none() {
            return self;
        }
        let found = (limit.reference.map(|r| (r, ReferenceSource::Deck)))
            .or(baseline.map(|r| (r, ReferenceSource::Baseline)))
            .or(theory.map(|r| (r, ReferenceSource::Theory)));
        let Some((reference, source)) = found else {
            return self.because("no reference");
        };
        (self.reference, self.source) = (Some(reference), Some(source));
        let bound = |fraction: f64, sign: f64| reference + sign * fraction * reference.abs();
        let (lowest, highest) = (limit.low.map(|f| bound(f, -1.0)), limit.high.map(|f| bound(f, 1.0)));
        let verdict = match (lowest, highest) {
            _ if value.is_nan() => Err("is NaN".to_string()),
            (Some(lowest), _) if value < lowest => {
                Err(format!("below the lowest good value {}", show(lowest)))
            }
            (_, Some(highest)) if value > highest => {
                Err(format!("above the highest good value {}", show(highest)))
            }
            _ => Ok(()),
        };
        self.status = if verdict.is_ok() { Status::Pass } else { Status::Fail };
        self.because(verdict.err().unwrap_or_default())
    }
}

/// Four significant digits, or all digits of a whole number.
pub fn show(value: f64) -> String {
    match value {
        v if v == v.trunc() && v.abs() < 1e15 => format!("{v}"),
        v if v.is_finite() && (1e-3..1e6).contains(&v.abs()) => {
            let decimals = (3 - v.abs().log10().floor() as i32).max(0) as usize;
            format!("{v:.decimals$}")
        }
        v => format!("{v:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(value: f64, limit: &str, baseline: Option<f64>, theory: Option<f64>) -> Metric {
        Metric::info("a.b", value, "GB/s").judged(&limit.parse().unwrap(), baseline, theory)
    }

    #[test]
    fn values_just_inside_pass_and_just_outside_fail() {
        for (value, limit, status) in [
            (9.0, "10 -10%", Status::Pass),
            (8.999, "10 -10%", Status::Fail),
            (1e9, "10 -10%", Status::Pass),
            (12.0, "10 +20%", Status::Pass),
            (12.001, "10 +20%", Status::Fail),
            (10.0, "10 -0% +0%", Status::Pass),
            (f64::NAN, "10 -50%", Status::Fail),
            (-11.0, "-10 -10%", Status::Pass),
            (-11.1, "-10 -10%", Status::Fail),
            (5.0, "", Status::Info),
        ] {
            assert_eq!(judged(value, limit, None, None).status, status, "{value} against {limit}");
        }
    }

    #[test]
    fn the_deck_beats_the_baseline_which_beats_theory() {
        let source = |limit, baseline, theory| judged(10.0, limit, baseline, theory).source;
        assert_eq!(source("10 -1%", Some(20.0), Some(1.0)), Some(ReferenceSource::Deck));
        assert_eq!(source("-1%", Some(20.0), Some(1.0)), Some(ReferenceSource::Baseline));
        assert_eq!(source("-1%", None, Some(1.0)), Some(ReferenceSource::Theory));
        let none = judged(10.0, "-1%", None, None);
        assert_eq!((none.source, none.status), (None, Status::Info));
        assert!(none.reason.contains("no reference"), "{none:?}");
    }

    #[test]
    fn exact_figures_have_no_tolerance_and_say_what_is_wrong() {
        assert_eq!(Metric::exactly("a", 0.0, 0.0, "", "rank 1").status, Status::Pass);
        let wrong = Metric::exactly("a", 1.0, 0.0, "", "rank 1 on n2");
        assert!(wrong.status == Status::Fail && wrong.correctness, "{wrong:?}");
        assert_eq!(wrong.reason, "rank 1 on n2");
        assert_eq!(Metric::none_of("a", &[]).status, Status::Pass);
        assert_eq!(Metric::none_of("a", &["n1-n2".into()]).reason, "n1-n2");
    }

    #[test]
    fn numbers_are_shown_with_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (12.0, "12"),
            (12.345, "12.35"),
            (0.012345, "0.01235"),
            (1234.56, "1235"),
            (2.5e9 + 0.5, "2.500e9"),
        ] {
            assert_eq!(show(value), text);
        }
    }
}
