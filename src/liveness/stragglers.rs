//! Which rank delays the others: compute and waiting time of every rank, in single steps or repeatedly.
//!
//! Ranks wait for the slowest one, so step times are equal and compute times are significant. Must not know:
//! MPI, files.

use crate::quantile::median;
use crate::telemetry::step_row::RankStep;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Steps that are judged together; at most one line is logged per window.
pub const WINDOW: usize = 50;
/// A rank that computes longer than the median rank by this factor is slow in this step.
const SLOW: f64 = 1.3;
/// A single step is reported if its slowest rank takes longer than the median rank by this factor ...
const ONE_OFF: f64 = 3.0;
/// ... and by this much.
const ONE_OFF_MS: f64 = 200.0;
/// Fraction of a window's steps that makes a rank a chronic straggler.
const CHRONIC: f64 = 0.6;

/// Time a rank computed in a step, and time it waited for others.
fn compute_and_wait_ms(rank: &RankStep) -> (f64, f64) {
    (rank.step_ms - rank.exposed_comm_ms, rank.exposed_comm_ms)
}

/// Micro-batches of a step per rank: micro-batch j is computed by rank j mod N.
fn micro_batches_of(n_ranks: usize, n_micro_batches: usize) -> Vec<usize> {
    (0..n_ranks).map(|rank| (rank..n_micro_batches).step_by(n_ranks).count()).collect()
}

/// Where the time of one step went, in ms; the three add up to the step of rank 0, whose clock counts: time
/// that ranks spend apart from each other (a save, an evaluation) is thus in one class only.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepShares {
    /// Mean compute over ranks.
    pub useful_ms: f64,
    /// Compute of the slowest rank beyond the mean.
    pub straggler_ms: f64,
    /// Waiting time even of the slowest rank.
    pub exposed_ms: f64,
}

impl StepShares {
    /// From the numbers of every rank.
    pub fn of(ranks: &[RankStep]) -> Self {
        let step_ms = ranks[0].step_ms;
        let compute = ranks.iter().map(|r| compute_and_wait_ms(r).0);
        let useful_ms = (compute.clone().sum::<f64>() / ranks.len() as f64).min(step_ms);
        let slowest_ms = compute.fold(0.0, f64::max).min(step_ms);
        StepShares { useful_ms, straggler_ms: slowest_ms - useful_ms, exposed_ms: step_ms - slowest_ms }
    }
}

/// The kind of a straggler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The slowest in most steps of a window.
    Chronic,
    /// In one step only.
    OneOff,
}

/// A rank that delayed the others, over a window of steps or in a single one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// How often it happens.
    pub class: Class,
    /// The single step; for a window its last one.
    pub step: u64,
    /// The rank.
    pub rank: usize,
    /// Its node.
    pub host: String,
    /// Number of steps in which it was the slowest and slow ...
    pub n_slow: usize,
    /// ... out of this number.
    pub n_steps: usize,
    /// Its compute per step, in ms: the mean of the window, or that of the single step.
    pub compute_ms: f64,
    /// Its waiting time.
    pub wait_ms: f64,
    /// Median compute of the other ranks for the same number of micro-batches.
    pub others_compute_ms: f64,
    /// Median waiting time of the other ranks.
    pub others_wait_ms: f64,
}

impl Straggler {
    /// Ratio of its compute to that of the others.
    fn factor(&self) -> f64 {
        self.compute_ms / self.others_compute_ms.max(1e-3)
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Straggler { step, rank, host, n_slow, n_steps, compute_ms, wait_ms, .. } = self;
        let (others_ms, others_wait_ms) = (self.others_compute_ms, self.others_wait_ms);
        match self.class {
            Class::Chronic => write!(
                f,
                "straggler, chronic: rank {rank} on {host} was the slowest in {n_slow} of the last {n_steps} \
                 steps; it computes {compute_ms:.1} ms per step and waits {wait_ms:.1} ms, the median rank \
                 computes {others_ms:.1} ms and waits {others_wait_ms:.1} ms"
            ),
            Class::OneOff => write!(
                f,
                "straggler, one-off: in step {step} rank {rank} on {host} computed {compute_ms:.0} ms, the \
                 median rank {others_ms:.0} ms"
            ),
        }
    }
}

/// Judges one step after another.
#[derive(Debug, Default)]
pub struct Stragglers {
    /// Node of each rank.
    hosts: Vec<String>,
    /// Micro-batches of each rank in a step; ranks without any are not judged.
    n_micro_batches: Vec<usize>,
    n_steps: usize,
    /// Per rank: number of steps in which it was the slowest and slow, and its compute and waiting time in
    /// this window.
    slow: Vec<(usize, f64, f64)>,
    /// The worst single step of this window.
    worst: Option<Straggler>,
}

impl Stragglers {
    /// `hosts[r]` is the node of rank r; the ranks share `n_micro_batches` in each step.
    pub fn new(hosts: Vec<String>, n_micro_batches: usize) -> Self {
        let slow = vec![(0, 0.0, 0.0); hosts.len()];
        let n_micro_batches = micro_batches_of(hosts.len(), n_micro_batches);
        Stragglers { hosts, n_micro_batches, slow, ..Stragglers::default() }
    }

    /// The ranks with compute work.
    fn judged(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.n_micro_batches.len()).filter(|&r| self.n_micro_batches[r] > 0)
    }

    /// Median time of the other ranks for the same number of micro-batches as `rank`; `rank` itself would be
    /// the median of two.
    fn median_of_others(&self, rank: usize, compute: impl Fn(usize) -> f64) -> f64 {
        let pace = |r: usize| compute(r) / self.n_micro_batches[r] as f64;
        median(&self.judged().filter(|&r| r != rank).map(pace).collect::<Vec<_>>())
            * self.n_micro_batches[rank] as f64
    }

    /// Median waiting time of the other ranks.
    fn median_wait_of_others(&self, rank: usize, wait: impl Fn(usize) -> f64) -> f64 {
        median(&self.judged().filter(|&r| r != rank).map(wait).collect::<Vec<_>>())
    }

    /// A step is done; returns the straggler of the window that ends with it, if any.
    pub fn step(&mut self, step: u64, ranks: &[RankStep]) -> Option<Straggler> {
        if self.judged().count() < 2 || ranks.len() != self.slow.len() {
            return None;
        }
        let compute = |r: usize| compute_and_wait_ms(&ranks[r]).0;
        let pace = |r: usize| compute(r) / self.n_micro_batches[r] as f64;
        let slowest = self.judged().max_by(|&a, &b| pace(a).total_cmp(&pace(b))).expect("two ranks");
        let this_step = Straggler {
            class: Class::OneOff,
            step,
            rank: slowest,
            host: self.hosts[slowest].clone(),
            n_slow: 1,
            n_steps: 1,
            compute_ms: compute(slowest),
            wait_ms: ranks[slowest].exposed_comm_ms,
            others_compute_ms: self.median_of_others(slowest, compute),
            others_wait_ms: self.median_wait_of_others(slowest, |r| ranks[r].exposed_comm_ms),
        };
        for (rank, sums) in ranks.iter().zip(&mut self.slow) {
            let (compute_ms, wait_ms) = compute_and_wait_ms(rank);
            (sums.1, sums.2) = (sums.1 + compute_ms, sums.2 + wait_ms);
        }
        let factor = this_step.factor();
        if factor > SLOW {
            self.slow[slowest].0 += 1;
        }
        if factor > ONE_OFF
            && this_step.compute_ms - this_step.others_compute_ms > ONE_OFF_MS
            && self.worst.as_ref().is_none_or(|worst| worst.factor() < factor)
        {
            self.worst = Some(this_step);
        }
        self.n_steps += 1;
        if self.n_steps < WINDOW {
            return None;
        }
        let n = self.n_steps as f64;
        let chronic = (0..self.slow.len()).find(|&r| self.slow[r].0 as f64 >= CHRONIC * n);
        let chronic = chronic.map(|rank| Straggler {
            class: Class::Chronic,
            step,
            rank,
            host: self.hosts[rank].clone(),
            n_slow: self.slow[rank].0,
            n_steps: self.n_steps,
            compute_ms: self.slow[rank].1 / n,
            wait_ms: self.slow[rank].2 / n,
            others_compute_ms: self.median_of_others(rank, |r| self.slow[r].1 / n),
            others_wait_ms: self.median_wait_of_others(rank, |r| self.slow[r].2 / n),
        });
        let worst = self.worst.take();
        self.n_steps = 0;
        self.slow.fill((0, 0.0, 0.0));
        chronic.or(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(compute_ms: f64, wait_ms: f64) -> RankStep {
        RankStep { step_ms: compute_ms + wait_ms, exposed_comm_ms: wait_ms, ..RankStep::default() }
    }

    fn said(straggler: Option<Straggler>) -> Option<String> {
        straggler.map(|s| s.to_string())
    }

    fn lines(step: impl Fn(u64) -> Vec<RankStep>) -> Vec<String> {
        let mut stragglers = Stragglers::new(["n1", "n1", "n2"].map(String::from).into(), 3);
        (1..=2 * WINDOW as u64).filter_map(|s| said(stragglers.step(s, &step(s)))).collect()
    }

    #[test]
    fn a_rank_slow_for_good_is_named_once_a_window_with_its_node() {
        let lines = lines(|_| vec![rank(50.0, 30.0), rank(50.0, 30.0), rank(80.0, 0.0)]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        for part in ["chronic: rank 2 on n2", "50 of the last 50", "computes 80.0 ms", "waits 30.0 ms"] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
    }

    #[test]
    fn one_long_step_is_one_line_and_even_ranks_are_none() {
        let slow = |s| if s == 7 { rank(900.0, 0.0) } else { rank(50.0, 1.0) };
        let found = lines(|s| vec![rank(50.0, 1.0), slow(s), rank(52.0, 0.0)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("one-off: in step 7 rank 1 on n1 computed 900 ms"), "{found:?}");
        assert!(lines(|_| vec![rank(50.0, 1.0); 3]).is_empty());
    }

    #[test]
    fn of_two_ranks_the_slower_one_is_held_against_the_other() {
        let lines = |step: &dyn Fn(u64) -> f64| -> Vec<String> {
            let mut stragglers = Stragglers::new(["n1", "n2"].map(String::from).into(), 8);
            let ranks = |s| vec![rank(50.0, 1.0), rank(step(s), 1.0)];
            (1..=WINDOW as u64).filter_map(|s| said(stragglers.step(s, &ranks(s)))).collect()
        };
        let chronic = lines(&|_| 70.0);
        assert!(chronic[0].contains("chronic: rank 1 on n2"), "{chronic:?}");
        assert!(chronic[0].ends_with("the median rank computes 50.0 ms and waits 1.0 ms"), "{chronic:?}");
        let once = lines(&|s| if s == 7 { 900.0 } else { 50.0 });
        assert!(
            once[0].contains("one-off: in step 7 rank 1 on n2 computed 900 ms, the median rank 50 ms"),
            "{once:?}"
        );
        assert!(lines(&|_| 60.0).is_empty(), "by a fifth is not slow");
    }

    #[test]
    fn a_rank_with_more_micro_batches_is_not_slow_for_that() {
        assert_eq!(micro_batches_of(3, 7), [3, 2, 2]);
        assert_eq!(micro_batches_of(4, 3), [1, 1, 1, 0]);
        let lines = |n_micro_batches: usize, ranks: [f64; 3]| -> Vec<String> {
            let mut stragglers =
                Stragglers::new(["n1", "n1", "n2"].map(String::from).into(), n_micro_batches);
            (1..=WINDOW as u64)
                .filter_map(|s| said(stragglers.step(s, &ranks.map(|ms| rank(ms, 1.0)))))
                .collect()
        };
        assert!(lines(4, [100.0, 50.0, 50.0]).is_empty(), "two micro-batches take twice as long as one");
        assert!(lines(2, [50.0, 50.0, 1.0]).is_empty(), "a rank without any is no measure");
        assert!(lines(1, [50.0, 1.0, 1.0]).is_empty());
        let slow = lines(4, [100.0, 80.0, 50.0]);
        assert!(slow[0].contains("chronic: rank 1 on n1"), "{slow:?}");
    }

    #[test]
    fn the_shares_of_a_step_add_up_to_it() {
        let shares = StepShares::of(&[rank(40.0, 62.0), rank(100.0, 1.0)]);
        assert_eq!(shares, StepShares { useful_ms: 70.0, straggler_ms: 30.0, exposed_ms: 2.0 });
        // Rank 1 waited while rank 0 was at something that is no part of its step.
        let shares = StepShares::of(&[rank(30.0, 5.0), rank(40.0, 62.0)]);
        assert_eq!(shares, StepShares { useful_ms: 35.0, straggler_ms: 0.0, exposed_ms: 0.0 });
    }
}
