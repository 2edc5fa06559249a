//! `zero3 plan --calibrate`: this machine on every rank, the lab, the hardware file.

use super::args::PlanArgs;
use super::launch::{self, Launch};
use crate::accept::Lab;
use crate::accept::baseline::Baseline;
use crate::accept::deadline::OwnWork;
use crate::backend::agree::all_or_none;
use crate::backend::cpu::{Cpu, CpuComm, CpuDevice};
use crate::backend::mesh::ranks_by_host;
use crate::backend::{Backend, Comm};
use crate::calibrate::{self, Machine};
use crate::config::acceptance::Deck;
use crate::error::{Exit, Result};
use crate::telemetry::logging;
use crate::train::node_memory::NodeMemory;
use std::time::Instant;

/// What the lab asks of an acceptance deck: its sections do not run, its model lends the tokens their vocabulary and is not trained.
const LAB_DECK: &str =
    "[run]\ndir = \"calibration\"\n[training]\nn_layer = 4\nn_head = 4\nd_model = 128\nvocab_size = 512\n";

/// Measures on all ranks. GPUs are not looked at: there is no measuring of them yet.
pub(super) fn run(launch: &Launch, args: &PlanArgs, started: Instant) -> Result<Exit> {
    logging::init("warn", launch.rank());
    let deck = Deck::parse(LAB_DECK, &[], "the lab")?;
    let threads = launch.threads(0)?;
    let device = CpuDevice::new(threads)?;
    let comm = CpuComm::connect(launch.shard_group()?, true)?;
    let hosts = all_or_none(&comm, Ok(launch.host()))?;
    let n_here = ranks_by_host(hosts.iter().map(String::as_str))[0].1.len();
    // A launcher binds the only rank of a node to one of its cores.
    let cores = launch.cores_of_node()?;
    let cores = if comm.size() == 1 { cores.max(online_cores()) } else { cores };
    let machine = Machine {
        devices: (cores / threads).max(1),
        threads,
        ranks_per_node: n_here,
        memory_bytes: NodeMemory::here().map(|memory| memory.limit_bytes),
    };
    let lab: Lab<'_, Cpu> = Lab {
        device: &device,
        comm: &comm,
        split: &|color, key| Cpu::group(&comm, launch.group(color, key)?),
        deck: &deck,
        baseline: &Baseline::default(),
        hosts,
        versions: launch.versions(),
        poison: false,
        started,
        abort: launch::abort_job,
        own_work: OwnWork::default(),
    };
    let text = calibrate::run(&lab, machine, args.rounds, &args.out)?;
    if launch.rank() == 0 {
        println!("{text}");
    }
    Ok(Exit::Finished)
}

/// Cores of this node that are switched on.
fn online_cores() -> usize {
    std::fs::read_to_string("/proc/cpuinfo")
        .map_or(1, |text| text.lines().filter(|l| l.starts_with("processor")).count())
}
