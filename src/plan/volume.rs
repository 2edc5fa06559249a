//! Bytes a rank receives in one training step, from the plan alone (rule 6), and what the plan saves, by name.

use super::Plan;
use super::placement::{Hold, State};
use super::schedule::{Gather, Schedule};
use crate::params::{ModelSpec, UnitRole};

/// Payload bytes a rank receives, and the messages they arrive in.
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

/// Micro-steps of a step of `n_micro` micro-batches on `world_size` ranks.
pub fn micro_steps(n_micro: usize, world_size: usize) -> usize {
    n_micro.div_ceil(world_size)
}

/// Ranks `0..k` have a micro-batch in micro-step `a`: `k` of them.
pub fn contributors(n_micro: usize, world_size: usize, a: usize) -> usize {
    n_micro.saturating_sub(a * world_size).min(world_size)
}

/// One parameter whose gathers the plan saves, in elements of one micro-step against two whole gathers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saving {
    /// Parameter.
    pub param: String,
    /// Why it is not gathered twice.
    pub reason: &'static str,
    /// Elements not received per micro-step, padding included, times (N-1)/N.
    pub elements: u64,
}

impl Plan {
    /// Bytes a rank receives in the all-gathers of one pass over `schedule`.
    pub fn gather_bytes(&self, schedule: &Schedule) -> u64 {
        let peers = self.world_size as u64 - 1;
        let dtype = self.knobs.param_dtype.bytes();
        let shards =
            |g: &Gather| -> u64 { g.params.iter().map(|&p| (dtype * self.partitions[p].shard_numel()) as u64).sum() };
        schedule.gathers.iter().map(|g| peers * shards(g)).sum()
    }

    /// States that every step makes whole again: the updated parameters, and in stage 0 the gradients instead.
    pub fn refreshed_states(&self) -> Vec<State> {
        let whole = |state: State| self.placements.iter().any(|p| p.hold(state) == Hold::Whole);
        if whole(State::ExpAvg) {
            vec![State::Grad]
        } else if whole(State::Param) {
            vec![State::Param]
        } else {
            Vec::new()
        }
    }

    /// Bytes `rank` receives in one training step of `n_micro` micro-batches.
    pub fn step_volume(&self, rank: usize, n_micro: usize) -> Volume {
        let n = self.world_size;
        let slice_bytes: u64 =
            self.partitions.iter().map(|p| (self.knobs.reduce_dtype.bytes() * p.shard_numel()) as u64).sum();
        let a = micro_steps(n_micro, n);
        let mut volume = Volume::default();
        for a_i in 0..a {
            let program = self.micro_step(a_i, a);
            volume.all_gather_bytes += self.gather_bytes(&program.schedule);
            if self.train_hold.is_some() && a_i + 1 < a {
                continue;
            }
            let k = self.contributors(n_micro, a_i);
            volume.reduce_scatter_bytes += (k - usize::from(rank < k)) as u64 * slice_bytes;
        }
        volume.all_gather_bytes +=
            self.refreshed_states().iter().map(|&s| self.refresh.received_bytes(s, n)).sum::<u64>();
        volume
    }

    /// Ranks that add a gradient in micro-step `a`: those with a micro-batch, or, where gradients are held, those with
    /// one in any micro-step.
    pub fn contributors(&self, n_micro: usize, a: usize) -> usize {
        contributors(n_micro, self.world_size, if self.train_hold.is_some() { 0 } else { a })
    }

    /// What one micro-step saves against two all-gathers of every parameter that is cut.
    pub fn savings(&self, spec: &ModelSpec) -> Vec<Saving> {
        let mut savings = Vec::new();
        for (p, param) in spec.params.iter().enumerate() {
            if self.placements[p].param == Hold::Whole {
                continue;
            }
            let gathers = self.train.schedule.gathers.iter().filter(|g| g.params.contains(&p)).count();
            if gathers < 2 {
                let role = spec.units[spec.first_unit_of(p)].role;
                let reason = match role {
                    UnitRole::Embedding => "the embedding's backward needs no weights",
                    UnitRole::Head => "the last unit stays gathered from forward to backward",
                    UnitRole::Block => "zero.release_after_forward = false keeps it gathered",
                };
                let elements = ((2 - gathers) * self.partitions[p].shard_numel() * (self.world_size - 1)) as u64;
                savings.push(Saving { param: param.name.clone(), reason, elements });
            }
        }
        savings
    }
}
