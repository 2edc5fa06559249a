//! `zero3 plan --calibrate`: the cost model of `plan/forecast/` fitted to this machine, and its error against
//! training runs.
//!
//! Reading order: [`run`] here, `kernels.rs` and `link_fit.rs` (what is measured), `fit.rs` (least squares),
//! `trials.rs` (predicted beside measured steps).
//!
//! Must not know: command lines, acceptance, the backend.

mod fit;
mod kernels;
mod link_fit;
mod node;
mod trials;

pub use node::Node;

use crate::backend::agree::decided_by_rank_0;
use crate::backend::{Backend, Device};
use crate::config::GatherRoute;
use crate::config::hardware::Hardware;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files;
use crate::harness::{Cluster, CollectiveOp};
use crate::human;
use crate::plan::forecast::cost;
use crate::plan::forecast::traffic::Layout;
use crate::work::Kernel;
use kernels::MeasuredKernel;
use link_fit::{CollectiveSample, LinkFit};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use trials::Trial;

/// Measures, writes the hardware file to `out`, and compares its predictions with `rounds` of training runs.
/// Returns the results as text, on rank 0. Collective.
///
/// # Errors
/// The directory to train in, beside `out`, exists or cannot be created; a measurement or a run fails.
pub fn run<B: Backend>(cluster: &Cluster<'_, B>, node: Node, rounds: usize, out: &Path) -> Result<String> {
    let work = out.with_extension("work");
    if work.to_str().is_none() {
        return Err(Error::Input(format!(
            "--out {}: not UTF-8, and decks name the directory beside it that --calibrate trains in; give \
             another path",
            out.display()
        )));
    }
    decided_by_rank_0(cluster.comm, || std::fs::create_dir(&work).map_err(|e| no_work_dir(&work, &e)))?;
    let outcome = measured(cluster, node, rounds, out, &work);
    decided_by_rank_0(cluster.comm, || {
        std::fs::remove_dir_all(&work).map_err(|e| Error::io("remove", &work, &e))
    })?;
    outcome
}

/// Refuses a directory that exists: its files would be removed.
fn no_work_dir(work: &Path, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::AlreadyExists => Error::Input(format!(
            "{}: exists, and --calibrate would train in it and remove it; remove it, or write to another \
             --out",
            work.display()
        )),
        _ => Error::io("mkdir", work, error),
    }
}

fn measured<B: Backend>(
    cluster: &Cluster<'_, B>,
    node: Node,
    rounds: usize,
    out: &Path,
    work: &Path,
) -> Result<String> {
    let load_before = load();
    let n_at_once = cluster.n().min(node.devices).max(1);
    let group = (cluster.split)(usize::from(cluster.rank() >= n_at_once), cluster.rank())?;
    let own = if cluster.rank() < n_at_once { kernels::measure(cluster, &group)? } else { Vec::new() };
    cluster.quiet_barrier()?;
    let (mut gathers, mut reductions) = (Vec::new(), Vec::new());
    for n in 2..=n_at_once.max(cluster.n().min(2)) {
        let group = (cluster.split)(usize::from(cluster.rank() >= n), cluster.rank())?;
        if cluster.rank() < n {
            gathers.extend(link_fit::measure(cluster, &group, CollectiveOp::AllGather)?);
            reductions.extend(link_fit::measure(cluster, &group, CollectiveOp::ReduceScatter)?);
        }
        cluster.quiet_barrier()?;
    }
    // Rank 0 is in every group, and so has all samples.
    let (file, fits) = decided_by_rank_0(cluster.comm, || {
        let (hardware, fits) = fitted(cluster, node, &own, &gathers, &reductions);
        let file = hardware.to_commented_toml();
        files::write_output(out, file.as_bytes())?;
        Ok((file, fits))
    })?;
    let hardware = Hardware::parse(&file, &[], "the file that was written")?;
    let tried = trials::run(cluster, &hardware, node, rounds, work)?;
    let mut text = format!(
        "calibrated on {} of {} each, {n_at_once} of them with cores to themselves; load {load_before} \
         before, {} after\n\n{fits}",
        human::counted(cluster.n(), "rank"),
        human::counted(node.threads, "thread"),
        load()
    );
    write_trials(&mut text, &tried);
    write!(
        text,
        "\nwritten: {}; `zero3 plan DECK --ranks N --hardware {}` predicts with it",
        out.display(),
        out.display()
    )
    .expect("a String does not fail");
    Ok(text)
}

/// The load average of the last minute, or `unknown`.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|t| !t.is_empty()).unwrap_or("unknown").into()
}

/// The hardware file of what was measured, and a table of the fits.
fn fitted<B: Backend>(
    cluster: &Cluster<'_, B>,
    node: Node,
    kernels: &[MeasuredKernel],
    gathers: &[CollectiveSample],
    reductions: &[CollectiveSample],
) -> (Hardware, String) {
    let of = |kernel: Kernel, dtype: DType| kernels.iter().find(|m| m.kernel == kernel && m.dtype == dtype);
    let best = |dtype: DType| {
        let linear = [Kernel::LinearForward, Kernel::LinearBackwardInput, Kernel::LinearBackwardWeight];
        linear.into_iter().filter_map(|k| of(k, dtype)).map(|m| m.best_flops).fold(0.0, f64::max) / 1e12
    };
    let stream = of(Kernel::Stream, DType::F32).expect("it is among the measured kernels");
    let mut hardware = Hardware::default();
    let h = &mut hardware.hardware;
    h.name = cluster.device.describe();
    h.kind = B::KIND.device_kind();
    h.measured = true;
    h.source = format!(
        "zero3 plan --calibrate: {} ranks of {} threads; peaks are the best product measured{}",
        cluster.n(),
        node.threads,
        match gathers.is_empty() {
            true => "; one rank has no peers: links are assumed as fast as memory",
            false =>
                "; the network between nodes was not measured: it is assumed as fast as the links within",
        }
    );
    let device = &mut hardware.device;
    (device.f32_tflops, device.bf16_tflops) = (best(DType::F32), best(DType::Bf16));
    device.memory_gb = node.memory_bytes.map_or(1.0, |bytes| bytes as f64 / node.devices as f64 / 1e9);
    device.memory_gb_per_s = stream.best_bytes / 1e9;
    hardware.node.devices = node.devices;
    hardware.assumed.links = 1.0;
    hardware.assumed.launch_us = 0.0;
    // A collective runs on a thread of the rank's cores.
    hardware.assumed.contention = 1.0 / node.threads as f64;
    for measured in kernels {
        hardware.set_measured(measured.kernel, measured.dtype, measured.rate);
    }
    hardware.network.gather = GatherRoute::Direct;
    let memory = hardware.device.memory_gb_per_s;
    (hardware.node.gb_per_s, hardware.network.gb_per_s) = (memory, memory);
    // The time of a collective without its links: the work on the rank's slice.
    let local = hardware.clone();
    let alone = cost::Machine::new(&local, Layout::new(1, 1), false).expect("a node has a rank");
    let gather = (!gathers.is_empty()).then(|| LinkFit::of(gathers, |slice| alone.all_gather_s(slice)));
    let reduce = (!reductions.is_empty())
        .then(|| LinkFit::of(reductions, |slice| alone.reduce_s(slice / 4, DType::F32, 1, true, 1)));
    if let (Some(gather), Some(reduce)) = (gather, reduce) {
        let us = |of: fn(&LinkFit) -> f64| (of(&gather) + of(&reduce)) / 2.0 * 1e6;
        hardware.node.latency_us = us(|link| link.latency_s);
        hardware.node.message_us = us(|link| link.peer_s);
        hardware.node.gb_per_s = gather.bytes_per_s / 1e9;
        hardware.node.reduce_gb_per_s = reduce.bytes_per_s / 1e9;
        hardware.network.gb_per_s = hardware.node.gb_per_s;
        hardware.network.latency_us = hardware.node.latency_us;
        hardware.network.message_us = hardware.node.message_us;
    }
    let mut words =
        String::from("fits: time of an empty call, of FLOPs and of bytes; worst error of a measured shape\n");
    for m in kernels {
        let name = format!("{} {}", m.kernel.name(), m.dtype.name());
        writeln!(words, "  {name:<28} {:<44} {:>5.0} %", m.rate.to_string(), 100.0 * m.worst)
            .expect("a String does not fail");
    }
    for (name, link) in [("all-gather", gather), ("reduce-scatter", reduce)] {
        if let Some(link) = link {
            let rate = format!(
                "{:.1} us, {:.1} us a peer, {:.2} GB/s",
                link.latency_s * 1e6,
                link.peer_s * 1e6,
                link.bytes_per_s / 1e9
            );
            writeln!(words, "  {name:<28} {rate:<44} {:>5.0} %", 100.0 * link.worst)
                .expect("a String does not fail");
        }
    }
    (hardware, words)
}

fn write_trials(text: &mut String, trials: &[Trial]) {
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(
        "\npredicted beside measured, for models that the fits have not seen. A prediction is for a machine \
         that runs"
            .into(),
    );
    line(
        "nothing else: it is compared with the median step of the quickest round; the slowest round is \
         beside it"
            .into(),
    );
    line(format!(
        "  {:<16} {:>5} {:>11} {:>10} {:>12} {:>8} {:>18}",
        "model", "ranks", "measured ms", "slowest", "predicted ms", "error", "exposed meas/pred"
    ));
    for t in trials {
        line(format!(
            "  {:<16} {:>5} {:>11.2} {:>10.2} {:>12.2} {:>+6.1} % {:>7.1} % / {:>4.1} %{}",
            t.model,
            t.n_ranks,
            t.measured_s * 1e3,
            t.slowest_s * 1e3,
            t.predicted_s * 1e3,
            100.0 * t.error(),
            100.0 * t.measured_exposed,
            100.0 * t.predicted_exposed,
            if t.shared_cores { "  ranks share cores" } else { "" }
        ));
    }
    let n_ranks: BTreeSet<usize> = trials.iter().map(|t| t.n_ranks).collect();
    for n in n_ranks {
        let errors: Vec<f64> = trials.iter().filter(|t| t.n_ranks == n).map(|t| t.error().abs()).collect();
        let (mean, worst) =
            (errors.iter().sum::<f64>() / errors.len() as f64, errors.iter().copied().fold(0.0, f64::max));
        line(format!(
            "  {}: mean error {:.1} %, worst {:.1} %",
            human::counted(n, "rank"),
            100.0 * mean,
            100.0 * worst
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::hardware::Rate;
    use crate::optimizers::OptimizerKind;
    use crate::work::Work;

    const UPDATE: Kernel = Kernel::Update(OptimizerKind::Adamw);

    #[test]
    fn a_measured_kernel_reads_back_and_another_is_absent() {
        let mut hardware = Hardware::default();
        assert_eq!(hardware.measured(UPDATE, DType::F32), None);
        let rate = Rate { launch_s: 1e-6, s_per_flop: 0.0, s_per_byte: 1e-10 };
        hardware.set_measured(UPDATE, DType::F32, rate);
        let back = hardware.measured(UPDATE, DType::F32).unwrap();
        let time =
            |rate: Rate| rate.launch_s + Work::pass(UPDATE, DType::F32, 1 << 20).bytes * rate.s_per_byte;
        assert!((time(back) / time(rate) - 1.0).abs() < 1e-4);
    }
}
