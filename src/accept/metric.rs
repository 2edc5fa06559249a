//! One figure, what it was held against, and what came of it. Pure.

use crate::config::Limit;
use serde::{Deserialize, Serialize};

/// What came of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Within its tolerances.
    Pass,
    /// Outside of them.
    Fail,
    /// Held against nothing.
    Info,
    /// Not measured; the reason says why.
    Skipped,
}

impl Status {
    /// As reports have it.
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
pub enum Source {
    /// The deck says it.
    Deck,
    /// An earlier run measured it.
    Baseline,
    /// It follows from what the program does: a count that must be 0, a planned number of bytes, an ideal.
    Theory,
    /// The ranks of this job, of which this one is held against the median.
    Peers,
}

impl Source {
    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Source::Deck => "deck",
            Source::Baseline => "baseline",
            Source::Theory => "theory",
            Source::Peers => "peers",
        }
    }
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `section.what`, e.g. `collectives.all_gather.busbw`.
    pub name: String,
    /// The figure; none where it was not measured.
    pub value: Option<f64>,
    /// Its unit; empty for counts and shares.
    pub unit: String,
    /// What it was held against.
    pub reference: Option<f64>,
    /// How far below is still good, as a fraction of the reference; none = any distance.
    pub low: Option<f64>,
    /// How far above is still good, likewise.
    pub high: Option<f64>,
    /// Where the reference comes from.
    pub source: Option<Source>,
    /// What came of it.
    pub status: Status,
    /// Why, in words; names ranks, hosts and links.
    pub reason: String,
    /// It says whether results are right, not whether they are fast: where it fails, the whole acceptance is INVALID.
    pub correctness: bool,
}

impl Metric {
    /// A figure held against nothing.
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

    /// A figure that was not measured.
    pub fn skipped(name: &str, reason: impl Into<String>) -> Self {
        let none = Metric::info(name, 0.0, "");
        Metric { value: None, status: Status::Skipped, reason: reason.into(), ..none }
    }

    /// A figure that must be exactly this: a count of wrong values that must be 0, bytes that must be the planned ones. `blame`
    /// says what is wrong, where something is.
    pub fn exactly(name: &str, value: f64, wanted: f64, unit: &str, blame: impl Into<String>) -> Self {
        let limit = Limit { reference: None, low: Some(0.0), high: Some(0.0) };
        let mut metric = Metric::info(name, value, unit).judged(&limit, None, Some(wanted));
        metric.correctness = true;
        if metric.status == Status::Fail {
            metric.reason = blame.into();
        }
        metric
    }

    /// Ranks or links that stand out against their peers, of which there must be none; each is named in `outliers`.
    pub fn none_of(name: &str, outliers: &[String]) -> Self {
        Metric {
            reference: Some(0.0),
            high: Some(0.0),
            source: Some(Source::Peers),
            status: if outliers.is_empty() { Status::Pass } else { Status::Fail },
            reason: outliers.join("; "),
            ..Metric::info(name, outliers.len() as f64, "")
        }
    }

    /// What it was held against, in words: `deck 40 -10%`.
    pub fn held_against(&self) -> Option<String> {
        let reference = self.reference?;
        let percent = |sign: &str, x: Option<f64>| x.map_or(String::new(), |x| format!(" {sign}{}%", show(100.0 * x)));
        let source = self.source.map_or("", Source::name);
        Some(format!("{source} {}{}{}", show(reference), percent("-", self.low), percent("+", self.high)))
    }

    /// With words about how it came to be, before those of its verdict.
    pub fn because(mut self, words: impl Into<String>) -> Self {
        let words = words.into();
        self.reason = match (words.is_empty(), self.reason.is_empty()) {
            (true, _) => self.reason,
            (_, true) => words,
            _ => format!("{words}; {}", self.reason),
        };
        self
    }

    /// Held against the deck's reference, else the baseline's, else theory's.
    pub fn judged(mut self, limit: &Limit, baseline: Option<f64>, theory: Option<f64>) -> Self {
        let Some(value) = self.value else { return self };
        (self.low, self.high) = (limit.low, limit.high);
        if limit.low.is_none() && limit.high.is_none() {
            return self;
        }
        let found = (limit.reference.map(|r| (r, Source::Deck)))
            .or(baseline.map(|r| (r, Source::Baseline)))
            .or(theory.map(|r| (r, Source::Theory)));
        let Some((reference, source)) = found else {
            return self.because("no reference");
        };
        (self.reference, self.source) = (Some(reference), Some(source));
        let bound = |fraction: f64, sign: f64| reference + sign * fraction * reference.abs();
        let (lowest, highest) = (limit.low.map(|f| bound(f, -1.0)), limit.high.map(|f| bound(f, 1.0)));
        let verdict = match (lowest, highest) {
            // A figure that is no number is never good.
            _ if value.is_nan() => Err("it is no number".to_string()),
            (Some(lowest), _) if value < lowest => Err(format!("below the lowest good value {}", show(lowest))),
            (_, Some(highest)) if value > highest => Err(format!("above the highest good value {}", show(highest))),
            _ => Ok(()),
        };
        self.status = if verdict.is_ok() { Status::Pass } else { Status::Fail };
        self.because(verdict.err().unwrap_or_default())
    }
}

/// A number with four significant digits, or all of a whole number.
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
        assert_eq!(source("10 -1%", Some(20.0), Some(1.0)), Some(Source::Deck));
        assert_eq!(source("-1%", Some(20.0), Some(1.0)), Some(Source::Baseline));
        assert_eq!(source("-1%", None, Some(1.0)), Some(Source::Theory));
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
