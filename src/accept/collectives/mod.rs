//! Collectives over all ranks and within nodes, in the terms of nccl-tests; every pair of nodes by itself; overlap.
//!
//! Bus bandwidth is that of nccl-tests' doc/PERFORMANCE.md: what the slowest wire carries if the algorithm is a good one, so that
//! it can be held against the hardware whatever the number of ranks.

mod bench;
mod links;
mod overlap;
mod pairs;

pub use bench::{Bench, Op, Point};
pub use pairs::Link;

use super::lab::Lab;
use super::metric::{Metric, show};
use crate::backend::agree::all_or_none;
use crate::backend::mesh::ranks_by_host;
use crate::backend::{Backend, Comm};
use crate::error::Result;
use crate::telemetry::quantile::median;
use bench::measure;
use serde::Serialize;

/// The smallest message.
const FIRST_BYTES: u64 = 8;
/// From one size to the next.
const GROWTH: u64 = 8;
/// Sizes and collectives with wrong values that are named.
const N_BLAMED: usize = 4;
/// Message of the bandwidth between two ends, at most.
const PAIR_BYTES: u64 = 4 << 20;

/// All that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// Sizes of collectives.
    pub points: Vec<Point>,
    /// Pairs; the ends are ranks of the job.
    pub links: Vec<Link>,
}

/// 8 bytes, by factors of 8, to `largest` and that one.
fn sizes(largest: u64) -> Vec<u64> {
    let below = std::iter::successors(Some(FIRST_BYTES), |b| Some(b * GROWTH)).take_while(|&b| b < largest);
    below.chain([largest.max(FIRST_BYTES)]).collect()
}

/// Bytes of the reference model's largest unit.
fn largest_unit_bytes<B: Backend>(lab: &Lab<'_, B>) -> Result<u64> {
    let spec = lab.reference_spec()?;
    let numel = |unit: &crate::params::UnitSpec| unit.params.iter().map(|&p| spec.params[p].numel()).sum::<usize>();
    Ok(spec.units.iter().map(|unit| (numel(unit) * 4) as u64).max().unwrap_or(FIRST_BYTES))
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
        let words = format!(
            "{} bytes, {} us, p99 {} us, algbw {} GB/s",
            top.bytes,
            show(top.mean_us),
            show(top.p99_us),
            show(top.algbw)
        );
        metrics.push(lab.judged(&name("busbw"), top.busbw, "GB/s", None).because(words));
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
        .collect();
    let more = match blame.len().saturating_sub(N_BLAMED) {
        0 => String::new(),
        n => format!("; and {n} more sizes and collectives (report.json has all)"),
    };
    let blame = blame[..blame.len().min(N_BLAMED)].join("; ") + &more;
    metrics.push(Metric::exactly("collectives.n_wrong", n_wrong as f64, 0.0, "", blame));
    if lab.deck.collectives.pairs && lab.comm.library().is_some() {
        measured.links = links::measure(lab, largest.min(PAIR_BYTES))?;
        links::judge(lab, &measured.links, &mut metrics);
    } else {
        metrics.push(Metric::skipped(
            "collectives.slow_links",
            "collectives.pairs is off, or the backend has no point-to-point calls",
        ));
    }
    metrics.push(overlap::measure(lab, largest)?);
    Ok((metrics, measured))
}

/// AllGather of the largest size within each node, all nodes at once; a node well below the median node is named.
fn within_nodes<B: Backend>(
    lab: &Lab<'_, B>,
    largest: u64,
    measured: &mut Measured,
    metrics: &mut Vec<Metric>,
) -> Result<()> {
    let nodes = ranks_by_host(lab.hosts.iter().map(String::as_str));
    if nodes.len() < 2 {
        metrics.push(Metric::skipped("collectives.slow_nodes", "there is one node: all ranks are within it"));
        return Ok(());
    }
    let own = nodes.iter().position(|(_, ranks)| ranks.contains(&lab.rank())).expect("every rank has a host");
    let comm = (lab.split)(own, lab.rank())?;
    let (host, members) = &nodes[own];
    let point = match members.len() {
        1 => None,
        _ => Some(measure(lab, &comm, Op::AllGather, largest, host, members)?),
    };
    // The first rank of each node speaks for it.
    let said = all_or_none(lab.comm, Ok(point.filter(|_| members[0] == lab.rank())))?;
    let of_node: Vec<Point> = said.into_iter().flatten().collect();
    if of_node.is_empty() {
        metrics.push(Metric::skipped("collectives.slow_nodes", "every node has one rank"));
        return Ok(());
    }
    let rates: Vec<f64> = of_node.iter().map(|point| point.busbw).collect();
    let slow = super::device::slow_ranks(&rates, lab.deck.collectives.slow_link);
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
    fn sizes_go_from_8_bytes_to_the_largest_itself() {
        assert_eq!(sizes(1000), [8, 64, 512, 1000]);
        assert_eq!(sizes(512), [8, 64, 512]);
        assert_eq!(sizes(1), [8]);
    }
}
