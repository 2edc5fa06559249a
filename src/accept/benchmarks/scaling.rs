//! Tokens per second on 1, 2, 4 ... N ranks of one job: the same work on more ranks (strong), and work that
//! grows with the ranks (weak).

use super::training::ReferenceRun;
use crate::accept::acceptance::Acceptance;
use crate::accept::facts::ScalingPoint;
use crate::accept::verdict::metric::Metric;
use crate::accept::verdict::metric_limits::{self, LimitedMetric};
use crate::backend::Backend;
use crate::error::Result;
use crate::harness::train_on_groups;
use std::path::Path;

/// 1, 2, 4 ... and n itself.
fn rank_counts(n: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|&k| k < n);
    powers.chain([n]).collect()
}

/// The section. Collective.
pub fn run<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    reference: &ReferenceRun,
) -> Result<(Vec<Metric>, Vec<ScalingPoint>)> {
    let cluster = &acceptance.cluster;
    let n = cluster.n();
    if n == 1 {
        return Ok((
            vec![Metric::skipped("scaling", "one rank: there is nothing to scale over")],
            Vec::new(),
        ));
    }
    let t = &acceptance.deck.training;
    // Micro-batches of a rank in every weak run: as many as in the reference run, one at least.
    let each = (t.global_batch_size / t.micro_batch_size / n).max(1);
    let mut points: Vec<ScalingPoint> = Vec::new();
    for mode in ["strong", "weak"] {
        let mut first = 0.0;
        for k in rank_counts(n) {
            let dir = work.join(format!("{mode}_{k}")).display().to_string();
            let group: Vec<usize> = (0..k).collect();
            let trained = train_on_groups(cluster, &[group], |_| {
                let mut deck =
                    acceptance.deck.reference(&reference.tokens, &dir, acceptance.deck.scaling.steps)?;
                if mode == "weak" {
                    deck.train.global_batch_size = t.micro_batch_size * each * k;
                }
                Ok(deck)
            })?;
            let tokens_per_s = trained[0].tokens_per_s();
            if k == 1 {
                first = tokens_per_s;
            }
            points.push(ScalingPoint {
                mode,
                n_ranks: k,
                tokens_per_s,
                efficiency: tokens_per_s / (first * k as f64),
            });
        }
    }
    let metric = |mode: &str, limited: LimitedMetric| {
        let of_mode = || points.iter().filter(|p| p.mode == mode);
        let last = of_mode().next_back().expect("a run on all ranks");
        let all: Vec<String> =
            of_mode().map(|p| format!("{:.0} tokens/s on {}", p.tokens_per_s, p.n_ranks)).collect();
        acceptance.judged(limited, last.efficiency, "", Some(1.0)).because(all.join(", "))
    };
    let metrics = vec![
        metric("strong", metric_limits::STRONG_EFFICIENCY),
        metric("weak", metric_limits::WEAK_EFFICIENCY),
    ];
    Ok((metrics, points))
}

#[cfg(test)]
mod tests {
    #[test]
    fn rank_counts_double_and_end_with_all() {
        assert_eq!(super::rank_counts(1), [1]);
        assert_eq!(super::rank_counts(6), [1, 2, 4, 6]);
        assert_eq!(super::rank_counts(8), [1, 2, 4, 8]);
    }
}
