//! The two collectives of a step over sizes and numbers of ranks: latency, the cost of each peer, and
//! bandwidth.

use super::fit::fit;
use crate::backend::{Backend, Comm};
use crate::error::Result;
use crate::harness::{Cluster, CollectiveBench, CollectiveOp};
use crate::quantile::median;
use std::time::Instant;

/// Bytes of the whole vector.
const SIZES: [u64; 7] = [1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 3 << 21, 1 << 24];
/// Timed calls of each size in a round.
const CALLS: usize = 11;
/// Rounds; the quickest one of each size counts, as in `kernels.rs`.
const ROUNDS: usize = 3;

/// The time of one collective of one size.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveSample {
    /// Ranks.
    pub n: usize,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Median over calls of the slowest rank of each call, in the quickest round.
    pub seconds: f64,
}

/// Coefficients of a collective's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkFit {
    /// Seconds of any call.
    pub latency_s: f64,
    /// Seconds of each peer.
    pub peer_s: f64,
    /// Bytes a rank receives in a second.
    pub bytes_per_s: f64,
    /// Largest relative error of a sample.
    pub worst: f64,
}

/// Measures on `group`. Collective over it.
pub fn measure<B: Backend>(
    cluster: &Cluster<'_, B>,
    group: &B::Comm,
    op: CollectiveOp,
) -> Result<Vec<CollectiveSample>> {
    let n = group.size();
    let mut samples: Vec<CollectiveSample> = Vec::new();
    for (round, bytes) in (0..ROUNDS).flat_map(|round| SIZES.map(|bytes| (round, bytes))) {
        let mut bench = CollectiveBench::new(cluster, group, op, bytes)?;
        bench.call(cluster, group)?;
        let mut own = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            group.control().barrier()?;
            let started = Instant::now();
            bench.call(cluster, group)?;
            own.push(started.elapsed().as_secs_f64());
        }
        let all = group.control().all_gather_f64(&own)?;
        let slowest: Vec<f64> =
            (0..CALLS).map(|i| all.iter().skip(i).step_by(CALLS).fold(0.0, |a: f64, &b| a.max(b))).collect();
        let sample = CollectiveSample { n, slice_bytes: bytes / n as u64 / 4 * 4, seconds: median(&slowest) };
        match samples.iter_mut().find(|s| round > 0 && s.slice_bytes == sample.slice_bytes) {
            Some(known) => known.seconds = known.seconds.min(sample.seconds),
            None => samples.push(sample),
        }
    }
    Ok(samples)
}

impl LinkFit {
    /// Fits the times without `own_s(slice_bytes)`, the time of the work on the rank's slice.
    pub fn of(samples: &[CollectiveSample], own_s: impl Fn(u64) -> f64) -> Self {
        let rows: Vec<([f64; 3], f64)> = samples
            .iter()
            .map(|s| {
                let peers = (s.n - 1) as f64;
                // At least a tenth: the part that is subtracted was measured separately, with its own error.
                let rest = (s.seconds - own_s(s.slice_bytes)).max(s.seconds / 10.0);
                ([1.0, peers - 1.0, peers * s.slice_bytes as f64], rest)
            })
            .collect();
        let found = fit(&rows);
        let [latency_s, further_s, s_per_byte] = found.coefficients;
        // The latency includes the first peer.
        let latency_s = (latency_s - further_s).max(0.0);
        LinkFit { latency_s, peer_s: further_s, bytes_per_s: 1.0 / s_per_byte.max(1e-15), worst: found.worst }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_peers_and_bandwidth_come_apart() {
        let own = |slice: u64| slice as f64 * 1e-11;
        let time = |n: usize, slice: u64| {
            20e-6 + 3e-6 * (n - 1) as f64 + (n as u64 - 1) as f64 * slice as f64 / 8e9 + own(slice)
        };
        let samples: Vec<CollectiveSample> = [2, 3, 4]
            .into_iter()
            .flat_map(|n| {
                SIZES.map(|bytes| CollectiveSample {
                    n,
                    slice_bytes: bytes / n as u64,
                    seconds: time(n, bytes / n as u64),
                })
            })
            .collect();
        let link = LinkFit::of(&samples, own);
        assert!(
            (link.latency_s / 20e-6 - 1.0).abs() < 0.01 && (link.peer_s / 3e-6 - 1.0).abs() < 0.01,
            "{link:?}"
        );
        assert!((link.bytes_per_s / 8e9 - 1.0).abs() < 0.01, "{link:?}");
        // With one number of ranks a peer is part of the latency.
        let link = LinkFit::of(&samples[..SIZES.len()], own);
        assert!((link.latency_s / 23e-6 - 1.0).abs() < 0.01 && link.peer_s == 0.0, "{link:?}");
    }
}
