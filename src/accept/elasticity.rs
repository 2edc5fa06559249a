//! What long jobs live through: a checkpoint restored on fewer ranks, a stop signal and a resume, and a soak.

use super::groups::{Trained, all_know, train_on, train_on_all};
use super::lab::Lab;
use super::metric::Metric;
use super::training::Reference;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm};
use crate::config;
use crate::error::{Exit, Result};
use crate::telemetry::quantile::median;
use crate::telemetry::signals::{self, Stop};
use crate::telemetry::stragglers::{Class, Straggler, Stragglers, WINDOW};
use crate::train::state::Start;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// The signal that schedulers send before they end a job.
const STOP_SIGNAL: libc::c_int = libc::SIGUSR1;

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, work: &Path, reference: &Reference) -> Result<Vec<Metric>> {
    let half = lab.deck.training.steps / 2;
    let mut metrics = vec![restore_on_fewer(lab, work, reference, half)?, stop_and_resume(lab, work, reference, half)?];
    metrics.extend(soak(lab, work, reference)?);
    Ok(metrics)
}

/// The reference run's deck in another directory, with a checkpoint at its end; `steps` of its steps.
fn part_of<B: Backend>(lab: &Lab<'_, B>, reference: &Reference, dir: &Path, steps: u64) -> Result<config::Deck> {
    let mut deck = lab.deck.reference(&reference.tokens, &dir.display().to_string(), lab.deck.training.steps)?;
    (deck.train.steps, deck.checkpoint.every) = (steps, steps);
    Ok(deck)
}

/// Steps of `part`, which begins after `skipped` steps, that are not those of the whole run, bit for bit.
fn n_other_bits(whole: &Trained, skipped: usize, part: &Trained) -> usize {
    let bits = |t: &Trained, i: usize| [t.losses.get(i), t.grad_norms.get(i)].map(|x| x.map(|x| x.to_bits()));
    (skipped..whole.losses.len()).filter(|&i| bits(whole, i) != bits(part, i - skipped)).count()
}

/// Saves at half of the steps on all ranks, goes on from there on half of them.
fn restore_on_fewer<B: Backend>(lab: &Lab<'_, B>, work: &Path, reference: &Reference, half: u64) -> Result<Metric> {
    let name = "elasticity.restore_on_fewer_ranks";
    if lab.n() == 1 {
        return Ok(Metric::skipped(name, "one rank: there are no fewer"));
    }
    let dir = work.join("restore");
    train_on_all(lab, part_of(lab, reference, &dir, half)?, Start::Scratch, Exit::Finished, None)?;
    let m = lab.n() / 2;
    let member = lab.rank() < m;
    let comm = (lab.split)(usize::from(!member), lab.rank())?;
    let deck = part_of(lab, reference, &dir, lab.deck.training.steps)?;
    let came_to = if member { Some(train_on(lab, &comm, deck, Start::Auto, None)?) } else { None };
    let said = all_or_none(lab.comm, Ok(came_to.filter(|_| lab.rank() == 0)))?;
    let part = said.into_iter().next().flatten().expect("rank 0 is among the fewer").map_err(all_know)?;
    let n_other = n_other_bits(&reference.trained, half as usize, &part);
    let blame = format!("steps after a restore of step {half} on {m} ranks are not those of the run that went through");
    Ok(Metric::exactly(name, n_other as f64, 0.0, "steps", blame)
        .because(format!("saved by {} ranks at step {half}, restored on {m}", lab.n())))
}

/// One rank gets a signal at half of the steps; the run saves, ends with code 75, and is resumed.
fn stop_and_resume<B: Backend>(lab: &Lab<'_, B>, work: &Path, reference: &Reference, half: u64) -> Result<Metric> {
    let dir = work.join("stop");
    let deck = part_of(lab, reference, &dir, lab.deck.training.steps)?;
    let hit = lab.rank() + 1 == lab.n();
    let eye = move |row: &crate::telemetry::StepRow, _: &[crate::telemetry::RankStep]| {
        if hit && row.step + 1 == half {
            signals::send_to_self(STOP_SIGNAL);
        }
    };
    let stopped = train_on_all(lab, deck.clone(), Start::Scratch, Exit::StoppedEarly, Some(Box::new(eye)));
    lab.comm.control().barrier()?;
    // A scheduler sends its signal to every rank: what another rank has is no plant of this section and stays.
    if hit {
        signals::withdraw_stop();
    }
    let stopped = stopped?;
    let resumed = train_on_all(lab, deck, Start::Auto, Exit::Finished, None)?;
    let at = stopped.losses.len();
    let n_other = n_other_bits(&reference.trained, at, &resumed) + n_other_bits(&stopped, 0, &reference.trained);
    let blame = "steps around a stop are not those of the run that went through";
    Ok(Metric::exactly("elasticity.stop_and_resume", n_other as f64, 0.0, "steps", blame)
        .because(format!("SIGUSR1 to {}, saved at step {at}, resumed", lab.name(lab.n() - 1))))
}

/// Training without a pause for the deck's minutes.
fn soak<B: Backend>(lab: &Lab<'_, B>, work: &Path, reference: &Reference) -> Result<Vec<Metric>> {
    let names = ["elasticity.goodput", "elasticity.chronic_stragglers", "elasticity.one_off_stragglers"];
    let minutes = lab.deck.elasticity.soak_minutes;
    if minutes == 0.0 {
        return Ok(names.iter().map(|name| Metric::skipped(name, "elasticity.soak_minutes is 0")).collect());
    }
    let mut deck =
        lab.deck.reference(&reference.tokens, &work.join("soak").display().to_string(), lab.deck.training.steps)?;
    // Time ends it: how long a step takes may change on the way.
    deck.train.steps = u64::from(u32::MAX);
    let n_micro_batches = deck.train.global_batch_size / deck.train.micro_batch_size;
    let stragglers = RefCell::new(Stragglers::new(lab.hosts.clone(), n_micro_batches));
    let found = Rc::new(RefCell::new(Vec::new()));
    let asked = Rc::new(Cell::new(false));
    let (said, has_asked) = (Rc::clone(&found), Rc::clone(&asked));
    let (began, speaks) = (Instant::now(), lab.rank() == 0);
    let eye = move |row: &crate::telemetry::StepRow, ranks: &[crate::telemetry::RankStep]| {
        said.borrow_mut().extend(stragglers.borrow_mut().step(row.step, ranks));
        // A wish of somebody else's is not covered up.
        if speaks && began.elapsed().as_secs_f64() > minutes * 60.0 && signals::stop_code() == 0 {
            signals::ask_to_stop(Stop::TimeLimit);
            has_asked.set(true);
        }
    };
    let trained = train_on_all(lab, deck, Start::Scratch, Exit::StoppedEarly, Some(Box::new(eye)));
    lab.comm.control().barrier()?;
    if asked.get() {
        signals::withdraw_stop();
    }
    let trained = trained?;
    let total_s = trained.step_ms.iter().sum::<f64>() / 1e3;
    let n_steps = trained.step_ms.len();
    let goodput = n_steps as f64 * median(&trained.step_ms) / 1e3 / total_s;
    let found: Vec<Straggler> = found.take();
    let of_class = |class| -> Vec<String> {
        found.iter().filter(|straggler| straggler.class == class).map(Straggler::to_string).collect()
    };
    let (chronic, one_off) = (of_class(Class::Chronic), of_class(Class::OneOff));
    let words =
        format!("{n_steps} steps, {total_s:.1} s by the slowest rank of each, in a run of {:.1} s", trained.seconds);
    Ok(vec![
        lab.judged(names[0], goodput.min(1.0), "", Some(1.0)).because(words),
        match (lab.n(), n_steps) {
            (1, _) => Metric::skipped(names[1], "one rank has no peers"),
            (_, 0..WINDOW) => Metric::skipped(names[1], format!("{n_steps} steps: ranks are judged over {WINDOW}")),
            _ => Metric::none_of(names[1], &chronic),
        },
        Metric::info(names[2], one_off.len() as f64, "").because(one_off.join("; ")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_from_the_step_that_was_restored_and_missing_steps_count() {
        let run = |losses: &[f64]| Trained { losses: losses.into(), grad_norms: losses.into(), ..Trained::default() };
        let whole = run(&[4.0, 3.0, 2.0, 1.0]);
        assert_eq!(n_other_bits(&whole, 2, &run(&[2.0, 1.0])), 0);
        assert_eq!(n_other_bits(&whole, 2, &run(&[2.0, 1.0 + f64::EPSILON])), 1);
        assert_eq!(n_other_bits(&whole, 2, &run(&[2.0])), 1);
    }
}
