//! Who holds the others up: compute and waiting time of every rank, once in a while or again and again.
//!
//! Ranks wait for the slowest one, so step times are equal and compute times tell. Must not know: MPI, files.

use super::quantile::median;
use super::step_log::RankStep;

/// Steps that are judged together; at most one line is said for each such window.
pub const WINDOW: usize = 50;
/// A rank that computes longer than the median rank by this factor is slow in this step.
const SLOW: f64 = 1.3;
/// One step stands out when its slowest rank takes longer than the median rank by this factor ...
const ONE_OFF: f64 = 3.0;
/// ... and by this much.
const ONE_OFF_MS: f64 = 200.0;
/// Share of a window's steps that makes a rank slow for good.
const CHRONIC: f64 = 0.6;

/// Time a rank worked in a step, and time it waited for others.
fn compute_and_wait_ms(rank: &RankStep) -> (f64, f64) {
    (rank.step_ms - rank.exposed_comm_ms, rank.exposed_comm_ms)
}

/// Where the time of one step went, in ms; the three add up to the step of rank 0, whose clock counts: what ranks spent apart
/// from each other (a save, an evaluation) is then in no two classes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepShares {
    /// Compute of the mean rank.
    pub useful_ms: f64,
    /// What the slowest rank computed longer than the mean.
    pub straggler_ms: f64,
    /// What even the slowest rank waited.
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

/// Judges step after step.
#[derive(Debug, Default)]
pub struct Stragglers {
    /// Node of each rank.
    hosts: Vec<String>,
    n_steps: usize,
    /// Per rank: steps in which it was the slowest and slow, and its sums of compute and wait in this window.
    slow: Vec<(usize, f64, f64)>,
    /// The worst single step of this window: factor, line.
    worst: Option<(f64, String)>,
}

impl Stragglers {
    /// `hosts[r]` is the node of rank r.
    pub fn new(hosts: Vec<String>) -> Self {
        let slow = vec![(0, 0.0, 0.0); hosts.len()];
        Stragglers { hosts, slow, ..Stragglers::default() }
    }

    /// A step is done; a line about it or the window that ends with it.
    pub fn step(&mut self, step: u64, ranks: &[RankStep]) -> Option<String> {
        if ranks.len() < 2 || ranks.len() != self.slow.len() {
            return None;
        }
        let compute = |r: usize| compute_and_wait_ms(&ranks[r]).0;
        let middle = median(&(0..ranks.len()).map(compute).collect::<Vec<_>>());
        let slowest = (0..ranks.len()).max_by(|&a, &b| compute(a).total_cmp(&compute(b))).expect("two ranks");
        for (rank, sums) in ranks.iter().zip(&mut self.slow) {
            let (compute_ms, wait_ms) = compute_and_wait_ms(rank);
            (sums.1, sums.2) = (sums.1 + compute_ms, sums.2 + wait_ms);
        }
        let factor = compute(slowest) / middle.max(1e-3);
        if factor > SLOW {
            self.slow[slowest].0 += 1;
        }
        if factor > ONE_OFF
            && compute(slowest) - middle > ONE_OFF_MS
            && self.worst.as_ref().is_none_or(|w| w.0 < factor)
        {
            let line = format!(
                "straggler, one-off: in step {step} rank {slowest} on {} computed {:.0} ms, the median rank {middle:.0} ms",
                self.hosts[slowest],
                compute(slowest)
            );
            self.worst = Some((factor, line));
        }
        self.n_steps += 1;
        if self.n_steps < WINDOW {
            return None;
        }
        let n = self.n_steps as f64;
        let chronic = (0..self.slow.len()).find(|&r| self.slow[r].0 as f64 >= CHRONIC * n);
        let line = chronic.map(|rank| {
            let others = median(&self.slow.iter().map(|s| s.1 / n).collect::<Vec<_>>());
            let waits = median(&self.slow.iter().map(|s| s.2 / n).collect::<Vec<_>>());
            format!(
                "straggler, chronic: rank {rank} on {} was the slowest in {} of the last {} steps; it computes {:.1} ms a step and \
                 waits {:.1} ms, the median rank computes {others:.1} ms and waits {waits:.1} ms",
                self.hosts[rank], self.slow[rank].0, self.n_steps, self.slow[rank].1 / n, self.slow[rank].2 / n
            )
        });
        let line = line.or_else(|| self.worst.take().map(|w| w.1));
        *self = Stragglers::new(std::mem::take(&mut self.hosts));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(compute_ms: f64, wait_ms: f64) -> RankStep {
        RankStep { step_ms: compute_ms + wait_ms, exposed_comm_ms: wait_ms, ..RankStep::default() }
    }

    fn lines(step: impl Fn(u64) -> Vec<RankStep>) -> Vec<String> {
        let mut stragglers = Stragglers::new(["n1", "n1", "n2"].map(String::from).into());
        (1..=2 * WINDOW as u64).filter_map(|s| stragglers.step(s, &step(s))).collect()
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
    fn the_shares_of_a_step_add_up_to_it() {
        let shares = StepShares::of(&[rank(40.0, 62.0), rank(100.0, 1.0)]);
        assert_eq!(shares, StepShares { useful_ms: 70.0, straggler_ms: 30.0, exposed_ms: 2.0 });
        // Rank 1 waited while rank 0 was at something that is no part of its step.
        let shares = StepShares::of(&[rank(30.0, 5.0), rank(40.0, 62.0)]);
        assert_eq!(shares, StepShares { useful_ms: 35.0, straggler_ms: 0.0, exposed_ms: 0.0 });
    }
}
