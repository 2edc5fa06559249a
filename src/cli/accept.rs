//! `zero3 accept`: the deck on every rank, the backend, the lab.

use super::args::AcceptArgs;
use super::launch::{self, Launch};
use crate::accept::baseline::Baseline;
use crate::accept::{self, Lab, Record};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::cpu::{Cpu, CpuDevice};
use crate::config::acceptance::Deck;
use crate::error::{Exit, Result};
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
    signals::listen(&signals::numbers_of(STOP_SIGNALS).expect("written above"));
    let threads = launch.threads(deck.run.threads_per_rank);
    let device = CpuDevice::new(threads)?;
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
