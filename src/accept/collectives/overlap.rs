//! How much of a collective hides behind compute.

use super::bench::{Bench, Op};
use crate::accept::lab::Lab;
use crate::accept::metric::{Metric, show};
use crate::accept::product::Product;
use crate::backend::comm::Pending;
use crate::backend::{Backend, Comm, Device, Queue};
use crate::dtype::DType;
use crate::error::Result;
use crate::telemetry::quantile::median;
use smallvec::smallvec;
use std::time::Instant;

/// Sides of the matrices, the largest and the smallest: as large as lets several products pass within the collective.
const SIDES: (usize, usize) = (1024, 64);
/// So many at least.
const N_PRODUCTS: f64 = 4.0;

/// How much of an AllGather hides behind products of matrices that take about as long. Collective.
pub fn measure<B: Backend>(lab: &Lab<'_, B>, bytes: u64) -> Result<Metric> {
    let slowest = |own: f64| Ok(lab.gather(own)?.into_iter().fold(0.0, f64::max));
    let n_rounds = lab.deck.collectives.iterations;
    let mut bench = Bench::new(lab, lab.comm, Op::AllGather, bytes)?;
    let mut alone = Vec::new();
    for _ in 0..n_rounds {
        lab.comm.control().barrier()?;
        let started = Instant::now();
        bench.call(lab, lab.comm)?;
        alone.push(started.elapsed().as_secs_f64());
    }
    let comm_s = slowest(median(&alone))?;
    let (mut product, one_s) = fitting_product(lab, comm_s, slowest)?;
    // All ranks compute the same number of products, so that none leaves early.
    let n_products = ((comm_s / one_s).ceil() as usize).clamp(1, 10_000);
    let (mut both, mut computed) = (Vec::new(), Vec::new());
    for _ in 0..n_rounds {
        for with_comm in [false, true] {
            lab.comm.control().barrier()?;
            let started = Instant::now();
            let pending = with_comm.then(|| {
                let (inp, out) = (bench.inp.take().expect("at rest"), bench.out.take().expect("at rest"));
                lab.comm.all_gather(lab.device.record(Queue::Compute), smallvec![inp], smallvec![out])
            });
            for _ in 0..n_products {
                product.multiply(lab);
            }
            if let Some(pending) = pending {
                let landed = pending.wait()?;
                (bench.inp, bench.out) = (landed.inputs.into_iter().next(), landed.outputs.into_iter().next());
            }
            lab.settle()?;
            let took = started.elapsed().as_secs_f64();
            if with_comm { both.push(took) } else { computed.push(took) }
        }
    }
    let (compute_s, both_s) = (median(&computed), median(&both));
    let hidden = lab.gather((comm_s + compute_s - both_s) / comm_s.min(compute_s))?;
    let least = hidden.iter().fold(f64::INFINITY, |a, &b| a.min(b)).clamp(0.0, 1.0);
    let [comm_us, compute_us, both_us] = [comm_s, compute_s, both_s].map(|seconds| show(seconds * 1e6));
    let words = format!("{comm_us} us of communication beside {compute_us} us of compute took {both_us} us");
    Ok(lab.judged("collectives.overlap", least, "", Some(1.0)).because(words))
}

/// The largest product of which several pass in `comm_s`, with the seconds of one. Collective.
fn fitting_product<B: Backend>(
    lab: &Lab<'_, B>,
    comm_s: f64,
    slowest: impl Fn(f64) -> Result<f64>,
) -> Result<(Product, f64)> {
    let mut side = SIDES.0;
    loop {
        let mut product = Product::new(lab, side, DType::F32)?;
        let one_s = slowest(lab.mean_time(0.0, || product.multiply(lab))?.as_secs_f64())?;
        if N_PRODUCTS * one_s <= comm_s || side <= SIDES.1 {
            return Ok((product, one_s));
        }
        side /= 2;
    }
}
