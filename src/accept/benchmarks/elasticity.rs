//! What long jobs go through: a checkpoint restored on fewer ranks, a stop signal and a resume, and a soak.

use super::training::ReferenceRun;
use crate::accept::acceptance::Acceptance;
use crate::accept::verdict::metric::Metric;
use crate::accept::verdict::metric_limits;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm};
use crate::batch::signals;
use crate::batch::signals::{Limit, Stop};
use crate::config;
use crate::error::{Exit, Result};
use crate::harness::{TrainedRun, agreed_failure, train_on, train_on_all};
use crate::liveness::stragglers::{Class, Straggler, Stragglers, WINDOW};
use crate::quantile::median;
use crate::telemetry::{RankStep, StepRow};
use crate::train::state::Start;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// The signal that schedulers send before they end a job.
const STOP_SIGNAL: libc::c_int = libc::SIGUSR1;

/// The section. Collective.
pub fn run<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    reference: &ReferenceRun,
) -> Result<Vec<Metric>> {
    let half = acceptance.deck.training.steps / 2;
    let mut metrics = vec![
        restore_on_fewer(acceptance, work, reference, half)?,
        stop_and_resume(acceptance, work, reference, half)?,
    ];
    metrics.extend(soak(acceptance, work, reference)?);
    Ok(metrics)
}

/// The deck of the first `steps` steps of the reference run, in another directory, with a checkpoint at its
/// end.
fn part_of<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    reference: &ReferenceRun,
    dir: &Path,
    steps: u64,
) -> Result<config::Deck> {
    let mut deck = acceptance.deck.reference(
        &reference.tokens,
        &dir.display().to_string(),
        acceptance.deck.training.steps,
    )?;
    (deck.train.steps, deck.checkpoint.every) = (steps, steps);
    Ok(deck)
}

/// Number of steps of the run `whole`, from step `skipped` on, whose bits are not those of `part`, which
/// begins there.
fn n_differing_steps(whole: &TrainedRun, skipped: usize, part: &TrainedRun) -> usize {
    let bits =
        |t: &TrainedRun, i: usize| [t.losses.get(i), t.grad_norms.get(i)].map(|x| x.map(|x| x.to_bits()));
    (skipped..whole.losses.len()).filter(|&i| bits(whole, i) != bits(part, i - skipped)).count()
}

/// Saves after half of the steps on all ranks, and continues on half of the ranks.
fn restore_on_fewer<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    reference: &ReferenceRun,
    half: u64,
) -> Result<Metric> {
    let cluster = &acceptance.cluster;
    let name = "elasticity.restore_on_fewer_ranks";
    if cluster.n() == 1 {
        return Ok(Metric::skipped(name, "one rank: fewer are impossible"));
    }
    let dir = work.join("restore");
    train_on_all(cluster, part_of(acceptance, reference, &dir, half)?, Start::Scratch, Exit::Finished, None)?;
    let m = cluster.n() / 2;
    let member = cluster.rank() < m;
    let comm = (cluster.split)(usize::from(!member), cluster.rank())?;
    let deck = part_of(acceptance, reference, &dir, acceptance.deck.training.steps)?;
    let outcome = if member { Some(train_on(cluster, &comm, deck, Start::Auto, None)?) } else { None };
    let said = all_or_none(cluster.comm, Ok(outcome.filter(|_| cluster.rank() == 0)))?;
    let part = said.into_iter().next().flatten().expect("rank 0 is a member").map_err(agreed_failure)?;
    let n_differing = n_differing_steps(&reference.trained, half as usize, &part);
    let blame = format!(
        "steps after a restore of step {half} on {m} ranks differ from those of the uninterrupted run"
    );
    Ok(Metric::exactly(name, n_differing as f64, 0.0, "steps", blame)
        .because(format!("saved by {} ranks at step {half}, restored on {m}", cluster.n())))
}

/// One rank receives a signal after half of the steps; the run saves, ends with code 75, and is resumed.
fn stop_and_resume<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    reference: &ReferenceRun,
    half: u64,
) -> Result<Metric> {
    let cluster = &acceptance.cluster;
    let dir = work.join("stop");
    let deck = part_of(acceptance, reference, &dir, acceptance.deck.training.steps)?;
    let receives = cluster.rank() + 1 == cluster.n();
    let observer = move |row: &StepRow, _: &[RankStep]| {
        if receives && row.step + 1 == half {
            signals::send_to_self(STOP_SIGNAL);
        }
    };
    let stopped =
        train_on_all(cluster, deck.clone(), Start::Scratch, Exit::StoppedEarly, Some(Box::new(observer)));
    cluster.comm.control().barrier()?;
    // A signal on another rank came from the scheduler, not from this section, and stays.
    if receives {
        signals::withdraw_stop();
    }
    let stopped = stopped?;
    let resumed = train_on_all(cluster, deck, Start::Auto, Exit::Finished, None)?;
    let at = stopped.losses.len();
    let n_differing = n_differing_steps(&reference.trained, at, &resumed)
        + n_differing_steps(&stopped, 0, &reference.trained);
    let blame = "steps before and after a stop differ from those of the uninterrupted run";
    Ok(Metric::exactly("elasticity.stop_and_resume", n_differing as f64, 0.0, "steps", blame)
        .because(format!("SIGUSR1 to {}, saved at step {at}, resumed", cluster.name(cluster.n() - 1))))
}

/// Training without interruption for `elasticity.soak_minutes`.
fn soak<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    reference: &ReferenceRun,
) -> Result<Vec<Metric>> {
    let cluster = &acceptance.cluster;
    let names =
        [metric_limits::GOODPUT.name, "elasticity.chronic_stragglers", "elasticity.one_off_stragglers"];
    let minutes = acceptance.deck.elasticity.soak_minutes;
    if minutes == 0.0 {
        return Ok(names.iter().map(|name| Metric::skipped(name, "elasticity.soak_minutes is 0")).collect());
    }
    let mut deck = acceptance.deck.reference(
        &reference.tokens,
        &work.join("soak").display().to_string(),
        acceptance.deck.training.steps,
    )?;
    // It ends by time: how long a step takes may change during the run.
    deck.train.steps = u64::from(u32::MAX);
    let n_micro_batches = deck.train.global_batch_size / deck.train.micro_batch_size;
    let stragglers = RefCell::new(Stragglers::new(cluster.hosts.clone(), n_micro_batches));
    let found = Rc::new(RefCell::new(Vec::new()));
    let asked = Rc::new(Cell::new(false));
    let (seen, has_asked) = (Rc::clone(&found), Rc::clone(&asked));
    let (began, is_first) = (Instant::now(), cluster.rank() == 0);
    let observer = move |row: &StepRow, ranks: &[RankStep]| {
        seen.borrow_mut().extend(stragglers.borrow_mut().step(row.step, ranks));
        // Another request to stop keeps its reason.
        if is_first && began.elapsed().as_secs_f64() > minutes * 60.0 && signals::stop_code() == 0 {
            signals::ask_to_stop(Stop::TimeLimit(Limit::Acceptance));
            has_asked.set(true);
        }
    };
    let trained = train_on_all(cluster, deck, Start::Scratch, Exit::StoppedEarly, Some(Box::new(observer)));
    cluster.comm.control().barrier()?;
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
    let words = format!(
        "{n_steps} steps, {total_s:.1} s by the slowest rank of each, in a run of {:.1} s",
        trained.seconds
    );
    Ok(vec![
        acceptance.judged(metric_limits::GOODPUT, goodput.min(1.0), "", Some(1.0)).because(words),
        match (cluster.n(), n_steps) {
            (1, _) => Metric::skipped(names[1], "one rank has no peers"),
            (_, 0..WINDOW) => Metric::skipped(
                names[1],
                format!("{n_steps} steps: stragglers are found over windows of {WINDOW}"),
            ),
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
        let run = |losses: &[f64]| TrainedRun {
            losses: losses.into(),
            grad_norms: losses.into(),
            ..TrainedRun::default()
        };
        let whole = run(&[4.0, 3.0, 2.0, 1.0]);
        assert_eq!(n_differing_steps(&whole, 2, &run(&[2.0, 1.0])), 0);
        assert_eq!(n_differing_steps(&whole, 2, &run(&[2.0, 1.0 + f64::EPSILON])), 1);
        assert_eq!(n_differing_steps(&whole, 2, &run(&[2.0])), 1);
    }
}
