//! One collective of one size: its buffers, a call, a check of every value, and timed calls.
//!
//! Must not know: which sizes are worth measuring, and which limits apply to the times.

use super::cluster::Cluster;
use super::pairing::across;
use crate::backend::comm::{Pending, ReduceScatter};
use crate::backend::library::ping_pong;
use crate::backend::{Backend, Buf, Comm, Device, Ops, Queue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::schedule::{Bucket, Piece};
use crate::quantile::quantile;
use crate::test_hooks;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use std::time::Instant;

/// A collective of training, or one of the communication library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveOp {
    /// The one of a training step.
    AllGather,
    /// The one of a training step: an exchange, and a sum in a fixed order.
    ReduceScatter,
    /// The library's.
    LibraryReduceScatter,
    /// The library's.
    AllReduce,
    /// The library's, from rank 0.
    Broadcast,
    /// A round trip between the ranks of each pair, all pairs at once ([`across`]); half of its time counts.
    PointToPoint,
}

impl CollectiveOp {
    /// In the order they are measured.
    pub const ALL: [CollectiveOp; 6] = [
        CollectiveOp::AllGather,
        CollectiveOp::ReduceScatter,
        CollectiveOp::LibraryReduceScatter,
        CollectiveOp::AllReduce,
        CollectiveOp::Broadcast,
        CollectiveOp::PointToPoint,
    ];

    /// Its name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveOp::AllGather => "all_gather",
            CollectiveOp::ReduceScatter => "reduce_scatter",
            CollectiveOp::LibraryReduceScatter => "library_reduce_scatter",
            CollectiveOp::AllReduce => "all_reduce",
            CollectiveOp::Broadcast => "broadcast",
            CollectiveOp::PointToPoint => "point_to_point",
        }
    }

    /// Bus bandwidth over algorithm bandwidth on `n` ranks (nccl-tests, doc/PERFORMANCE.md).
    pub fn bus_factor(self, n: usize) -> f64 {
        let share = (n as f64 - 1.0) / n as f64;
        match self {
            CollectiveOp::AllGather | CollectiveOp::ReduceScatter | CollectiveOp::LibraryReduceScatter => {
                share
            }
            CollectiveOp::AllReduce => 2.0 * share,
            CollectiveOp::Broadcast | CollectiveOp::PointToPoint => 1.0,
        }
    }

    /// Ranks' parts in the whole vector, on `n` ranks.
    fn n_parts(self, n: usize) -> usize {
        match self {
            CollectiveOp::AllGather | CollectiveOp::ReduceScatter | CollectiveOp::LibraryReduceScatter => n,
            CollectiveOp::AllReduce | CollectiveOp::Broadcast | CollectiveOp::PointToPoint => 1,
        }
    }

    /// The share of a call's time that counts.
    fn share_of_call(self) -> f64 {
        if self == CollectiveOp::PointToPoint { 0.5 } else { 1.0 }
    }
}

/// Times of one size of one collective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveTime {
    /// The collective.
    pub op: CollectiveOp,
    /// `all`, or the host of the ranks.
    pub scope: String,
    /// Ranks that took part.
    pub n_ranks: usize,
    /// Size of the whole vector, as nccl-tests counts it.
    pub bytes: u64,
    /// Mean time of a call on the slowest rank of each call, microseconds.
    pub mean_us: f64,
    /// 99th percentile of the same times, microseconds.
    pub p99_us: f64,
    /// bytes / mean time, GB/s.
    pub algbw: f64,
    /// algbw times the factor of the collective, GB/s.
    pub busbw: f64,
    /// Wrong values on all ranks, in one call before the timed ones and one after.
    pub n_wrong: u64,
    /// Ranks of the job that received them.
    pub wrong_ranks: Vec<usize>,
}

/// How often a collective is called.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// Calls before the timed ones.
    pub warmup: usize,
    /// Timed calls, at least one.
    pub timed: usize,
}

/// Element `e` of rank `r`: whole numbers, so that sums are exact in any order.
fn value(r: usize, e: usize) -> f32 {
    ((e * 31 + r * 17) % 251) as f32
}

/// The buffers of one collective.
pub struct CollectiveBench {
    op: CollectiveOp,
    /// Elements of one rank's part.
    part: usize,
    /// What is sent; none while a call owns it.
    pub inp: Option<Buf>,
    /// What is received; none while a call owns it.
    pub out: Option<Buf>,
    staging: Option<Buf>,
}

impl CollectiveBench {
    /// Allocates and fills buffers for a whole vector of `bytes` on `comm`. Collective over it.
    pub fn new<B: Backend>(
        cluster: &Cluster<'_, B>,
        comm: &B::Comm,
        op: CollectiveOp,
        bytes: u64,
    ) -> Result<Self> {
        let n = comm.size();
        let part = (bytes as usize / 4 / op.n_parts(n)).max(1);
        let (inp, out, staging) = match op {
            CollectiveOp::AllGather => (part, part * n, 0),
            CollectiveOp::ReduceScatter => (part * n, part, part * (n - 1)),
            CollectiveOp::LibraryReduceScatter => (part * n, part, 0),
            CollectiveOp::AllReduce | CollectiveOp::Broadcast | CollectiveOp::PointToPoint => (part, part, 0),
        };
        let mut bufs =
            cluster.buffers_of(comm, &[(inp, DType::F32), (out, DType::F32), (staging, DType::F32)])?;
        let staging = bufs.pop().filter(|_| staging > 0);
        let out = bufs.pop();
        let mut inp = bufs.pop().expect("three were made");
        cluster.fill(&mut inp, |e| value(comm.rank(), e))?;
        Ok(CollectiveBench { op, part, inp: Some(inp), out, staging })
    }

    /// Bytes of the whole vector.
    fn bytes(&self, n: usize) -> u64 {
        (self.part * self.op.n_parts(n) * 4) as u64
    }

    /// One call; returns when this rank's part is done.
    pub fn call<B: Backend>(&mut self, cluster: &Cluster<'_, B>, comm: &B::Comm) -> Result<()> {
        let after = cluster.device.record(Queue::Compute);
        let library = || {
            comm.library()
                .ok_or_else(|| Error::Internal("the backend has no collectives of its library".into()))
        };
        match self.op {
            CollectiveOp::AllGather => {
                let (inp, out) = (
                    self.inp.take().expect("no call is in flight"),
                    self.out.take().expect("no call is in flight"),
                );
                let landed = comm.all_gather(after, smallvec![inp], smallvec![out]).wait()?;
                (self.inp, self.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            CollectiveOp::ReduceScatter => {
                let piece = Piece { param: 0, range: 0..self.part, shard_numel: self.part };
                let landed = comm
                    .reduce_scatter(
                        after,
                        ReduceScatter {
                            full: self.inp.take().into_iter().collect(),
                            slices: self.out.take().into_iter().collect(),
                            staging: self.staging.take(),
                            buckets: [Bucket { pieces: vec![piece] }].into(),
                            contributors: comm.size(),
                            overwrites: true,
                        },
                    )
                    .wait()?;
                (self.inp, self.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
                self.staging = landed.staging;
            }
            op => {
                let inp = self.inp.as_mut().expect("no call is in flight");
                let out = self.out.as_mut().expect("no call is in flight");
                match (op, across(comm.rank(), comm.size())) {
                    (CollectiveOp::AllReduce, _) => library()?.all_reduce(out.view_mut(), inp.view())?,
                    (CollectiveOp::LibraryReduceScatter, _) => {
                        library()?.reduce_scatter(out.view_mut(), inp.view())?
                    }
                    (CollectiveOp::PointToPoint, Some(peer)) => {
                        ping_pong(library()?, comm.rank(), peer, out, inp)?
                    }
                    (CollectiveOp::PointToPoint, None) => {}
                    _ => library()?.broadcast(inp.view_mut(), 0)?,
                }
            }
        }
        cluster.settle()
    }

    /// Fills the buffer that a call writes with NaN, calls, and counts this rank's wrong values.
    fn check<B: Backend>(&mut self, cluster: &Cluster<'_, B>, comm: &B::Comm) -> Result<u64> {
        let (rank, n) = (comm.rank(), comm.size());
        let peer = across(rank, n);
        if self.op == CollectiveOp::PointToPoint && peer.is_none() {
            return Ok(0);
        }
        let written = if self.op == CollectiveOp::Broadcast { &mut self.inp } else { &mut self.out };
        if self.op != CollectiveOp::Broadcast || rank != 0 {
            cluster.device.fill_bytes(written.as_mut().expect("no call is in flight").view_mut(), 0xff);
        }
        self.call(cluster, comm)?;
        let written = if self.op == CollectiveOp::Broadcast { &self.inp } else { &self.out };
        let mut got = cluster.read(written.as_ref().expect("the call is over").view())?;
        test_hooks::spoil_received(&mut got);
        let part = self.part;
        let sum = |e: usize| (0..n).map(|r| value(r, e)).sum::<f32>();
        let wanted = |e: usize| match self.op {
            CollectiveOp::AllGather => value(e / part, e % part),
            CollectiveOp::ReduceScatter | CollectiveOp::LibraryReduceScatter => sum(rank * part + e),
            CollectiveOp::AllReduce => sum(e),
            CollectiveOp::Broadcast => value(0, e),
            CollectiveOp::PointToPoint => value(peer.expect("checked above"), e),
        };
        Ok(got.iter().enumerate().filter(|&(e, x)| *x != wanted(e)).count() as u64)
    }
}

impl CollectiveTime {
    /// Measures one size on `comm`, whose members are the ranks `members` of the job. Collective over it.
    pub fn measure<B: Backend>(
        cluster: &Cluster<'_, B>,
        comm: &B::Comm,
        op: CollectiveOp,
        bytes: u64,
        calls: Calls,
        scope: &str,
        members: &[usize],
    ) -> Result<Self> {
        let n = comm.size();
        let mut bench = CollectiveBench::new(cluster, comm, op, bytes)?;
        let mut n_wrong = bench.check(cluster, comm)?;
        for _ in 0..calls.warmup {
            bench.call(cluster, comm)?;
        }
        let mut own = Vec::with_capacity(calls.timed + 1);
        for _ in 0..calls.timed {
            comm.control().barrier()?;
            let started = Instant::now();
            bench.call(cluster, comm)?;
            own.push(started.elapsed().as_secs_f64() * 1e6 * op.share_of_call());
        }
        n_wrong += bench.check(cluster, comm)?;
        own.push(n_wrong as f64);
        let all = comm.control().all_gather_f64(&own)?;
        let ranks: Vec<&[f64]> = all.chunks_exact(own.len()).collect();
        // A call is over when its slowest rank is.
        let slowest: Vec<f64> =
            (0..calls.timed).map(|i| ranks.iter().map(|r| r[i]).fold(0.0, f64::max)).collect();
        let mean_us = slowest.iter().sum::<f64>() / slowest.len() as f64;
        let bytes = bench.bytes(n);
        let algbw = bytes as f64 / mean_us / 1e3;
        let wrong = |r: usize| ranks[r][calls.timed];
        Ok(CollectiveTime {
            op,
            scope: scope.into(),
            n_ranks: n,
            bytes,
            mean_us,
            p99_us: quantile(&slowest, 0.99),
            algbw,
            busbw: algbw * op.bus_factor(n),
            n_wrong: (0..n).map(|r| wrong(r) as u64).sum(),
            wrong_ranks: (0..n).filter(|&r| wrong(r) > 0.0).map(|r| members[r]).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (op, n, factor) in [
            (CollectiveOp::AllGather, 4, 0.75),
            (CollectiveOp::ReduceScatter, 2, 0.5),
            (CollectiveOp::AllReduce, 4, 1.5),
            (CollectiveOp::Broadcast, 8, 1.0),
        ] {
            assert_eq!(op.bus_factor(n), factor, "{op:?} on {n}");
        }
    }
}
