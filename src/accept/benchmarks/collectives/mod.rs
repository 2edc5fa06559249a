//! Collectives over all ranks and within nodes, in the terms of nccl-tests; every pair of nodes by itself;
//! overlap with compute.
//!
//! Bus bandwidth is that of nccl-tests' doc/PERFORMANCE.md: the rate over the slowest link under an optimal
//! algorithm, so that it can be compared with the hardware whatever the number of ranks.

mod links;
mod overlap;

use crate::accept::acceptance::Acceptance;
use crate::accept::facts::CollectiveFacts;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::metric_limits::{self, LimitedMetric};
use crate::accept::verdict::outliers::slow_members;
use crate::backend::agree::all_or_none;
use crate::backend::mesh::ranks_by_host;
use crate::backend::{Backend, Comm};
use crate::error::Result;
use crate::harness::{Calls, CollectiveOp, CollectiveTime};
use crate::params::UnitSpec;
use crate::quantile::median;

/// Bytes of the smallest message.
const FIRST_BYTES: u64 = 8;
/// Factor from one size to the next.
const GROWTH: u64 = 8;
/// Sizes and collectives with wrong values that are named in a reason.
const N_BLAMED: usize = 4;
/// Largest message between two ranks, bytes.
const PAIR_BYTES: u64 = 4 << 20;

/// 8 bytes, 64 and so on below `largest`, and `largest` itself.
fn sizes(largest: u64) -> Vec<u64> {
    let below = std::iter::successors(Some(FIRST_BYTES), |b| Some(b * GROWTH)).take_while(|&b| b < largest);
    below.chain([largest.max(FIRST_BYTES)]).collect()
}

/// Bytes of the reference model's largest unit.
fn largest_unit_bytes<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<u64> {
    let spec = acceptance.reference_spec()?;
    let numel = |unit: &UnitSpec| unit.params.iter().map(|&p| spec.params[p].numel()).sum::<usize>();
    Ok(spec.units.iter().map(|unit| (numel(unit) * 4) as u64).max().unwrap_or(FIRST_BYTES))
}

/// The metric of a collective's bus bandwidth.
fn busbw(op: CollectiveOp) -> LimitedMetric {
    match op {
        CollectiveOp::AllGather => metric_limits::ALL_GATHER,
        CollectiveOp::ReduceScatter => metric_limits::REDUCE_SCATTER,
        CollectiveOp::LibraryReduceScatter => metric_limits::LIBRARY_REDUCE_SCATTER,
        CollectiveOp::AllReduce => metric_limits::ALL_REDUCE,
        CollectiveOp::Broadcast => metric_limits::BROADCAST,
        CollectiveOp::PointToPoint => metric_limits::POINT_TO_POINT,
    }
}

fn calls<B: Backend>(acceptance: &Acceptance<'_, B>) -> Calls {
    Calls { warmup: acceptance.deck.collectives.warmup, timed: acceptance.deck.collectives.iterations }
}

/// The section. Collective.
pub fn run<B: Backend>(acceptance: &Acceptance<'_, B>) -> Result<(Vec<Metric>, CollectiveFacts)> {
    let cluster = &acceptance.cluster;
    let n = cluster.n();
    if n == 1 {
        let why = "one rank has no peers to exchange messages with";
        return Ok((vec![Metric::skipped("collectives", why)], CollectiveFacts::default()));
    }
    let mut measured = CollectiveFacts::default();
    let mut metrics = Vec::new();
    let calls = calls(acceptance);
    let largest = match acceptance.deck.collectives.max_bytes {
        0 => largest_unit_bytes(acceptance)?,
        bytes => bytes,
    };
    let all_ranks: Vec<usize> = (0..n).collect();
    for op in CollectiveOp::ALL {
        if cluster.comm.library().is_none()
            && !matches!(op, CollectiveOp::AllGather | CollectiveOp::ReduceScatter)
        {
            let why = "the backend gives no access to the collectives of its library";
            metrics.push(Metric::skipped(busbw(op).name, why));
            continue;
        }
        for bytes in sizes(largest) {
            let time = CollectiveTime::measure(cluster, cluster.comm, op, bytes, calls, "all", &all_ranks)?;
            measured.points.push(time);
        }
        let top = measured.points.last().expect("one size at least");
        let words = format!(
            "{} bytes, {} us, p99 {} us, algbw {} GB/s",
            top.bytes,
            show(top.mean_us),
            show(top.p99_us),
            show(top.algbw)
        );
        metrics.push(acceptance.judged(busbw(op), top.busbw, "GB/s", None).because(words));
    }
    within_nodes(acceptance, largest, &mut measured, &mut metrics)?;
    let n_wrong: u64 = measured.points.iter().map(|p| p.n_wrong).sum();
    let blame: Vec<String> = measured
        .points
        .iter()
        .filter(|p| p.n_wrong > 0)
        .map(|p| {
            let ranks: Vec<String> = p.wrong_ranks.iter().map(|&r| cluster.name(r)).collect();
            format!("{} of {} bytes: {} wrong on {}", p.op.name(), p.bytes, p.n_wrong, ranks.join(", "))
        })
        .collect();
    let more = match blame.len().saturating_sub(N_BLAMED) {
        0 => String::new(),
        n => format!("; and {n} more sizes and collectives (all are in report.json)"),
    };
    let blame = blame[..blame.len().min(N_BLAMED)].join("; ") + &more;
    metrics.push(Metric::exactly("collectives.n_wrong", n_wrong as f64, 0.0, "", blame));
    if acceptance.deck.collectives.pairs && cluster.comm.library().is_some() {
        measured.links = links::measure(acceptance, largest.min(PAIR_BYTES))?;
        links::judge(acceptance, &measured.links, &mut metrics);
    } else {
        metrics.push(Metric::skipped(
            "collectives.slow_links",
            "collectives.pairs is off, or the backend has no point-to-point messages",
        ));
    }
    metrics.push(overlap::measure(acceptance, largest)?);
    Ok((metrics, measured))
}

/// AllGather of the largest size within each node, all nodes at once; a node well below the median node is
/// named. Collective.
fn within_nodes<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    largest: u64,
    measured: &mut CollectiveFacts,
    metrics: &mut Vec<Metric>,
) -> Result<()> {
    let cluster = &acceptance.cluster;
    let nodes = ranks_by_host(cluster.hosts.iter().map(String::as_str));
    if nodes.len() < 2 {
        metrics.push(Metric::skipped("collectives.slow_nodes", "all ranks are on one node"));
        return Ok(());
    }
    let own =
        nodes.iter().position(|(_, ranks)| ranks.contains(&cluster.rank())).expect("every rank has a host");
    let comm = (cluster.split)(own, cluster.rank())?;
    let (host, members) = &nodes[own];
    let point = match members.len() {
        1 => None,
        _ => {
            let (op, calls) = (CollectiveOp::AllGather, calls(acceptance));
            Some(CollectiveTime::measure(cluster, &comm, op, largest, calls, host, members)?)
        }
    };
    // The first rank of each node reports for it.
    let reported = all_or_none(cluster.comm, Ok(point.filter(|_| members[0] == cluster.rank())))?;
    let of_node: Vec<CollectiveTime> = reported.into_iter().flatten().collect();
    if of_node.is_empty() {
        metrics.push(Metric::skipped("collectives.slow_nodes", "every node has one rank"));
        return Ok(());
    }
    let rates: Vec<f64> = of_node.iter().map(|point| point.busbw).collect();
    let slow = slow_members(&rates, acceptance.deck.collectives.slow_link);
    let words: Vec<String> = slow
        .iter()
        .map(|&i| {
            let (host, own, middle) = (&of_node[i].scope, show(rates[i]), show(median(&rates)));
            format!("{host}: AllGather within the node {own} GB/s, the median node {middle}")
        })
        .collect();
    measured.points.extend(of_node);
    metrics.push(Metric::none_of("collectives.slow_nodes", &words));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_has_the_metric_of_its_name() {
        for op in CollectiveOp::ALL {
            assert_eq!(busbw(op).name, format!("collectives.{}.busbw", op.name()));
        }
    }

    #[test]
    fn sizes_go_from_8_bytes_to_the_largest_itself() {
        assert_eq!(sizes(1000), [8, 64, 512, 1000]);
        assert_eq!(sizes(512), [8, 64, 512]);
        assert_eq!(sizes(1), [8]);
    }
}
