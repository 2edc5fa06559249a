//! The two collectives of a step over sizes and numbers of ranks: latency, what each peer adds, and bandwidth.

use super::fit::fit;
use crate::accept::collectives::{Bench, Op};
use crate::accept::lab::Lab;
use crate::backend::{Backend, Comm};
use crate::error::Result;
use crate::telemetry::quantile::median;
use std::time::Instant;

/// Bytes of all slices together.
const SIZES: [u64; 7] = [1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 3 << 21, 1 << 24];
/// Timed calls of each in a round.
const CALLS: usize = 11;
/// As in `kernels.rs`: the quickest round of each counts.
const ROUNDS: usize = 3;

/// One collective of one size.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Ranks.
    pub n: usize,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Median over calls of the slowest rank of each, of the quickest round.
    pub seconds: f64,
}

/// Latency, what each further peer adds, and bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Of any collective.
    pub latency_s: f64,
    /// Of each peer.
    pub peer_s: f64,
    /// Bytes a rank receives in a second.
    pub bytes_per_s: f64,
    /// Largest relative error of a sample.
    pub worst: f64,
}

/// Measures on `group`. Collective over it.
pub fn measure<B: Backend>(lab: &Lab<'_, B>, group: &B::Comm, op: Op) -> Result<Vec<Sample>> {
    let n = group.size();
    let mut samples: Vec<Sample> = Vec::new();
    for (round, bytes) in (0..ROUNDS).flat_map(|round| SIZES.map(|bytes| (round, bytes))) {
        let mut bench = Bench::new(lab, group, op, bytes)?;
        bench.call(lab, group)?;
        let mut own = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            group.control().barrier()?;
            let started = Instant::now();
            bench.call(lab, group)?;
            own.push(started.elapsed().as_secs_f64());
        }
        let all = group.control().all_gather_f64(&own)?;
        let slowest: Vec<f64> =
            (0..CALLS).map(|i| all.iter().skip(i).step_by(CALLS).fold(0.0, |a: f64, &b| a.max(b))).collect();
        let sample = Sample { n, slice_bytes: bytes / n as u64 / 4 * 4, seconds: median(&slowest) };
        match samples.iter_mut().find(|s| round > 0 && s.slice_bytes == sample.slice_bytes) {
            Some(known) => known.seconds = known.seconds.min(sample.seconds),
            None => samples.push(sample),
        }
    }
    Ok(samples)
}

/// Fits what is left of each time when `own_s(slice_bytes)`, the work on the own slice, is taken off.
pub fn fit_link(samples: &[Sample], own_s: impl Fn(u64) -> f64) -> Link {
    let rows: Vec<([f64; 3], f64)> = samples
        .iter()
        .map(|s| {
            let peers = (s.n - 1) as f64;
            // A tenth at least: what else is taken off was measured by itself, with its own error.
            let rest = (s.seconds - own_s(s.slice_bytes)).max(s.seconds / 10.0);
            ([1.0, peers - 1.0, peers * s.slice_bytes as f64], rest)
        })
        .collect();
    let found = fit(&rows);
    let [latency_s, further_s, s_per_byte] = found.coefficients;
    // The first peer is in the latency.
    let latency_s = (latency_s - further_s).max(0.0);
    Link { latency_s, peer_s: further_s, bytes_per_s: 1.0 / s_per_byte.max(1e-15), worst: found.worst }
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
        let samples: Vec<Sample> = [2, 3, 4]
            .into_iter()
            .flat_map(|n| {
                SIZES.map(|bytes| Sample { n, slice_bytes: bytes / n as u64, seconds: time(n, bytes / n as u64) })
            })
            .collect();
        let link = fit_link(&samples, own);
        assert!((link.latency_s / 20e-6 - 1.0).abs() < 0.01 && (link.peer_s / 3e-6 - 1.0).abs() < 0.01, "{link:?}");
        assert!((link.bytes_per_s / 8e9 - 1.0).abs() < 0.01, "{link:?}");
        // With one number of ranks a peer is part of the latency.
        let link = fit_link(&samples[..SIZES.len()], own);
        assert!((link.latency_s / 23e-6 - 1.0).abs() < 0.01 && link.peer_s == 0.0, "{link:?}");
    }
}
