//! What every benchmark works with: the cluster, the deck, the baseline.
//!
//! Must not know: which benchmarks there are.

use super::verdict::baseline::Baseline;
use super::verdict::metric::{Metric, ReferenceSource};
use super::verdict::metric_limits::LimitedMetric;
use crate::backend::Backend;
use crate::config;
use crate::config::acceptance::Deck;
use crate::error::Result;
use crate::harness::Cluster;
use crate::model::Model;
use crate::params::ModelSpec;

/// The acceptance of a cluster.
pub struct Acceptance<'a, B: Backend> {
    /// The job that is judged.
    pub cluster: Cluster<'a, B>,
    /// What to measure, with a reference model of known size.
    pub deck: &'a Deck,
    /// An earlier run.
    pub baseline: &'a Baseline,
}

impl<B: Backend> Acceptance<'_, B> {
    /// A value compared with its limit in the deck; `theory` is the ideal, where there is one.
    pub fn judged(&self, limited: LimitedMetric, value: f64, unit: &str, theory: Option<f64>) -> Metric {
        let limit = limited.limit(self.deck);
        let metric = Metric::info(limited.name, value, unit);
        let judged = metric.judged(&limit, self.baseline.value(limited.name), theory);
        match judged.source {
            Some(ReferenceSource::Baseline) if self.baseline.has_other_rank_count(self.cluster.n()) => {
                judged.because(format!("the baseline was measured on {} ranks", self.baseline.n_ranks))
            }
            _ => judged,
        }
    }

    /// The training deck of the reference run, for what needs its sizes alone: its paths do not exist.
    pub fn reference_deck(&self) -> Result<config::Deck> {
        self.deck.reference("tokens.u16", "reference", self.deck.training.steps)
    }

    /// The parameters and units of the reference model.
    pub fn reference_spec(&self) -> Result<ModelSpec> {
        Ok(Model::of_deck::<B::Device>(&self.reference_deck()?).spec)
    }
}
