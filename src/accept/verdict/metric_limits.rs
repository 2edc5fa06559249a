//! Which metric each limit of the deck applies to, as a table. Pure.

use super::metric::{Metric, ReferenceSource, Status};
use crate::config::acceptance::{Deck, LimitsSection, Section};
use crate::config::{Limit, Written};

/// A metric that the deck can limit.
#[derive(Debug, Clone, Copy)]
pub struct LimitedMetric {
    /// The section that measures it.
    pub section: Section,
    /// Its name, beginning with that of the section.
    pub name: &'static str,
    /// Its key in `[limits]`.
    pub key: &'static str,
    limit: fn(&LimitsSection) -> &Written<Limit>,
}

macro_rules! limited_metrics {
    ($($constant:ident: $section:ident, $name:literal, limits.$key:ident;)+) => {
        $(
            #[doc = concat!("`", $name, "`, limited by `limits.", stringify!($key), "`.")]
            pub const $constant: LimitedMetric = LimitedMetric {
                section: Section::$section,
                name: $name,
                key: stringify!($key),
                limit: |limits| &limits.$key,
            };
        )+
        /// All of the table.
        pub const ALL: &[LimitedMetric] = &[$($constant),+];
    };
}

limited_metrics! {
    GEMM_F32: Device, "device.gemm_f32.slowest", limits.gemm_f32_gflops;
    GEMM_BF16: Device, "device.gemm_bf16.slowest", limits.gemm_bf16_gflops;
    MEMORY: Device, "device.memory.slowest", limits.memory_gb_per_s;
    ALL_GATHER: Collectives, "collectives.all_gather.busbw", limits.all_gather_busbw;
    REDUCE_SCATTER: Collectives, "collectives.reduce_scatter.busbw", limits.reduce_scatter_busbw;
    LIBRARY_REDUCE_SCATTER: Collectives, "collectives.library_reduce_scatter.busbw",
        limits.library_reduce_scatter_busbw;
    ALL_REDUCE: Collectives, "collectives.all_reduce.busbw", limits.all_reduce_busbw;
    BROADCAST: Collectives, "collectives.broadcast.busbw", limits.broadcast_busbw;
    POINT_TO_POINT: Collectives, "collectives.point_to_point.busbw", limits.point_to_point_busbw;
    LATENCY: Collectives, "collectives.latency_us", limits.latency_us;
    OVERLAP: Collectives, "collectives.overlap", limits.overlap;
    WRITE: Storage, "storage.write", limits.write_gb_per_s;
    READ: Storage, "storage.read", limits.read_gb_per_s;
    METADATA: Storage, "storage.metadata", limits.metadata_per_s;
    TOKENS_PER_S: Training, "training.tokens_per_s", limits.tokens_per_s;
    MFU: Training, "training.mfu", limits.mfu;
    STEP_P99: Training, "training.step_p99", limits.step_p99_ms;
    EXPOSED_COMM: Training, "training.exposed_comm", limits.exposed_comm;
    LOSSES: Training, "training.losses", limits.loss;
    STRONG_EFFICIENCY: Scaling, "scaling.strong_efficiency", limits.strong_efficiency;
    WEAK_EFFICIENCY: Scaling, "scaling.weak_efficiency", limits.weak_efficiency;
    GOODPUT: Elasticity, "elasticity.goodput", limits.goodput;
}

impl LimitedMetric {
    /// Its limit in the deck.
    pub fn limit(&self, deck: &Deck) -> Limit {
        **(self.limit)(&deck.limits)
    }
}

/// What `section` has measured, with a failure for each metric that the deck has a reference for and that was
/// not measured.
pub fn fail_missing(deck: &Deck, section: Section, mut metrics: Vec<Metric>) -> Vec<Metric> {
    for limited in ALL.iter().filter(|limited| limited.section == section) {
        let limit = limited.limit(deck);
        let own = metrics.iter().position(|m| m.name == limited.name);
        let is_measured = own.is_some_and(|i| metrics[i].status != Status::Skipped);
        if limit.reference.is_none() || is_measured {
            continue;
        }
        // A section that could measure nothing has one metric that says why, named like the section.
        let why = own.or_else(|| metrics.iter().position(|m| m.name == section.name()));
        let why = why.map(|i| metrics[i].reason.clone()).unwrap_or_default();
        let unmeasured = format!("limits.{} has a reference, and the metric was not measured", limited.key);
        let missing = Metric {
            reference: limit.reference,
            low: limit.low,
            high: limit.high,
            source: Some(ReferenceSource::Deck),
            status: Status::Fail,
            ..Metric::skipped(limited.name, unmeasured)
        };
        let missing = missing.because(why);
        match own {
            Some(i) => metrics[i] = missing,
            None => metrics.push(missing),
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deck(text: &str) -> Deck {
        Deck::parse(&format!("run.dir = \"r\"\n{text}"), &[], "test.toml").unwrap()
    }

    #[test]
    fn every_limit_of_the_deck_applies_to_one_metric() {
        let limits = toml::Table::try_from(&deck("").limits).unwrap();
        let mut limited: Vec<&str> = ALL.iter().map(|metric| metric.key).collect();
        limited.sort_unstable();
        let mut keys: Vec<&str> = limits.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(limited, keys);
        assert!(ALL.iter().all(|metric| metric.name.split('.').next() == Some(metric.section.name())));
    }

    #[test]
    fn a_reference_without_a_figure_fails_and_says_why_there_is_none() {
        let deck = deck("limits.weak_efficiency = \"0.9 -10%\"\nlimits.overlap = \"0.5 -10%\"");
        let found = fail_missing(&deck, Section::Scaling, vec![Metric::skipped("scaling", "one rank")]);
        let missing = found.iter().find(|m| m.name == "scaling.weak_efficiency").unwrap();
        assert_eq!((missing.status, missing.reference, missing.value), (Status::Fail, Some(0.9), None));
        assert!(
            missing.reason.starts_with("one rank; limits.weak_efficiency has a reference"),
            "{missing:?}"
        );
        assert_eq!(found.len(), 2, "no other figure has a reference: {found:?}");
        let measured = vec![Metric::info("collectives.overlap", 0.5, "")];
        assert_eq!(fail_missing(&deck, Section::Collectives, measured.clone()), measured);
    }
}
