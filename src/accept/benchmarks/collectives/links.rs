//! Round trips between pairs: latency and bandwidth of every link, and which links are slow.

use crate::accept::acceptance::Acceptance;
use crate::accept::facts::LinkTimes;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::metric_limits;
use crate::accept::verdict::outliers::{Outlier, outliers};
use crate::backend::library::{Library, ping_pong};
use crate::backend::mesh::ranks_by_host;
use crate::backend::{Backend, Buf, Comm};
use crate::dtype::DType;
use crate::error::Result;
use crate::harness::rounds;
use crate::test_hooks;
use std::time::Instant;

/// Round trips between the first ranks of all nodes, pair by pair; of one node, between all its ranks, one
/// pair at a time.
pub fn measure<B: Backend>(acceptance: &Acceptance<'_, B>, bytes: u64) -> Result<Vec<LinkTimes>> {
    let cluster = &acceptance.cluster;
    let nodes = ranks_by_host(cluster.hosts.iter().map(String::as_str));
    let (ends, together): (Vec<usize>, bool) = match nodes.len() {
        1 => ((0..cluster.n()).collect(), false),
        _ => (nodes.iter().map(|(_, ranks)| ranks[0]).collect(), true),
    };
    let mut schedule = rounds(ends.len());
    if !together {
        // Pairs of one node at the same time would share its cores and memory.
        schedule = schedule.into_iter().flatten().map(|pair| vec![pair]).collect();
    }
    let numel = (bytes / 4).max(2) as usize;
    let mut bufs =
        cluster.buffers(&[(2, DType::F32), (2, DType::F32), (numel, DType::F32), (numel, DType::F32)])?;
    let own = ends.iter().position(|&rank| rank == cluster.rank());
    let mut times = vec![0.0; 2 * ends.len()];
    let library = cluster.comm.library().expect("checked by the caller");
    for round in &schedule {
        library.quiet_barrier()?;
        let pair = round.iter().find(|(a, b)| own == Some(*a) || own == Some(*b));
        let Some(&(a, b)) = pair else { continue };
        let peer = if own == Some(a) { b } else { a };
        for (i, bufs) in bufs.chunks_exact_mut(2).enumerate() {
            let time = round_trip(acceptance, library, ends[peer], bufs)?;
            times[2 * peer + i] = time / 2.0;
        }
    }
    let all = cluster.comm.control().all_gather_f64(&times)?;
    let half_trip = |a: usize, b: usize, i: usize| all[ends[a] * times.len() + 2 * b + i];
    let link = |&(a, b): &(usize, usize)| LinkTimes {
        a: ends[a],
        b: ends[b],
        latency_us: half_trip(a, b, 0) * 1e6,
        gb_per_s: numel as f64 * 4.0 / half_trip(a, b, 1) / 1e9,
    };
    Ok(schedule.iter().flatten().map(link).collect())
}

/// Seconds of the shortest round trip: other processes on a node only add to it.
fn round_trip<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    library: &dyn Library,
    peer: usize,
    bufs: &mut [Buf],
) -> Result<f64> {
    let cluster = &acceptance.cluster;
    let (out, inp) = bufs.split_at_mut(1);
    let mut least = f64::INFINITY;
    let c = &acceptance.deck.collectives;
    for i in 0..c.warmup + c.iterations {
        let started = Instant::now();
        ping_pong(library, cluster.rank(), peer, &mut out[0], &inp[0])?;
        test_hooks::delay_link(cluster.rank(), peer);
        if i >= c.warmup {
            least = least.min(started.elapsed().as_secs_f64());
        }
    }
    Ok(least)
}

/// The metrics of the links.
pub fn judge<B: Backend>(acceptance: &Acceptance<'_, B>, links: &[LinkTimes], metrics: &mut Vec<Metric>) {
    let cluster = &acceptance.cluster;
    let worst =
        links.iter().max_by(|x, y| x.latency_us.total_cmp(&y.latency_us)).expect("two ranks make a link");
    let words = format!("{} to {}", cluster.name(worst.a), cluster.name(worst.b));
    metrics.push(acceptance.judged(metric_limits::LATENCY, worst.latency_us, "us", None).because(words));
    let slowest = links.iter().map(|l| l.gb_per_s).fold(f64::INFINITY, f64::min);
    metrics.push(Metric::info("collectives.slowest_link", slowest, "GB/s"));
    let slow: Vec<String> = outliers(links, acceptance.deck.collectives.slow_link)
        .iter()
        .map(|outlier| match *outlier {
            Outlier::Node(end) => format!("every link of {} ({})", cluster.hosts[end], cluster.name(end)),
            Outlier::Link(a, b) => {
                let link = links.iter().find(|l| (l.a, l.b) == (a, b)).expect("an outlier is a link");
                let (us, gb_per_s) = (show(link.latency_us), show(link.gb_per_s));
                format!("link {} - {}: {us} us, {gb_per_s} GB/s", cluster.name(a), cluster.name(b))
            }
        })
        .collect();
    metrics.push(match links.len() {
        0..3 => Metric::skipped(
            "collectives.slow_links",
            "fewer than three links: none can be compared with the median",
        ),
        _ => Metric::none_of("collectives.slow_links", &slow),
    });
}
