//! Training runs on all ranks or on groups of them, within one job. Each is `train::run`, as `zero3 train`
//! calls it, in its own run directory, and is observed after every step.
//!
//! Must not know: why a run is made.

use super::cluster::Cluster;
use crate::backend::Backend;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::config;
use crate::error::{Error, Exit, Result};
use crate::files;
use crate::quantile::median;
use crate::random::SplitMix64;
use crate::telemetry::{RankStep, StepRow};
use crate::train::state::Start;
use crate::train::{self, Job};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Results and times of a run; the same on every rank of its group.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TrainedRun {
    /// Loss of each step.
    pub losses: Vec<f64>,
    /// Gradient norm of each step.
    pub grad_norms: Vec<f64>,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// Milliseconds of each step, of the slowest rank.
    pub step_ms: Vec<f64>,
    /// Share of each step that the mean rank waited for collectives.
    pub exposed: Vec<f64>,
    /// By rank and step: milliseconds without waits for collectives.
    pub compute_ms: Vec<Vec<f64>>,
    /// Exit code, as `zero3 train` would return it.
    pub exit: i32,
    /// Length of the run.
    pub seconds: f64,
}

impl TrainedRun {
    /// xxh3 of the bits of every loss and gradient norm. The norm is an exact sum over every gradient,
    /// rounded once, so that a changed bit of a gradient shows in this step or, through the weights, in the
    /// next.
    pub fn digest(&self) -> u64 {
        digest(&self.losses, &self.grad_norms)
    }

    /// Tokens per second at the median of [`Self::settled_ms`].
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens_per_step as f64 / (median(self.settled_ms()) / 1e3)
    }

    /// Step times without the first two, in which memory is touched for the first time.
    pub fn settled_ms(&self) -> &[f64] {
        &self.step_ms[2.min(self.step_ms.len().saturating_sub(1))..]
    }

    fn add(&mut self, row: &StepRow, ranks: &[RankStep]) {
        self.losses.push(row.loss);
        self.grad_norms.push(row.grad_norm);
        self.tokens_per_step = row.tokens;
        self.step_ms.push(row.ranks.max.step_ms);
        self.exposed.push(row.ranks.mean.exposed_comm_ms / row.ranks.mean.step_ms);
        self.compute_ms.resize(ranks.len(), Vec::new());
        for (times, rank) in self.compute_ms.iter_mut().zip(ranks) {
            times.push(rank.step_ms - rank.exposed_comm_ms);
        }
    }
}

/// [`TrainedRun::digest`] of a run with these losses and norms.
pub fn digest(losses: &[f64], grad_norms: &[f64]) -> u64 {
    let bits: Vec<u64> = losses.iter().chain(grad_norms).map(|x| x.to_bits()).collect();
    xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&bits))
}

/// Called after each step with its row and every rank's numbers.
pub type StepObserver = Box<dyn Fn(&StepRow, &[RankStep])>;

/// Trains on the group `comm`. The inner error says why the whole group could not train.
///
/// # Errors
/// This rank's own: the job cannot go on.
pub fn train_on<B: Backend>(
    cluster: &Cluster<'_, B>,
    comm: &B::Comm,
    deck: config::Deck,
    start: Start,
    observer: Option<StepObserver>,
) -> Result<std::result::Result<TrainedRun, String>> {
    let seen = Rc::new(RefCell::new(TrainedRun::default()));
    let watched = Rc::clone(&seen);
    let on_step = move |row: &StepRow, ranks: &[RankStep]| {
        watched.borrow_mut().add(row, ranks);
        if let Some(observer) = &observer {
            observer(row, ranks);
        }
    };
    let job = Job {
        deck,
        start,
        versions: cluster.versions.clone(),
        relaunch: "zero3 train".into(),
        launcher: String::new(),
        is_terminal: false,
        poison: cluster.poison,
        host: cluster.hosts[cluster.rank()].clone(),
        started: Instant::now(),
        abort: cluster.abort,
        quiet: true,
        on_step: Some(Box::new(on_step)),
    };
    let outcome = train::run::<B>(cluster.device, comm, &job);
    let seconds = job.started.elapsed().as_secs_f64();
    drop(job);
    match outcome {
        // The run's flight recorder ends here: the job goes on.
        Ok((exit, _)) => {
            let trained = Rc::into_inner(seen).expect("the run is over").into_inner();
            Ok(Ok(TrainedRun { exit: exit.code(), seconds, ..trained }))
        }
        // Every rank of the group has the same error.
        Err(error @ (Error::Deck(_) | Error::Input(_) | Error::Checkpoint(_) | Error::Agreed { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Trains on all ranks.
///
/// # Errors
/// [`Error::Agreed`] where the run did not end with `wanted`.
pub fn train_on_all<B: Backend>(
    cluster: &Cluster<'_, B>,
    deck: config::Deck,
    start: Start,
    wanted: Exit,
    observer: Option<StepObserver>,
) -> Result<TrainedRun> {
    let trained = train_on(cluster, cluster.comm, deck, start, observer)?.map_err(agreed_failure)?;
    ended_with(&trained, wanted).map_err(agreed_failure)?;
    Ok(trained)
}

/// Why the run did not end with `wanted`.
fn ended_with(trained: &TrainedRun, wanted: Exit) -> std::result::Result<(), String> {
    match trained.exit {
        code if code == wanted.code() => Ok(()),
        code if code == Exit::StoppedEarly.code() => {
            Err("the job was asked to stop: the training run saved a checkpoint and ended".into())
        }
        code => Err(format!("the run ended with code {code}, not {}", wanted.code())),
    }
}

/// A failure that every rank knows of.
pub fn agreed_failure(why: String) -> Error {
    Error::Agreed { rank: 0, error: Box::new(Error::Comm(why)) }
}

/// Trains on disjoint groups at the same time; ranks that are in none wait. `deck(g)` is that of group `g`.
/// Returns the run of each group. Collective over all ranks.
///
/// # Errors
/// [`Error::Agreed`] where a group could not train to its end.
pub fn train_on_groups<B: Backend>(
    cluster: &Cluster<'_, B>,
    groups: &[Vec<usize>],
    deck: impl Fn(usize) -> Result<config::Deck>,
) -> Result<Vec<TrainedRun>> {
    let own = groups.iter().position(|group| group.contains(&cluster.rank()));
    let comm = (cluster.split)(own.unwrap_or(groups.len()), cluster.rank())?;
    let outcome = match own {
        Some(g) => Some(
            train_on(cluster, &comm, deck(g)?, Start::Scratch, None)?
                .and_then(|trained| ended_with(&trained, Exit::Finished).map(|()| trained)),
        ),
        None => None,
    };
    // The first rank of each group reports for it.
    let reports = own.filter(|&g| groups[g][0] == cluster.rank());
    let reported = all_or_none(cluster.comm, Ok(reports.map(|g| (g, outcome))))?;
    let mut all: Vec<Option<TrainedRun>> = groups.iter().map(|_| None).collect();
    for (g, outcome) in reported.into_iter().flatten() {
        match outcome.expect("a group that reports has trained") {
            Ok(trained) => all[g] = Some(trained),
            Err(why) => return Err(agreed_failure(format!("ranks {:?}: {why}", groups[g]))),
        }
    }
    Ok(all.into_iter().map(|trained| trained.expect("every group has reported")).collect())
}

/// Writes synthetic tokens for the runs of `deck` into `dir`, where every rank reads them; returns the file's
/// path. Collective.
///
/// Three of four tokens follow from the one before, so there is something to learn; the rest are random.
pub fn write_tokens<B: Backend>(
    cluster: &Cluster<'_, B>,
    deck: &config::Deck,
    seed: u64,
    dir: &Path,
) -> Result<String> {
    let vocab = deck.model.vocab_size as u64;
    let wanted = deck.model.seq_len as u64 * deck.train.global_batch_size as u64 * 4;
    let n_tokens = wanted.clamp(1 << 16, 1 << 26) as usize;
    let wide = vocab > 1 << 16;
    let path = dir.join(if wide { "tokens.u32" } else { "tokens.u16" });
    decided_by_rank_0(cluster.comm, || {
        let tokens = synthetic_tokens(seed, vocab, n_tokens);
        let bytes: Vec<u8> = match wide {
            true => tokens.iter().flat_map(|t| t.to_le_bytes()).collect(),
            false => tokens.iter().flat_map(|&t| (t as u16).to_le_bytes()).collect(),
        };
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
        files::replace(&path, |out| out.write_all(&bytes))
    })?;
    Ok(path.display().to_string())
}

/// `n` tokens below `vocab`: three of four are a linear function of the one before.
fn synthetic_tokens(seed: u64, vocab: u64, n: usize) -> Vec<u32> {
    let mut last = 0;
    let tokens = SplitMix64::new(seed).map(|z| {
        last = if z % 4 == 0 { (z >> 2) % vocab } else { (last * 5 + 7) % vocab };
        last as u32
    });
    tokens.take(n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_tokens_follow_from_the_seed_and_stay_in_the_vocabulary() {
        let tokens = synthetic_tokens(1, 500, 1000);
        assert_eq!(tokens, synthetic_tokens(1, 500, 1000));
        assert_ne!(tokens, synthetic_tokens(2, 500, 1000));
        assert!(tokens.iter().all(|&t| t < 500));
        let follows = tokens.windows(2).filter(|w| w[1] == (w[0] * 5 + 7) % 500).count();
        assert!((700..800).contains(&follows), "{follows}");
    }

    #[test]
    fn one_bit_of_one_loss_changes_the_digest() {
        let x = 1.0 / 3.0;
        assert_ne!(digest(&[x], &[x]), digest(&[f64::from_bits(x.to_bits() ^ 1)], &[x]));
        assert_ne!(digest(&[x], &[x]), digest(&[x], &[f64::from_bits(x.to_bits() ^ 1)]));
    }
}
