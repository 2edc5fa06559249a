//! Bytes a rank receives in one training step, from the plan alone (rule 6), and the plan's savings, by
//! parameter.

use super::Plan;
use super::micro_batches::MicroBatches;
use super::ordered_exchange;
use super::placement::{Hold, Placement, State};
use super::schedule::{Gather, Schedule};
use crate::dtype::DType;
use crate::params::{ModelSpec, UnitRole};
use serde::Serialize;

/// Payload bytes a rank receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// Received by all-gathers.
    pub all_gather_bytes: u64,
    /// Received by gradient reductions.
    pub reduce_scatter_bytes: u64,
}

impl Volume {
    /// Both together.
    pub fn total(&self) -> u64 {
        self.all_gather_bytes + self.reduce_scatter_bytes
    }
}

/// Upper limit of the bytes a rank receives in a step without persistent parameters (rule 6): everything
/// gathered and reduced this many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// All-gathers of all padded parameters (in stage 0: of their gradients).
    pub all_gathers: usize,
    /// Reductions of all padded gradients.
    pub reductions: usize,
    /// Bytes of a rank, (N-1)/N of all that.
    pub bytes: u64,
}

/// One parameter that a micro-step gathers fewer than two times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// Parameter.
    pub param: String,
    /// Why it is not gathered twice.
    pub reason: &'static str,
    /// Bytes a rank does not receive per micro-step.
    pub bytes: u64,
}

impl Plan {
    /// Bytes a rank receives in the all-gathers of one pass over `schedule`.
    pub fn gather_bytes(&self, schedule: &Schedule) -> u64 {
        let peers = self.world_size as u64 - 1;
        let dtype = self.knobs.param_dtype.bytes();
        let shards = |g: &Gather| -> u64 {
            g.params.iter().map(|&p| (dtype * self.partitions[p].shard_numel()) as u64).sum()
        };
        schedule.gathers.iter().map(|g| peers * shards(g)).sum()
    }

    /// The state that every step refreshes: the updated parameters, in stage 0 the gradients instead.
    pub fn refreshed_state(&self) -> Option<State> {
        let any_whole = |hold: fn(&Placement) -> Hold| self.placements.iter().any(|p| hold(p) == Hold::Whole);
        if any_whole(|p| p.optim) {
            Some(State::Grad)
        } else {
            any_whole(|p| p.param).then_some(State::Param)
        }
    }

    /// Bytes of one rank's slices of all parameters in `dtype`, padding included.
    fn slice_bytes(&self, dtype: DType) -> u64 {
        dtype.bytes() as u64 * self.partitions.iter().map(|p| p.shard_numel() as u64).sum::<u64>()
    }

    /// Bytes `rank` receives in one training step of `n_micro` micro-batches.
    pub fn step_volume(&self, rank: usize, n_micro: usize) -> Volume {
        let n = self.world_size;
        let a = MicroBatches::new(n_micro, n).micro_steps();
        // All micro-steps but the last are alike.
        let gathered = |a_i| self.gather_bytes(&self.micro_step(a_i, a).schedule);
        let before = if a > 1 { gathered(0).saturating_mul(a as u64 - 1) } else { 0 };
        let gathered = before.saturating_add(gathered(a - 1));
        let refreshed = self.refreshed_state().map_or(0, |s| self.refresh.received_bytes(s, n));
        let received = |(k, times)| self.n_received(rank, k) as u64 * times;
        let contributions: u64 = self.reductions(n_micro).map(received).sum();
        Volume {
            all_gather_bytes: gathered.saturating_add(refreshed),
            reduce_scatter_bytes: contributions.saturating_mul(self.reduce_slice_bytes()),
        }
    }

    /// Contributions that `rank` receives in a reduction of the gradients of ranks `0..contributors`. In a
    /// reduce-scatter a rank without a gradient takes part with zeros.
    pub fn n_received(&self, rank: usize, contributors: usize) -> usize {
        match self.knobs.deterministic {
            true => ordered_exchange::n_received(rank, contributors),
            false => self.world_size - 1,
        }
    }

    /// Bytes of one contribution to a rank's slices of all gradients.
    pub fn reduce_slice_bytes(&self) -> u64 {
        self.slice_bytes(self.knobs.reduce_dtype)
    }

    /// The reductions of all gradients in one step: the number of contributing ranks, and how many reductions
    /// have it. All except the last are alike.
    pub fn reductions(&self, n_micro: usize) -> impl Iterator<Item = (usize, u64)> {
        let a = MicroBatches::new(n_micro, self.world_size).micro_steps();
        let before = if self.reduces_once() { 0 } else { a as u64 - 1 };
        let runs = [(0, before), (a - 1, 1)].into_iter().filter(|(_, times)| *times > 0);
        runs.map(move |(a_i, times)| (self.contributors(n_micro, a_i), times))
    }

    /// First ranks of groups that receive the same bytes per step: always 0, and another one if the last
    /// micro-step has fewer micro-batches than there are ranks.
    pub fn volume_borders(&self, n_micro: usize) -> Vec<usize> {
        let borders = self.reductions(n_micro).map(|(k, _)| k).filter(|&k| 0 < k && k < self.world_size);
        let mut borders: Vec<usize> = std::iter::once(0).chain(borders).collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Rule 6 for this stage and these element types: `2A` gathers of everything in stage 3, one refresh
    /// below it.
    pub fn bound(&self, n_micro: usize) -> Bound {
        let a = MicroBatches::new(n_micro, self.world_size).micro_steps();
        let (all_gathers, gathered) = match self.knobs.stage {
            0 => (1, self.knobs.grad_dtype),
            1 | 2 => (1, self.knobs.param_dtype),
            _ => (2 * a, self.knobs.param_dtype),
        };
        let reductions = self.reductions(n_micro).map(|(_, times)| times).sum::<u64>();
        let gathered = (all_gathers as u64).saturating_mul(self.slice_bytes(gathered));
        let bytes = gathered.saturating_add(reductions.saturating_mul(self.reduce_slice_bytes()));
        Bound {
            all_gathers,
            reductions: reductions as usize,
            bytes: bytes.saturating_mul(self.world_size as u64 - 1),
        }
    }

    /// Ranks that add a gradient in micro-step `a`: those with a micro-batch, or, if gradients are
    /// accumulated, those with one in any micro-step.
    pub fn contributors(&self, n_micro: usize, a: usize) -> usize {
        MicroBatches::new(n_micro, self.world_size).contributors(if self.reduces_once() { 0 } else { a })
    }

    /// Savings of one micro-step compared with two all-gathers of every sharded parameter.
    pub fn savings(&self, spec: &ModelSpec) -> Vec<Saving> {
        let users = spec.users();
        let mut n_gathers = vec![0; spec.params.len()];
        self.train.schedule.gathers.iter().flat_map(|g| &g.params).for_each(|&p| n_gathers[p] += 1);
        let mut savings = Vec::new();
        for (p, param) in spec.params.iter().enumerate() {
            if self.placements[p].param == Hold::Whole {
                continue;
            }
            let gathers = n_gathers[p];
            if gathers < 2 {
                let role = spec.units[users[p][0]].role;
                let reason = match role {
                    UnitRole::Embedding => "the embedding's backward needs no weights",
                    UnitRole::Head => "the last unit remains gathered from forward to backward",
                    UnitRole::Block => "zero.release_after_forward = false holds it gathered",
                };
                let elements = (2 - gathers) * self.partitions[p].shard_numel() * (self.world_size - 1);
                let bytes = (elements * self.knobs.param_dtype.bytes()) as u64;
                savings.push(Saving { param: param.name.clone(), reason, bytes });
            }
        }
        savings
    }
}
