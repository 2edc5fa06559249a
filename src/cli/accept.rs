//! `zero3 accept`: the deck on every rank, the backend, the lab.

use super::args::AcceptArgs;
use super::launch::{self, Launch};
use crate::accept::baseline::Baseline;
use crate::accept::{self, Lab, Record, size};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::{Cpu, CpuDevice, MpiComm};
use crate::backend::cuda::probe;
use crate::config::BackendKind;
use crate::config::acceptance::Deck;
use crate::error::{Error, Exit, Result};
use crate::telemetry::{logging, signals};
use std::time::Instant;

/// Signals that end the acceptance after the section that is under way.
const STOP_SIGNALS: &str = "TERM,USR1";

/// Runs the acceptance on all ranks.
pub(super) fn run(launch: &Launch, args: &AcceptArgs, started: Instant) -> Result<Exit> {
    let comm = launch.shard_group()?;
    // Rank 0 reads; the others get it resolved, so that all run the same one.
    let (text, baseline) = decided_by_rank_0(&comm, || {
        let deck = Deck::load(&args.deck.path, &args.deck.overrides)?;
        let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?.unwrap_or_default();
        Ok((deck.to_toml(), baseline))
    })?;
    let deck = Deck::parse(&text, &[], "the deck of rank 0")?;
    logging::init(&deck.run.log_level, launch.rank());
    refuse_gpus(&comm, &deck, launch)?;
    signals::listen(&signals::numbers_of(STOP_SIGNALS).expect("written above"));
    let threads = launch.threads(deck.run.threads_per_rank);
    let deck = size::fitted::<CpuDevice>(&deck, size::weakest(&comm, &launch.host(), threads)?)?;
    let device = CpuDevice::new(threads)?;
    let comm = comm.reading_peers();
    let lab: Lab<'_, Cpu> = Lab {
        device: &device,
        comm: &comm,
        split: &|color, key| launch.group(color, key),
        deck: &deck,
        baseline: &baseline,
        hosts: all_or_none(&comm, Ok(launch.host()))?,
        versions: launch.versions(),
        poison: cfg!(debug_assertions),
        started,
        abort: launch::abort_job,
    };
    let record = Record { baseline: args.record_baseline.clone(), answers: args.record_answers.clone() };
    accept::run(&lab, &launch.facts(threads), &record)
}

/// A machine with GPUs must not be accepted by figures of its CPUs, unless that is what the deck asks for. Collective.
fn refuse_gpus(comm: &MpiComm, deck: &Deck, launch: &Launch) -> Result<()> {
    if deck.run.backend != BackendKind::Auto {
        return Ok(());
    }
    let n_gpus = probe::devices(false).map_or(0, |gpus| gpus.len());
    let own = match n_gpus {
        0 => Ok(()),
        n => Err(Error::Input(format!(
            "rank {} on {} sees {n} GPU{}, which `zero3 accept` cannot measure yet; set run.backend=cpu to judge the CPUs, the network \
             and the storage alone",
            launch.rank(),
            launch.host(),
            if n == 1 { "" } else { "s" }
        ))),
    };
    all_or_none(comm, own).map(|_| ())
}
