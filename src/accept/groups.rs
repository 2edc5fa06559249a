//! Training runs on all ranks or on groups of them, within the one job. Each is `train::run` as `zero3 train` has it, in a run
//! directory of its own, watched step by step.

use super::lab::Lab;
use crate::backend::Backend;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::config;
use crate::error::{Error, Exit, Result};
use crate::telemetry::quantile::median;
use crate::telemetry::{RankStep, StepRow};
use crate::train::state::Start;
use crate::train::{self, Job};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// What a run came to; the same on every rank of its group.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Trained {
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
    /// Of each rank: milliseconds of each step without what it waited.
    pub compute_ms: Vec<Vec<f64>>,
    /// Exit code, as of `zero3 train`.
    pub exit: i32,
    /// From begin to end of the run.
    pub seconds: f64,
}

impl Trained {
    /// xxh3 of the bits of every loss and gradient norm. The norm is an exact sum over every gradient, rounded once, so that a
    /// bit of a gradient shows in this step or, through the weights, in the next.
    pub fn digest(&self) -> u64 {
        digest(&self.losses, &self.grad_norms)
    }

    /// Tokens per second at the median of the settled steps.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens_per_step as f64 / (median(self.settled_ms()) / 1e3)
    }

    /// Step times without the first two, which touch memory for the first time.
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

/// As [`Trained::digest`].
pub fn digest(losses: &[f64], grad_norms: &[f64]) -> u64 {
    let bits: Vec<u64> = losses.iter().chain(grad_norms).map(|x| x.to_bits()).collect();
    xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&bits))
}

/// What else looks at each step.
pub type Eye = Box<dyn Fn(&StepRow, &[RankStep])>;

/// Trains on the group `comm`. In words: why that was not possible, known to the whole group. Errors are this rank's own.
pub fn train_on<B: Backend>(
    lab: &Lab<'_, B>,
    comm: &B::Comm,
    deck: config::Deck,
    start: Start,
    eye: Option<Eye>,
) -> Result<std::result::Result<Trained, String>> {
    let seen = Rc::new(RefCell::new(Trained::default()));
    let watched = Rc::clone(&seen);
    let watch = move |row: &StepRow, ranks: &[RankStep]| {
        watched.borrow_mut().add(row, ranks);
        if let Some(eye) = &eye {
            eye(row, ranks);
        }
    };
    let job = Job {
        deck,
        start,
        versions: lab.versions.clone(),
        relaunch: "zero3 train".into(),
        launcher: String::new(),
        is_terminal: false,
        poison: lab.poison,
        host: lab.hosts[lab.rank()].clone(),
        started: Instant::now(),
        abort: lab.abort,
        quiet: true,
        watch: Some(Box::new(watch)),
    };
    let outcome = train::run::<B>(lab.device, comm, &job);
    let seconds = job.started.elapsed().as_secs_f64();
    drop(job);
    match outcome {
        // Its recorder ends here: the job goes on.
        Ok((exit, _)) => {
            let trained = Rc::into_inner(seen).expect("the run is over").into_inner();
            Ok(Ok(Trained { exit: exit.code(), seconds, ..trained }))
        }
        // The group has the same verdict.
        Err(error @ (Error::Deck(_) | Error::Input(_) | Error::Checkpoint(_) | Error::Agreed { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Trains on all ranks, to the end of the deck's steps or to what `wanted` says instead. Fails, for all alike, where the run ended
/// otherwise.
pub fn train_on_all<B: Backend>(
    lab: &Lab<'_, B>,
    deck: config::Deck,
    start: Start,
    wanted: Exit,
    eye: Option<Eye>,
) -> Result<Trained> {
    let trained = train_on(lab, lab.comm, deck, start, eye)?.map_err(all_know)?;
    ended_with(&trained, wanted).map_err(all_know)?;
    Ok(trained)
}

/// In words: why the run did not end as it should.
fn ended_with(trained: &Trained, wanted: Exit) -> std::result::Result<(), String> {
    match trained.exit {
        code if code == wanted.code() => Ok(()),
        code if code == Exit::StoppedEarly.code() => {
            Err("the job was asked to stop, and the training run under way saved and ended".into())
        }
        code => Err(format!("the run ended with code {code}, not {}", wanted.code())),
    }
}

/// An error that every rank has.
pub fn all_know(why: String) -> Error {
    Error::Agreed { rank: 0, error: Box::new(Error::Comm(why)) }
}

/// Trains on disjoint groups at the same time; ranks of none wait. `deck(g)` is that of group `g`. Returns what each group came to.
/// Collective over all ranks; fails for all alike where a group could not train to its end.
pub fn train_on_groups<B: Backend>(
    lab: &Lab<'_, B>,
    groups: &[Vec<usize>],
    deck: impl Fn(usize) -> Result<config::Deck>,
) -> Result<Vec<Trained>> {
    let own = groups.iter().position(|group| group.contains(&lab.rank()));
    let comm = (lab.split)(own.unwrap_or(groups.len()), lab.rank())?;
    let came_to = match own {
        Some(g) => Some(
            train_on(lab, &comm, deck(g)?, Start::Scratch, None)?
                .and_then(|trained| ended_with(&trained, Exit::Finished).map(|()| trained)),
        ),
        None => None,
    };
    // One of each group speaks for it.
    let speaks = own.filter(|&g| groups[g][0] == lab.rank());
    let said = all_or_none(lab.comm, Ok(speaks.map(|g| (g, came_to))))?;
    let mut all: Vec<Option<Trained>> = groups.iter().map(|_| None).collect();
    for (g, came_to) in said.into_iter().flatten() {
        match came_to.expect("a group that speaks has trained") {
            Ok(trained) => all[g] = Some(trained),
            Err(why) => return Err(all_know(format!("ranks {:?}: {why}", groups[g]))),
        }
    }
    Ok(all.into_iter().map(|trained| trained.expect("every group has spoken")).collect())
}

/// Writes the synthetic tokens of the deck's seed where every rank reads them; returns their path. Collective.
///
/// Three of four tokens follow from the one before, so there is something to learn; the rest are drawn.
pub fn write_tokens<B: Backend>(lab: &Lab<'_, B>, dir: &Path) -> Result<String> {
    let deck = lab.reference_deck()?;
    let vocab = deck.model.vocab_size as u64;
    let wanted = deck.model.seq_len as u64 * deck.train.global_batch_size as u64 * 4;
    let n_tokens = wanted.clamp(1 << 16, 1 << 26) as usize;
    let wide = vocab > 1 << 16;
    let path = dir.join(if wide { "tokens.u32" } else { "tokens.u16" });
    decided_by_rank_0(lab.comm, || {
        let tokens = synthetic_tokens(lab.deck.training.seed, vocab, n_tokens);
        let bytes: Vec<u8> = match wide {
            true => tokens.iter().flat_map(|t| t.to_le_bytes()).collect(),
            false => tokens.iter().flat_map(|&t| (t as u16).to_le_bytes()).collect(),
        };
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
        std::fs::write(&path, bytes).map_err(|e| Error::io("write", &path, &e))
    })?;
    Ok(path.display().to_string())
}

/// SplitMix64 (Steele, Lea, Flood 2014), and a line through the vocabulary.
fn synthetic_tokens(seed: u64, vocab: u64, n: usize) -> Vec<u32> {
    let (mut state, mut last) = (seed, 0);
    (0..n)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            last = if z % 4 == 0 { (z >> 2) % vocab } else { (last * 5 + 7) % vocab };
            last as u32
        })
        .collect()
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
