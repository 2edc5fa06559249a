//! The reference run: its speed, its bytes and memory against the plan, its losses against a stored answer, and the same steps on
//! subsets of the ranks, down to a rank that computes wrong.

use super::answers::{self, Answer};
use super::bisect::{self, Finding};
use super::groups::{self, Trained, all_know, train_on_all, train_on_groups};
use super::lab::Lab;
use super::metric::{Metric, Status};
use crate::backend::agree::decided_by_rank_0;
use crate::backend::{Backend, Device};
use crate::error::{Error, Exit, Result};
use crate::files;
use crate::telemetry::Summary;
use crate::telemetry::quantile::quantile;
use crate::telemetry::summary::Planned;
use crate::train::state::Start;
use std::path::Path;

/// What the later sections go on with.
pub struct Reference {
    /// Its token file.
    pub tokens: String,
    /// The run on all ranks.
    pub trained: Trained,
    /// The same as an answer to store.
    pub answer: Answer,
}

/// The section. Collective.
pub fn run<B: Backend>(lab: &Lab<'_, B>, work: &Path) -> Result<(Vec<Metric>, Reference)> {
    let t = &lab.deck.training;
    let tokens = groups::write_tokens(lab, work)?;
    let dir = work.join("reference");
    let deck = lab.deck.reference(&tokens, &dir.display().to_string(), t.steps)?;
    let trained = train_on_all(lab, deck.clone(), Start::Scratch, Exit::Finished, None)?;
    let summary: Summary = decided_by_rank_0(lab.comm, || {
        let path = dir.join("summary.json");
        let text = files::read_text(&path, files::MAX_RECORD_BYTES).map_err(|e| Error::io("read", &path, &e))?;
        serde_json::from_str(&text).map_err(|e| Error::Io(format!("{}: {e}", path.display())))
    })?;
    let mut metrics = speed::<B>(lab, &deck, &trained);
    against_plan(&summary, &mut metrics);

    let answer = Answer {
        reference: answers::reference_name(lab.deck),
        computed_on: kind_of_device(lab),
        losses: trained.losses.clone(),
        grad_norms: trained.grad_norms.clone(),
    };
    let stored = decided_by_rank_0(lab.comm, || answers::read(&t.known_answers))?;
    let known = answers::find(&stored, &answer.reference, &answer.computed_on);
    metrics.push(against_answer(lab, &trained, known));
    let known_digest = known.filter(|(_, bits)| *bits).map(|(a, _)| groups::digest(&a.losses, &a.grad_norms));
    metrics.push(on_subsets(lab, work, &tokens, &trained, known_digest)?);
    Ok((metrics, Reference { tokens, trained, answer }))
}

/// Processor and instruction set, without the number of threads, on which bits do not depend.
fn kind_of_device<B: Backend>(lab: &Lab<'_, B>) -> String {
    let text = lab.device.describe();
    let device = text.split(',').next().unwrap_or_default();
    match lab.versions.get("instruction_set") {
        Some(set) => format!("{device}, {set}"),
        None => device.into(),
    }
}

fn speed<B: Backend>(lab: &Lab<'_, B>, deck: &crate::config::Deck, trained: &Trained) -> Vec<Metric> {
    let tokens_per_s = trained.tokens_per_s();
    let flops = crate::model::Model::of_deck::<B::Device>(deck).spec.flops_per_token;
    let n_steps = trained.settled_ms().len();
    let step = |q: f64| quantile(trained.settled_ms(), q);
    let exposed = trained.exposed.iter().sum::<f64>() / trained.exposed.len() as f64;
    let mfu = match lab.deck.run.peak_gflops {
        0.0 => Metric::skipped("training.mfu", "run.peak_gflops is not set"),
        peak => {
            let mfu = tokens_per_s * flops / (peak * 1e9 * lab.n() as f64);
            lab.judged("training.mfu", mfu, "", None)
        }
    };
    vec![
        lab.judged("training.tokens_per_s", tokens_per_s, "tokens/s", None)
            .because(format!("median of {n_steps} steps")),
        mfu,
        Metric::info("training.gflops_per_rank", tokens_per_s * flops / lab.n() as f64 / 1e9, "GFLOP/s"),
        Metric::info("training.step_p50", step(0.5), "ms"),
        Metric::info("training.step_p95", step(0.95), "ms"),
        lab.judged("training.step_p99", step(0.99), "ms", None),
        lab.judged("training.exposed_comm", exposed, "", None),
    ]
}

/// Bytes and memory that are not the planned ones are a broken program.
fn against_plan(summary: &Summary, metrics: &mut Vec<Metric>) {
    let mut exact = |name: &str, Planned { planned, measured }: &Planned| {
        metrics.push(Metric::exactly(name, *measured as f64, *planned as f64, "bytes", "not what was planned"));
    };
    exact("training.all_gather_bytes", &summary.all_gather_bytes_per_step);
    exact("training.reduce_scatter_bytes", &summary.reduce_scatter_bytes_per_step);
    exact("training.resident_bytes", &summary.resident.bytes);
    exact("training.peak_bytes", &summary.peak_bytes);
    let off = summary.steps_off_plan as f64;
    metrics.push(Metric::exactly(
        "training.steps_off_plan",
        off,
        0.0,
        "",
        "steps of any rank that moved other bytes than planned",
    ));
}

/// Every loss to the bit where the answer was computed on the same kind of processor, the last one within a band elsewhere.
fn against_answer<B: Backend>(lab: &Lab<'_, B>, trained: &Trained, known: Option<(&Answer, bool)>) -> Metric {
    let name = "training.losses";
    match known {
        None => {
            Metric::skipped(name, "no stored answer for this model and these steps; --record-answers FILE stores one")
        }
        Some((answer, true)) => {
            let differs = |i: &usize| {
                answer.losses.get(*i).map(|x| x.to_bits()) != trained.losses.get(*i).map(|x| x.to_bits())
                    || answer.grad_norms.get(*i).map(|x| x.to_bits()) != trained.grad_norms.get(*i).map(|x| x.to_bits())
            };
            let n = answer.losses.len().max(trained.losses.len());
            let wrong: Vec<usize> = (0..n).filter(differs).collect();
            let blame = wrong.first().map_or(String::new(), |first| {
                format!(
                    "bits differ from the stored answer from step {} on, which the same kind of processor computed",
                    first + 1
                )
            });
            Metric::exactly(name, wrong.len() as f64, 0.0, "steps", blame)
                .because(format!("bit for bit against the answer of {}", answer.computed_on))
        }
        Some((answer, false)) => {
            let (own, wanted) = (trained.losses.last().copied(), answer.losses.last().copied());
            let words = format!(
                "loss of the last step; the answer was computed on another kind of processor, {}",
                answer.computed_on
            );
            let mut metric = lab.judged(name, own.unwrap_or(f64::NAN), "nats", wanted).because(words);
            metric.correctness = true;
            metric
        }
    }
}

/// The same steps on halves of the ranks, and on halves of what differs.
fn on_subsets<B: Backend>(
    lab: &Lab<'_, B>,
    work: &Path,
    tokens: &str,
    trained: &Trained,
    known: Option<u64>,
) -> Result<Metric> {
    let name = "training.bad_ranks";
    if !lab.deck.training.find_bad_rank {
        return Ok(Metric::skipped(name, "training.find_bad_rank is off"));
    }
    if lab.n() == 1 {
        return Ok(Metric::skipped(name, "one rank has no subsets"));
    }
    let mut round = 0;
    let n_micro_batches = lab.deck.training.global_batch_size / lab.deck.training.micro_batch_size;
    let finding = bisect::find(lab.n(), n_micro_batches, trained.digest(), known, |groups| {
        round += 1;
        let dir = |g: usize| work.join(format!("subset_{round}_{g}")).display().to_string();
        let trained = train_on_groups(lab, groups, |g| lab.deck.reference(tokens, &dir(g), lab.deck.training.steps))?;
        Ok(trained.iter().map(Trained::digest).collect())
    });
    let finding = match finding {
        Ok(finding) => finding,
        Err(error @ Error::Agreed { .. }) => return Err(all_know(format!("the same steps on subsets: {error}"))),
        Err(error) => return Err(error),
    };
    let names = |ranks: &[usize]| ranks.iter().map(|&r| lab.name(r)).collect::<Vec<_>>().join(", ");
    let rounds = format!("{round} round{} of runs on subsets", if round == 1 { "" } else { "s" });
    let (n_bad, blame) = match &finding {
        Finding::Clean => (0, String::new()),
        Finding::Bad(ranks) => (ranks.len(), format!("silent data corruption on {}", names(ranks))),
        Finding::Unsteady(ranks) => {
            (ranks.len(), format!("silent data corruption that comes and goes, among {}", names(ranks)))
        }
        Finding::Undecided => {
            let who = if lab.n() == 2 { names(&[0, 1]) } else { "subsets of the ranks".into() };
            let remedy = "store an answer of a machine that you trust (--record-answers), or add a rank";
            (1, format!("{who} come to different bits, and no two agree on the right ones: {remedy}"))
        }
    };
    let metric = Metric::exactly(name, n_bad as f64, 0.0, "", blame);
    Ok(if metric.status == Status::Pass { metric.because(rounds) } else { metric })
}
