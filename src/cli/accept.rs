//! `zero3 accept`: the deck on every rank, the backend, the cluster.

use super::args::AcceptArgs;
use super::backend_choice;
use super::launch::{self, Launch};
use super::on_backend::{Work, on_backend};
use crate::accept::verdict::baseline::Baseline;
use crate::accept::{self, Acceptance, RecordPaths, reference_size};
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Backend, Comm};
use crate::batch::signals;
use crate::cli::logging;
use crate::config::acceptance::Deck;
use crate::error::{Exit, Result};
use crate::harness::{Cluster, LocalWork};
use crate::liveness::{StartPlace, start_watch};
use crate::test_hooks;
use std::time::Instant;

/// Signals that end the acceptance after the current section.
const STOP_SIGNALS: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGUSR1];

/// Runs the acceptance on all ranks.
pub(super) fn run(launch: &Launch, args: &AcceptArgs, started: Instant) -> Result<Exit> {
    let group = launch.shard_group()?;
    start_watch::at(StartPlace::Deck);
    // Rank 0 reads the deck and sends it resolved, so that all ranks run the same one.
    let (text, baseline) = decided_by_rank_0(&group, || {
        let deck = Deck::load(&args.deck.path, &args.deck.overrides)?;
        let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?.unwrap_or_default();
        Ok((deck.to_toml(), baseline))
    })?;
    let deck = Deck::parse(&text, &[], "the deck of rank 0")?;
    start_watch::end();
    logging::init(&deck.run.log_level, launch.rank());
    test_hooks::add_to_job(all_or_none(&group, Ok(test_hooks::active()))?.into_iter().flatten());
    if launch.rank() == 0 {
        launch::say_hooks();
    }
    // The choice of a backend does not depend on the model's size.
    let small =
        if deck.training.is_unsized() { deck.with_size(reference_size::SIZES[0]) } else { deck.clone() };
    let reference = small.reference("tokens.u16", &deck.run.dir, deck.training.steps)?;
    let chosen = backend_choice::choose(&group, &reference, &launch.host())?;
    signals::listen(&STOP_SIGNALS);
    let threads = launch.threads(deck.run.threads_per_rank)?;
    let record =
        RecordPaths { baseline: args.record_baseline.clone(), golden_losses: args.record_answers.clone() };
    let command = AcceptCommand { launch, deck: &deck, baseline: &baseline, record, threads, started };
    on_backend(chosen, group, &reference, threads, command)
}

/// Everything known before the backend is opened.
struct AcceptCommand<'a> {
    launch: &'a Launch,
    deck: &'a Deck,
    baseline: &'a Baseline,
    record: RecordPaths,
    threads: usize,
    started: Instant,
}

impl Work for AcceptCommand<'_> {
    type Output = Exit;

    fn on<B: Backend>(self, device: &B::Device, comm: &B::Comm) -> Result<Exit> {
        let AcceptCommand { launch, deck, baseline, record, threads, started } = self;
        let mut versions = launch.versions();
        if !test_hooks::of_job().is_empty() {
            versions.insert("test hooks".into(), test_hooks::of_job().join(", "));
        }
        versions
            .extend(B::library_versions(comm.size() > 1).into_iter().map(|(name, said)| (name.into(), said)));
        let mut facts = launch.facts(threads);
        facts.extend(versions.clone());
        let weakest = reference_size::weakest(comm, &launch.host(), device, threads)?;
        let deck = &reference_size::fitted::<B::Device>(deck, weakest)?;
        let cluster: Cluster<'_, B> = Cluster {
            device,
            comm,
            split: &|color, key| B::group(comm, launch.group(color, key)?),
            hosts: all_or_none(comm, Ok(launch.host()))?,
            versions,
            poison: cfg!(debug_assertions),
            started,
            abort: launch::abort_job,
            local_work: LocalWork::default(),
        };
        accept::run(&Acceptance { cluster, deck, baseline }, &facts, &record)
    }
}
