//! Bytes a rank receives in one training step, from the plan alone (rule 6), and what the plan saves, by name.

use super::Plan;
use super::schedule::Schedule;
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
    /// Bytes `rank` receives in all-gathers of one pass over `schedule`.
    pub fn gather_bytes(&self, schedule: &Schedule) -> u64 {
        let peers = self.world_size as u64 - 1;
        let shards = |g: &super::schedule::Gather| -> u64 {
            g.params.iter().map(|&p| 4 * self.partitions[p].shard_numel() as u64).sum()
        };
        schedule.gathers.iter().map(|g| peers * shards(g)).sum()
    }

    /// Bytes `rank` receives in one training step of `n_micro` micro-batches.
    pub fn step_volume(&self, rank: usize, n_micro: usize) -> Volume {
        let shard_bytes: u64 = self.partitions.iter().map(|p| 4 * p.shard_numel() as u64).sum();
        let mut volume = Volume::default();
        for a in 0..micro_steps(n_micro, self.world_size) {
            let k = contributors(n_micro, self.world_size, a);
            let from_others = (k - usize::from(rank < k)) as u64;
            volume.all_gather_bytes += self.gather_bytes(&self.train.schedule);
            volume.reduce_scatter_bytes += from_others * shard_bytes;
        }
        volume
    }

    /// What one micro-step saves against two all-gathers of every parameter.
    pub fn savings(&self, spec: &ModelSpec) -> Vec<Saving> {
        let mut savings = Vec::new();
        for (p, param) in spec.params.iter().enumerate() {
            let gathers = self.train.schedule.gathers.iter().filter(|g| g.params.contains(&p)).count();
            if gathers < 2 {
                let role = spec.units[spec.first_unit_of(p)].role;
                let reason = match role {
                    UnitRole::Embedding => "the embedding's backward needs no weights",
                    _ => "the last unit stays gathered from forward to backward",
                };
                let elements = ((2 - gathers) * self.partitions[p].shard_numel() * (self.world_size - 1)) as u64;
                savings.push(Saving { param: param.name.clone(), reason, elements });
            }
        }
        savings
    }
}
