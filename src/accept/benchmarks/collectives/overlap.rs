//! How much of a collective is hidden behind compute.

use crate::accept::acceptance::Acceptance;
use crate::accept::benchmarks::square_product::SquareProduct;
use crate::accept::verdict::metric::{Metric, show};
use crate::accept::verdict::metric_limits;
use crate::backend::comm::Pending;
use crate::backend::{Backend, Comm, Device, Queue};
use crate::dtype::DType;
use crate::error::Result;
use crate::harness::{Cluster, CollectiveBench, CollectiveOp};
use crate::quantile::median;
use smallvec::smallvec;
use std::time::Instant;

/// Largest and smallest side of the matrices.
const SIDES: (usize, usize) = (1024, 64);
/// Products that should fit into the time of the collective.
const N_PRODUCTS: f64 = 4.0;

/// How much of an AllGather is hidden behind matrix products that take about as long. Collective.
pub fn measure<B: Backend>(acceptance: &Acceptance<'_, B>, bytes: u64) -> Result<Metric> {
    let cluster = &acceptance.cluster;
    let slowest = |own: f64| Ok(cluster.gather(own)?.into_iter().fold(0.0, f64::max));
    let n_rounds = acceptance.deck.collectives.iterations;
    let mut bench = CollectiveBench::new(cluster, cluster.comm, CollectiveOp::AllGather, bytes)?;
    let mut alone = Vec::new();
    for _ in 0..n_rounds {
        cluster.comm.control().barrier()?;
        let started = Instant::now();
        bench.call(cluster, cluster.comm)?;
        alone.push(started.elapsed().as_secs_f64());
    }
    let comm_s = slowest(median(&alone))?;
    let (mut product, one_s) = fitting_product(cluster, comm_s, slowest)?;
    // All ranks compute the same number of products, so that none leaves early.
    let n_products = ((comm_s / one_s).ceil() as usize).clamp(1, 10_000);
    let (mut both, mut computed) = (Vec::new(), Vec::new());
    for _ in 0..n_rounds {
        for with_comm in [false, true] {
            cluster.comm.control().barrier()?;
            let started = Instant::now();
            let pending = with_comm.then(|| {
                let (inp, out) = (
                    bench.inp.take().expect("no call is in flight"),
                    bench.out.take().expect("no call is in flight"),
                );
                cluster.comm.all_gather(cluster.device.record(Queue::Compute), smallvec![inp], smallvec![out])
            });
            for _ in 0..n_products {
                product.multiply(cluster.device);
            }
            if let Some(pending) = pending {
                let landed = pending.wait()?;
                (bench.inp, bench.out) =
                    (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            cluster.settle()?;
            let took = started.elapsed().as_secs_f64();
            if with_comm { both.push(took) } else { computed.push(took) }
        }
    }
    let (compute_s, both_s) = (median(&computed), median(&both));
    let hidden = cluster.gather((comm_s + compute_s - both_s) / comm_s.min(compute_s))?;
    let least = hidden.iter().fold(f64::INFINITY, |a, &b| a.min(b)).clamp(0.0, 1.0);
    let [comm_us, compute_us, both_us] = [comm_s, compute_s, both_s].map(|seconds| show(seconds * 1e6));
    let words = format!("{comm_us} us of communication beside {compute_us} us of compute took {both_us} us");
    Ok(acceptance.judged(metric_limits::OVERLAP, least, "", Some(1.0)).because(words))
}

/// The largest product of which several fit into `comm_s`, and the seconds of one. Collective.
fn fitting_product<B: Backend>(
    cluster: &Cluster<'_, B>,
    comm_s: f64,
    slowest: impl Fn(f64) -> Result<f64>,
) -> Result<(SquareProduct, f64)> {
    let mut side = SIDES.0;
    loop {
        let mut product = SquareProduct::new(cluster, side, DType::F32)?;
        let one_s = slowest(cluster.mean_time(0.0, || product.multiply(cluster.device))?.as_secs_f64())?;
        if N_PRODUCTS * one_s <= comm_s || side <= SIDES.1 {
            return Ok((product, one_s));
        }
        side /= 2;
    }
}
