//! How much of a collective hides behind compute.

use super::bench::{Bench, Op};
use crate::accept::lab::Lab;
use crate::accept::metric::Metric;
use crate::backend::comm::Pending;
use crate::backend::ops::LinearShape;
use crate::backend::{Backend, Comm, Device, Ops, Queue};
use crate::dtype::DType;
use crate::error::Result;
use crate::telemetry::quantile::median;
use std::time::Instant;

/// How much of an AllGather hides behind a product of matrices that takes about as long. Collective.
pub fn measure<B: Backend>(lab: &Lab<'_, B>, bytes: u64) -> Result<Metric> {
    let n = lab.deck.device.gemm_n.min(512);
    let shape = LinearShape { rows: n, n_in: n, n_out: n };
    let work_numel = B::Device::linear_forward_work_numel(shape, DType::F32, DType::F32, DType::F32);
    let mut bufs =
        lab.buffers(&[(n * n, DType::F32), (n * n, DType::F32), (n * n, DType::F32), (work_numel, DType::F32)])?;
    let [out, inp, weight, work] = bufs.as_mut_slice() else { unreachable!("four were asked for") };
    let mut bench = Bench::new(lab, lab.comm, Op::AllGather, bytes)?;
    let one = lab.mean_time(0.0, || {
        lab.device.linear_forward(out.view_mut(), inp.view(), weight.view(), None, work.view_mut(), shape)
    })?;
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
            lab.settle()?;
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
    Ok(lab.judged("collectives.overlap", least, "", Some(1.0)).because(words))
}
