//! `zero3 plan --calibrate`: describes this node and this job to `calibrate/`.

use super::args::PlanArgs;
use super::launch::{self, Launch};
use crate::backend::agree::all_or_none;
use crate::backend::cpu::{Cpu, CpuComm, CpuDevice};
use crate::backend::mesh::ranks_by_host;
use crate::backend::{Backend, Comm};
use crate::calibrate::{self, Node};
use crate::cli::logging;
use crate::error::{Error, Exit, Result};
use crate::harness::{Cluster, LocalWork};
use crate::liveness::start_watch;
use crate::say;
use crate::train::node_memory::NodeMemory;
use std::time::Instant;

/// Measures on all ranks. GPUs cannot be calibrated yet.
pub(super) fn run(launch: &Launch, args: &PlanArgs, started: Instant) -> Result<Exit> {
    start_watch::end();
    logging::init("warn", launch.rank());
    let threads = launch.threads(0)?;
    let device = CpuDevice::new(threads)?;
    let comm = CpuComm::connect(launch.shard_group()?, true)?;
    let hosts = all_or_none(&comm, Ok(launch.host()))?;
    let n_here = ranks_by_host(hosts.iter().map(String::as_str))[0].1.len();
    // A launcher binds a single rank of a node to one core.
    let cores = launch.cores_of_node()?;
    let cores = if comm.size() == 1 { cores.max(online_cores()) } else { cores };
    let node = Node {
        devices: (cores / threads).max(1),
        threads,
        ranks_per_node: n_here,
        memory_bytes: NodeMemory::here().map(|memory| memory.limit_bytes),
    };
    let cluster: Cluster<'_, Cpu> = Cluster {
        device: &device,
        comm: &comm,
        split: &|color, key| Cpu::group(&comm, launch.group(color, key)?),
        hosts,
        versions: launch.versions(),
        poison: false,
        started,
        abort: launch::abort_job,
        local_work: LocalWork::default(),
    };
    let text = calibrate::run(&cluster, node, args.rounds, &args.out)?;
    if launch.rank() == 0 {
        say::out(&text).map_err(|e| Error::Io(format!("standard output: {e}")))?;
    }
    Ok(Exit::Finished)
}

/// Cores of this node that are online.
fn online_cores() -> usize {
    std::fs::read_to_string("/proc/cpuinfo")
        .map_or(1, |text| text.lines().filter(|l| l.starts_with("processor")).count())
}
