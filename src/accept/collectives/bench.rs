//! One collective of one size: its buffers, a call, a check of every value, and the timed calls.

use super::pairs::across;
use crate::accept::lab::Lab;
use crate::backend::comm::{Pending, ReduceScatter};
use crate::backend::library::ping_pong;
use crate::backend::{Backend, Buf, Comm, Device, Queue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::schedule::{Bucket, Piece};
use crate::telemetry::quantile::quantile;
use crate::test_hooks;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use std::time::Instant;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The gather of a training step.
    AllGather,
    /// The exchange and sum of a training step.
    ReduceScatter,
    /// The library's own.
    LibraryReduceScatter,
    /// The library's.
    AllReduce,
    /// The library's, from rank 0.
    Broadcast,
    /// A message there and back between the ranks of each pair, all pairs at once ([`across`]); half of the time counts.
    PointToPoint,
}

impl Op {
    /// In the order they run.
    pub const ALL: [Op; 6] =
        [Op::AllGather, Op::ReduceScatter, Op::LibraryReduceScatter, Op::AllReduce, Op::Broadcast, Op::PointToPoint];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::LibraryReduceScatter => "library_reduce_scatter",
            Op::AllReduce => "all_reduce",
            Op::Broadcast => "broadcast",
            Op::PointToPoint => "point_to_point",
        }
    }

    /// Bus bandwidth over algorithm bandwidth on `n` ranks (nccl-tests, doc/PERFORMANCE.md).
    pub fn bus_factor(self, n: usize) -> f64 {
        let share = (n as f64 - 1.0) / n as f64;
        match self {
            Op::AllGather | Op::ReduceScatter | Op::LibraryReduceScatter => share,
            Op::AllReduce => 2.0 * share,
            Op::Broadcast | Op::PointToPoint => 1.0,
        }
    }

    /// Size of the whole vector in parts of one rank's, on `n` ranks.
    fn n_parts(self, n: usize) -> usize {
        match self {
            Op::AllGather | Op::ReduceScatter | Op::LibraryReduceScatter => n,
            Op::AllReduce | Op::Broadcast | Op::PointToPoint => 1,
        }
    }

    /// Share of a timed call that one transfer takes.
    fn share_of_call(self) -> f64 {
        if self == Op::PointToPoint { 0.5 } else { 1.0 }
    }
}

/// One size of one collective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which.
    pub op: Op,
    /// `all`, or the host of the ranks.
    pub scope: String,
    /// Ranks that took part.
    pub n_ranks: usize,
    /// Size as nccl-tests counts it: of the whole vector.
    pub bytes: u64,
    /// Mean time of a call, of the slowest rank of each, microseconds.
    pub mean_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// bytes / mean time, GB/s.
    pub algbw: f64,
    /// algbw times the factor of the collective, GB/s.
    pub busbw: f64,
    /// Wrong values on all ranks, of one call before the timed ones and one after.
    pub n_wrong: u64,
    /// Ranks of the job that got them.
    pub wrong_ranks: Vec<usize>,
}

/// Element `e` of rank `r`: whole numbers, so that sums are exact in any order.
fn value(r: usize, e: usize) -> f32 {
    ((e * 31 + r * 17) % 251) as f32
}

/// The buffers of one collective.
pub struct Bench {
    op: Op,
    /// Elements of one rank's part.
    part: usize,
    /// What is sent; none while a call has it.
    pub inp: Option<Buf>,
    /// What is received, likewise.
    pub out: Option<Buf>,
    staging: Option<Buf>,
}

impl Bench {
    /// Buffers for `bytes`, as nccl-tests counts them, on `comm`. Collective.
    pub fn new<B: Backend>(lab: &Lab<'_, B>, comm: &B::Comm, op: Op, bytes: u64) -> Result<Self> {
        let n = comm.size();
        let part = (bytes as usize / 4 / op.n_parts(n)).max(1);
        let (inp, out, staging) = match op {
            Op::AllGather => (part, part * n, 0),
            Op::ReduceScatter => (part * n, part, part * (n - 1)),
            Op::LibraryReduceScatter => (part * n, part, 0),
            Op::AllReduce | Op::Broadcast | Op::PointToPoint => (part, part, 0),
        };
        let mut bufs = lab.buffers_of(comm, &[(inp, DType::F32), (out, DType::F32), (staging, DType::F32)])?;
        let staging = bufs.pop().filter(|_| staging > 0);
        let out = bufs.pop();
        let mut inp = bufs.pop().expect("three were made");
        lab.fill(&mut inp, |e| value(comm.rank(), e))?;
        Ok(Bench { op, part, inp: Some(inp), out, staging })
    }

    /// Bytes as nccl-tests counts them.
    fn bytes(&self, n: usize) -> u64 {
        (self.part * self.op.n_parts(n) * 4) as u64
    }

    /// One call, to its end.
    pub fn call<B: Backend>(&mut self, lab: &Lab<'_, B>, comm: &B::Comm) -> Result<()> {
        let after = lab.device.record(Queue::Compute);
        let library = || comm.library().ok_or_else(|| Error::Internal("checked before".into()));
        match self.op {
            Op::AllGather => {
                let (inp, out) = (self.inp.take().expect("at rest"), self.out.take().expect("at rest"));
                let landed = comm.all_gather(after, smallvec![inp], smallvec![out]).wait()?;
                (self.inp, self.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            Op::ReduceScatter => {
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
                            first: true,
                        },
                    )
                    .wait()?;
                (self.inp, self.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
                self.staging = landed.staging;
            }
            op => {
                let inp = self.inp.as_mut().expect("at rest");
                let out = self.out.as_mut().expect("at rest");
                match (op, across(comm.rank(), comm.size())) {
                    (Op::AllReduce, _) => library()?.all_reduce(out.view_mut(), inp.view())?,
                    (Op::LibraryReduceScatter, _) => library()?.reduce_scatter(out.view_mut(), inp.view())?,
                    (Op::PointToPoint, Some(peer)) => ping_pong(library()?, comm.rank(), peer, out, inp)?,
                    (Op::PointToPoint, None) => {}
                    _ => library()?.broadcast(inp.view_mut(), 0)?,
                }
            }
        }
        lab.settle()
    }

    /// Fills what a call writes with NaN, calls, and counts what is wrong here.
    fn check<B: Backend>(&mut self, lab: &Lab<'_, B>, comm: &B::Comm) -> Result<u64> {
        let (rank, n) = (comm.rank(), comm.size());
        let peer = across(rank, n);
        if self.op == Op::PointToPoint && peer.is_none() {
            return Ok(0);
        }
        let written = if self.op == Op::Broadcast { &mut self.inp } else { &mut self.out };
        if self.op != Op::Broadcast || rank != 0 {
            lab.device.fill_bytes(written.as_mut().expect("at rest").view_mut(), 0xff);
        }
        self.call(lab, comm)?;
        let written = if self.op == Op::Broadcast { &self.inp } else { &self.out };
        let mut got = lab.read(written.as_ref().expect("back").view())?;
        test_hooks::spoil_received(&mut got);
        let part = self.part;
        let sum = |e: usize| (0..n).map(|r| value(r, e)).sum::<f32>();
        let wanted = |e: usize| match self.op {
            Op::AllGather => value(e / part, e % part),
            Op::ReduceScatter | Op::LibraryReduceScatter => sum(rank * part + e),
            Op::AllReduce => sum(e),
            Op::Broadcast => value(0, e),
            Op::PointToPoint => value(peer.expect("seen above"), e),
        };
        Ok(got.iter().enumerate().filter(|&(e, x)| *x != wanted(e)).count() as u64)
    }
}

/// One size over `comm`, whose members are the ranks `members` of the job.
pub fn measure<B: Backend>(
    lab: &Lab<'_, B>,
    comm: &B::Comm,
    op: Op,
    bytes: u64,
    scope: &str,
    members: &[usize],
) -> Result<Point> {
    let n = comm.size();
    let c = &lab.deck.collectives;
    let mut bench = Bench::new(lab, comm, op, bytes)?;
    let mut n_wrong = bench.check(lab, comm)?;
    for _ in 0..c.warmup {
        bench.call(lab, comm)?;
    }
    let mut own = Vec::with_capacity(c.iterations + 1);
    for _ in 0..c.iterations {
        comm.control().barrier()?;
        let started = Instant::now();
        bench.call(lab, comm)?;
        own.push(started.elapsed().as_secs_f64() * 1e6 * op.share_of_call());
    }
    n_wrong += bench.check(lab, comm)?;
    own.push(n_wrong as f64);
    let all = comm.control().all_gather_f64(&own)?;
    let ranks: Vec<&[f64]> = all.chunks_exact(own.len()).collect();
    // A call is over when its slowest rank is through.
    let slowest: Vec<f64> = (0..c.iterations).map(|i| ranks.iter().map(|r| r[i]).fold(0.0, f64::max)).collect();
    let mean_us = slowest.iter().sum::<f64>() / slowest.len() as f64;
    let bytes = bench.bytes(n);
    let algbw = bytes as f64 / mean_us / 1e3;
    let wrong = |r: usize| ranks[r][c.iterations];
    Ok(Point {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (op, n, factor) in
            [(Op::AllGather, 4, 0.75), (Op::ReduceScatter, 2, 0.5), (Op::AllReduce, 4, 1.5), (Op::Broadcast, 8, 1.0)]
        {
            assert_eq!(op.bus_factor(n), factor, "{op:?} on {n}");
        }
    }
}
