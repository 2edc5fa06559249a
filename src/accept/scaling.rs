//! Tokens per second over 1, 2, 4 ... N ranks of the one job: the same work on more ranks (strong), and more work on more ranks
//! (weak).

use super::groups::train_on_groups;
use super::lab::Lab;
use super::metric::Metric;
use super::training::Reference;
use crate::backend::Backend;
use crate::error::Result;
use serde::Serialize;
use std::path::Path;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// `strong` or `weak`.
    pub mode: &'static str,
    /// Ranks.
    pub n_ranks: usize,
    /// At the median step.
    pub tokens_per_s: f64,
    /// Tokens per second over ideal: those of one rank, times the ranks.
    pub efficiency: f64,
}

/// 1, 2, 4 ... and n itself.
fn rank_counts(n: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |k| Some(k * 2)).take_while(|&k| k < n);
    powers.chain([n]).collect()
}

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, work: &Path, reference: &Reference) -> Result<(Vec<Metric>, Vec<Point>)> {
    let n = lab.n();
    if n == 1 {
        return Ok((vec![Metric::skipped("scaling", "one rank has nothing to scale over")], Vec::new()));
    }
    let t = &lab.deck.training;
    // What each rank has of the reference run, a micro-batch at least, is what it has in every weak run.
    let each = (t.global_batch_size / t.micro_batch_size / n).max(1);
    let mut points: Vec<Point> = Vec::new();
    for mode in ["strong", "weak"] {
        let mut first = 0.0;
        for k in rank_counts(n) {
            let dir = work.join(format!("{mode}_{k}")).display().to_string();
            let group: Vec<usize> = (0..k).collect();
            let trained = train_on_groups(lab, &[group], |_| {
                let mut deck = lab.deck.reference(&reference.tokens, &dir, lab.deck.scaling.steps)?;
                if mode == "weak" {
                    deck.train.global_batch_size = t.micro_batch_size * each * k;
                }
                Ok(deck)
            })?;
            let tokens_per_s = trained[0].tokens_per_s();
            if k == 1 {
                first = tokens_per_s;
            }
            points.push(Point { mode, n_ranks: k, tokens_per_s, efficiency: tokens_per_s / (first * k as f64) });
        }
    }
    let metric = |mode: &str| {
        let of_mode = || points.iter().filter(|p| p.mode == mode);
        let last = of_mode().next_back().expect("n ranks ran");
        let all: Vec<String> = of_mode().map(|p| format!("{:.0} tokens/s on {}", p.tokens_per_s, p.n_ranks)).collect();
        let name = format!("scaling.{mode}_efficiency");
        lab.judged(&name, last.efficiency, "", Some(1.0)).because(all.join(", "))
    };
    Ok((vec![metric("strong"), metric("weak")], points))
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
