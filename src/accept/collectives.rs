//! Collectives over all ranks and within nodes, in the terms of nccl-tests; every pair of nodes by itself; overlap.
//!
//! Bus bandwidth is that of nccl-tests' doc/PERFORMANCE.md: what the slowest wire carries if the algorithm is a good one, so that
//! it can be held against the hardware whatever the number of ranks.

use super::lab::{Lab, buffers, median, quantile};
use super::metric::Metric;
use super::pairs::{Link, Outlier, outliers, rounds};
use crate::backend::comm::{Pending, ReduceScatter};
use crate::backend::library::ping_pong;
use crate::backend::ops::LinearShape;
use crate::backend::{Backend, Buf, Comm, Device, Ops, Queue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::schedule::{Bucket, Piece};
use crate::test_hooks;
use serde::Serialize;
use std::time::Instant;

/// The smallest message.
const FIRST_BYTES: u64 = 8;
/// From one size to the next.
const GROWTH: u64 = 8;
/// Message of the bandwidth between two ends, at most.
const PAIR_BYTES: u64 = 4 << 20;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
}

impl Op {
    const ALL: [Op; 5] = [Op::AllGather, Op::ReduceScatter, Op::LibraryReduceScatter, Op::AllReduce, Op::Broadcast];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::LibraryReduceScatter => "library_reduce_scatter",
            Op::AllReduce => "all_reduce",
            Op::Broadcast => "broadcast",
        }
    }

    /// Bus bandwidth over algorithm bandwidth on `n` ranks (nccl-tests, doc/PERFORMANCE.md).
    pub fn bus_factor(self, n: usize) -> f64 {
        let share = (n as f64 - 1.0) / n as f64;
        match self {
            Op::AllGather | Op::ReduceScatter | Op::LibraryReduceScatter => share,
            Op::AllReduce => 2.0 * share,
            Op::Broadcast => 1.0,
        }
    }
}

/// One size of one collective.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// All that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// Sizes of collectives.
    pub points: Vec<Point>,
    /// Pairs; the ends are ranks of the job.
    pub links: Vec<Link>,
}

/// Element `e` of rank `r`: whole numbers, so that sums are exact in any order.
fn value(r: usize, e: usize) -> f32 {
    ((e * 31 + r * 17) % 251) as f32
}

/// The buffers of one collective.
struct Bench {
    op: Op,
    /// Elements of one rank's part.
    part: usize,
    inp: Option<Buf>,
    out: Option<Buf>,
    staging: Option<Buf>,
}

impl Bench {
    fn new<B: Backend>(lab: &Lab<'_, B>, comm: &B::Comm, op: Op, bytes: u64) -> Result<Self> {
        let n = comm.size();
        let (part, inp, out, staging) = match op {
            Op::AllGather => {
                let part = (bytes as usize / 4 / n).max(1);
                (part, part, part * n, 0)
            }
            Op::ReduceScatter | Op::LibraryReduceScatter => {
                let part = (bytes as usize / 4 / n).max(1);
                (part, part * n, part, if op == Op::ReduceScatter { part * (n - 1) } else { 0 })
            }
            Op::AllReduce | Op::Broadcast => {
                let part = (bytes as usize / 4).max(1);
                (part, part, part, 0)
            }
        };
        let mut bufs = buffers::<B>(lab.device, comm, &[(inp, DType::F32), (out, DType::F32), (staging, DType::F32)])?;
        let staging = bufs.pop().filter(|_| staging > 0);
        let out = bufs.pop();
        let mut inp = bufs.pop().expect("three were made");
        lab.fill(&mut inp, |e| value(comm.rank(), e));
        Ok(Bench { op, part, inp: Some(inp), out, staging })
    }

    /// Bytes as nccl-tests counts them.
    fn bytes(&self, n: usize) -> u64 {
        let parts = if matches!(self.op, Op::AllReduce | Op::Broadcast) { 1 } else { n };
        (self.part * parts * 4) as u64
    }

    /// One call, to its end.
    fn call<B: Backend>(&mut self, lab: &Lab<'_, B>, comm: &B::Comm) -> Result<()> {
        let after = lab.device.record(Queue::Compute);
        let library = || comm.library().ok_or_else(|| Error::Internal("checked before".into()));
        match self.op {
            Op::AllGather => {
                let (inp, out) = (self.inp.take().expect("at rest"), self.out.take().expect("at rest"));
                let landed = comm.all_gather(after, vec![inp], vec![out]).wait()?;
                (self.inp, self.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            Op::ReduceScatter => {
                let piece = Piece { param: 0, range: 0..self.part };
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
                match op {
                    Op::AllReduce => library()?.all_reduce(out.view_mut(), inp.view())?,
                    Op::LibraryReduceScatter => library()?.reduce_scatter(out.view_mut(), inp.view())?,
                    _ => library()?.broadcast(inp.view_mut(), 0)?,
                }
            }
        }
        lab.settle();
        Ok(())
    }

    /// Fills what a call writes with NaN, calls, and counts what is wrong here.
    fn check<B: Backend>(&mut self, lab: &Lab<'_, B>, comm: &B::Comm) -> Result<u64> {
        let (rank, n) = (comm.rank(), comm.size());
        let written = if self.op == Op::Broadcast { &mut self.inp } else { &mut self.out };
        if self.op != Op::Broadcast || rank != 0 {
            lab.device.fill_bytes(written.as_mut().expect("at rest").view_mut(), 0xff);
        }
        self.call(lab, comm)?;
        let written = if self.op == Op::Broadcast { &self.inp } else { &self.out };
        let mut got = lab.read(written.as_ref().expect("back").view());
        test_hooks::spoil_received(&mut got);
        let part = self.part;
        let sum = |e: usize| (0..n).map(|r| value(r, e)).sum::<f32>();
        let wanted = |e: usize| match self.op {
            Op::AllGather => value(e / part, e % part),
            Op::ReduceScatter | Op::LibraryReduceScatter => sum(rank * part + e),
            Op::AllReduce => sum(e),
            Op::Broadcast => value(0, e),
        };
        Ok(got.iter().enumerate().filter(|&(e, x)| *x != wanted(e)).count() as u64)
    }
}

/// One size over `comm`, whose members are the ranks `members` of the job.
fn measure<B: Backend>(
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
        comm.barrier()?;
        let started = Instant::now();
        bench.call(lab, comm)?;
        own.push(started.elapsed().as_secs_f64() * 1e6);
    }
    n_wrong += bench.check(lab, comm)?;
    own.push(n_wrong as f64);
    let all = comm.all_gather_f64(&own)?;
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

/// 8 bytes, by factors of 8, to `largest` and that one.
fn sizes(largest: u64) -> Vec<u64> {
    let below = std::iter::successors(Some(FIRST_BYTES), |b| Some(b * GROWTH)).take_while(|&b| b < largest);
    below.chain([largest.max(FIRST_BYTES)]).collect()
}

/// Bytes of the reference model's largest unit.
fn largest_unit_bytes<B: Backend>(lab: &Lab<'_, B>) -> Result<u64> {
    let deck = lab.deck.reference("tokens.u16", "reference", lab.deck.training.steps)?;
    let spec = crate::model::gpt2::model::<B::Device>(&deck).spec;
    let numel = |unit: &crate::params::UnitSpec| unit.params.iter().map(|&p| spec.params[p].numel()).sum::<usize>();
    Ok(spec.units.iter().map(|unit| (numel(unit) * 4) as u64).max().unwrap_or(FIRST_BYTES))
}

/// Ranks of each host, in the order of their first rank.
fn by_host(hosts: &[String]) -> Vec<(String, Vec<usize>)> {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match groups.iter_mut().find(|(h, _)| h == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((host.clone(), vec![rank])),
        }
    }
    groups
}

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>) -> Result<(Vec<Metric>, Measured)> {
    let n = lab.n();
    if n == 1 {
        let why = "one rank has nobody to talk to";
        return Ok((vec![Metric::skipped("collectives", why)], Measured::default()));
    }
    let mut measured = Measured::default();
    let mut metrics = Vec::new();
    let largest = match lab.deck.collectives.max_bytes {
        0 => largest_unit_bytes(lab)?,
        bytes => bytes,
    };
    let everybody: Vec<usize> = (0..n).collect();
    for op in Op::ALL {
        let name = |what: &str| format!("collectives.{}.{what}", op.name());
        if lab.comm.library().is_none() && !matches!(op, Op::AllGather | Op::ReduceScatter) {
            metrics.push(Metric::skipped(&name("busbw"), "the backend does not show the library's own collectives"));
            continue;
        }
        for bytes in sizes(largest) {
            measured.points.push(measure(lab, lab.comm, op, bytes, "all", &everybody)?);
        }
        let top = measured.points.last().expect("one size at least");
        let key = format!("{}_busbw", op.name());
        let words = format!(
            "{} bytes, {:.1} us, p99 {:.1} us, algbw {:.3} GB/s",
            top.bytes, top.mean_us, top.p99_us, top.algbw
        );
        metrics.push(lab.judged(&name("busbw"), &key, top.busbw, "GB/s", None).because(words));
    }
    within_nodes(lab, largest, &mut measured, &mut metrics)?;
    let n_wrong: u64 = measured.points.iter().map(|p| p.n_wrong).sum();
    let blame: Vec<String> = measured
        .points
        .iter()
        .filter(|p| p.n_wrong > 0)
        .map(|p| {
            let ranks: Vec<String> = p.wrong_ranks.iter().map(|&r| lab.name(r)).collect();
            format!("{} of {} bytes: {} wrong on {}", p.op.name(), p.bytes, p.n_wrong, ranks.join(", "))
        })
        .take(4)
        .collect();
    metrics.push(Metric::exactly("collectives.n_wrong", n_wrong as f64, 0.0, "", blame.join("; ")));
    if lab.deck.collectives.pairs && lab.comm.library().is_some() {
        measured.links = pairs(lab, largest.min(PAIR_BYTES))?;
        links(lab, &measured.links, &mut metrics);
    } else {
        metrics.push(Metric::skipped(
            "collectives.slow_links",
            "collectives.pairs is off, or the backend has no point-to-point calls",
        ));
    }
    metrics.push(overlap(lab, largest)?);
    Ok((metrics, measured))
}

/// AllGather of the largest size within each node, all nodes at once; a node well below the median node is named.
fn within_nodes<B: Backend>(
    lab: &Lab<'_, B>,
    largest: u64,
    measured: &mut Measured,
    metrics: &mut Vec<Metric>,
) -> Result<()> {
    let nodes = by_host(&lab.hosts);
    if nodes.len() < 2 {
        metrics.push(Metric::skipped("collectives.slow_nodes", "there is one node: all ranks are within it"));
        return Ok(());
    }
    let own = nodes.iter().position(|(_, ranks)| ranks.contains(&lab.rank())).expect("every rank has a host");
    let comm = (lab.split)(own, lab.rank())?;
    let (host, members) = &nodes[own];
    let busbw = match members.len() {
        1 => 0.0,
        _ => {
            let point = measure(lab, &comm, Op::AllGather, largest, host, members)?;
            point.busbw
        }
    };
    let all = lab.gather(busbw)?;
    let of_node: Vec<(usize, f64)> = nodes
        .iter()
        .enumerate()
        .filter(|(_, (_, ranks))| ranks.len() > 1)
        .map(|(i, (_, ranks))| (i, all[ranks[0]]))
        .collect();
    if of_node.is_empty() {
        metrics.push(Metric::skipped("collectives.slow_nodes", "every node has one rank"));
        return Ok(());
    }
    for &(i, busbw) in &of_node {
        let (host, members) = &nodes[i];
        let n = members.len();
        let algbw = busbw / Op::AllGather.bus_factor(n);
        let mean_us = largest as f64 / algbw / 1e3;
        let none = Vec::new();
        measured.points.push(Point {
            op: Op::AllGather,
            scope: host.clone(),
            n_ranks: n,
            bytes: largest,
            mean_us,
            p99_us: f64::NAN,
            algbw,
            busbw,
            n_wrong: 0,
            wrong_ranks: none,
        });
    }
    let rates: Vec<f64> = of_node.iter().map(|&(_, rate)| rate).collect();
    let slow = super::device::slow_ranks(&rates, lab.deck.collectives.slow_link);
    let words: Vec<String> = slow
        .iter()
        .map(|&i| {
            format!(
                "{}: AllGather within the node {:.3} GB/s, the median node {:.3}",
                nodes[of_node[i].0].0,
                rates[i],
                median(&rates)
            )
        })
        .collect();
    metrics.push(Metric::none_of("collectives.slow_nodes", &words));
    Ok(())
}

/// Round trips between the first ranks of all nodes, pair by pair; of one node, between all its ranks, one pair at a time.
fn pairs<B: Backend>(lab: &Lab<'_, B>, bytes: u64) -> Result<Vec<Link>> {
    let nodes = by_host(&lab.hosts);
    let (ends, together): (Vec<usize>, bool) = match nodes.len() {
        1 => ((0..lab.n()).collect(), false),
        _ => (nodes.iter().map(|(_, ranks)| ranks[0]).collect(), true),
    };
    let mut schedule = rounds(ends.len());
    if !together {
        // Pairs of one node would share its cores and memory, and measure each other.
        schedule = schedule.into_iter().flatten().map(|pair| vec![pair]).collect();
    }
    let numel = (bytes / 4).max(2) as usize;
    let mut bufs = lab.buffers(&[(2, DType::F32), (2, DType::F32), (numel, DType::F32), (numel, DType::F32)])?;
    let own = ends.iter().position(|&rank| rank == lab.rank());
    let mut times = vec![0.0; 2 * ends.len()];
    for round in &schedule {
        lab.comm.barrier()?;
        let pair = round.iter().find(|(a, b)| own == Some(*a) || own == Some(*b));
        let Some(&(a, b)) = pair else { continue };
        let peer = if own == Some(a) { b } else { a };
        for (i, bufs) in bufs.chunks_exact_mut(2).enumerate() {
            let time = round_trip(lab, ends[peer], bufs)?;
            times[2 * peer + i] = time / 2.0;
        }
    }
    let all = lab.comm.all_gather_f64(&times)?;
    let half_trip = |a: usize, b: usize, i: usize| all[ends[a] * times.len() + 2 * b + i];
    let link = |&(a, b): &(usize, usize)| Link {
        a: ends[a],
        b: ends[b],
        latency_us: half_trip(a, b, 0) * 1e6,
        gb_per_s: numel as f64 * 4.0 / half_trip(a, b, 1) / 1e9,
    };
    Ok(schedule.iter().flatten().map(link).collect())
}

/// Median seconds of a round trip.
fn round_trip<B: Backend>(lab: &Lab<'_, B>, peer: usize, bufs: &mut [Buf]) -> Result<f64> {
    let (out, inp) = bufs.split_at_mut(1);
    let library = lab.comm.library().expect("checked before");
    let mut times = Vec::new();
    let c = &lab.deck.collectives;
    for i in 0..c.warmup + c.iterations {
        let started = Instant::now();
        ping_pong(library, lab.rank(), peer, &mut out[0], &inp[0])?;
        test_hooks::delay_link(lab.rank(), peer);
        if i >= c.warmup {
            times.push(started.elapsed().as_secs_f64());
        }
    }
    Ok(median(&times))
}

/// What the links say.
fn links<B: Backend>(lab: &Lab<'_, B>, links: &[Link], metrics: &mut Vec<Metric>) {
    let worst = links.iter().max_by(|x, y| x.latency_us.total_cmp(&y.latency_us)).expect("two ends make a link");
    let words = format!("{} to {}", lab.name(worst.a), lab.name(worst.b));
    metrics.push(lab.judged("collectives.latency_us", "latency_us", worst.latency_us, "us", None).because(words));
    let slowest = links.iter().map(|l| l.gb_per_s).fold(f64::INFINITY, f64::min);
    metrics.push(Metric::info("collectives.slowest_link", slowest, "GB/s"));
    let slow: Vec<String> = outliers(links, lab.deck.collectives.slow_link)
        .iter()
        .map(|outlier| match *outlier {
            Outlier::Node(end) => format!("every link of {} ({})", lab.hosts[end], lab.name(end)),
            Outlier::Link(a, b) => {
                let link = links.iter().find(|l| (l.a, l.b) == (a, b)).expect("an outlier is a link");
                format!("link {} - {}: {:.1} us, {:.3} GB/s", lab.name(a), lab.name(b), link.latency_us, link.gb_per_s)
            }
        })
        .collect();
    metrics.push(match links.len() {
        0..3 => Metric::skipped("collectives.slow_links", "fewer than three links: none can stand out from the median"),
        _ => Metric::none_of("collectives.slow_links", &slow),
    });
}

/// How much of an AllGather hides behind a product of matrices that takes about as long. Collective.
fn overlap<B: Backend>(lab: &Lab<'_, B>, bytes: u64) -> Result<Metric> {
    let n = lab.deck.device.gemm_n.min(512);
    let shape = LinearShape { rows: n, n_in: n, n_out: n };
    let work_numel = B::Device::linear_forward_work_numel(shape, DType::F32, DType::F32, DType::F32);
    let mut bufs =
        lab.buffers(&[(n * n, DType::F32), (n * n, DType::F32), (n * n, DType::F32), (work_numel, DType::F32)])?;
    let [out, inp, weight, work] = bufs.as_mut_slice() else { unreachable!("four were asked for") };
    let mut bench = Bench::new(lab, lab.comm, Op::AllGather, bytes)?;
    let one = lab.median_time(0.0, || {
        lab.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape)
    });
    let mut alone = Vec::new();
    for _ in 0..lab.deck.collectives.iterations {
        lab.comm.barrier()?;
        let started = Instant::now();
        bench.call(lab, lab.comm)?;
        alone.push(started.elapsed().as_secs_f64());
    }
    // All ranks compute the same number of products, so that none leaves early.
    let times = lab.comm.all_gather_f64(&[median(&alone), one.as_secs_f64()])?;
    let slowest = |i: usize| times.iter().skip(i).step_by(2).fold(0.0, |a: f64, &b| a.max(b));
    let (comm_s, one_s) = (slowest(0), slowest(1));
    let n_products = ((comm_s / one_s).ceil() as usize).clamp(1, 10_000);
    let mut both = Vec::new();
    let mut computed = Vec::new();
    for _ in 0..lab.deck.collectives.iterations {
        for with_comm in [false, true] {
            lab.comm.barrier()?;
            let started = Instant::now();
            let pending = with_comm.then(|| {
                let (inp, out) = (bench.inp.take().expect("at rest"), bench.out.take().expect("at rest"));
                lab.comm.all_gather(lab.device.record(Queue::Compute), vec![inp], vec![out])
            });
            for _ in 0..n_products {
                lab.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape);
            }
            if let Some(pending) = pending {
                let landed = pending.wait()?;
                (bench.inp, bench.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            lab.settle();
            let took = started.elapsed().as_secs_f64();
            if with_comm { both.push(took) } else { computed.push(took) }
        }
    }
    let (compute_s, both_s) = (median(&computed), median(&both));
    let hidden = lab.gather((comm_s + compute_s - both_s) / comm_s.min(compute_s))?;
    let least = hidden.iter().fold(f64::INFINITY, |a, &b| a.min(b)).clamp(0.0, 1.0);
    let words = format!(
        "{:.0} us of communication beside {:.0} us of compute took {:.0} us",
        comm_s * 1e6,
        compute_s * 1e6,
        both_s * 1e6
    );
    Ok(lab.judged("collectives.overlap", "overlap", least, "", Some(1.0)).because(words))
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

    #[test]
    fn sizes_go_from_8_bytes_to_the_largest_itself() {
        assert_eq!(sizes(1000), [8, 64, 512, 1000]);
        assert_eq!(sizes(512), [8, 64, 512]);
        assert_eq!(sizes(1), [8]);
    }

    #[test]
    fn hosts_are_grouped_wherever_their_ranks_are() {
        let hosts = ["a", "b", "a"].map(String::from);
        assert_eq!(by_host(&hosts), [("a".into(), vec![0, 2]), ("b".into(), vec![1])]);
    }
}
