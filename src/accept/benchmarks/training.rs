//! The reference run: its speed, its bytes and memory against the plan, its losses against golden losses, and
//! the same steps on subsets of the ranks, down to a rank that computes wrong.

use crate::accept::acceptance::Acceptance;
use crate::accept::verdict::bisect::{self, Finding};
use crate::accept::verdict::golden_losses::{self, GoldenLosses};
use crate::accept::verdict::metric::{Metric, Status};
use crate::accept::verdict::metric_limits;
use crate::backend::agree::decided_by_rank_0;
use crate::backend::{Backend, Device};
use crate::config;
use crate::error::{Error, Exit, Result};
use crate::files;
use crate::harness::{self, Cluster, TrainedRun, agreed_failure, train_on_all, train_on_groups};
use crate::model::Model;
use crate::quantile::quantile;
use crate::records::Summary;
use crate::records::summary::Planned;
use crate::train::state::Start;
use std::path::Path;

/// The reference run, from which later sections continue.
pub struct ReferenceRun {
    /// Path of its token file.
    pub tokens: String,
    /// The run on all ranks.
    pub trained: TrainedRun,
    /// Its losses, to store as golden ones.
    pub losses: GoldenLosses,
}

/// The section. Collective.
pub fn run<B: Backend>(acceptance: &Acceptance<'_, B>, work: &Path) -> Result<(Vec<Metric>, ReferenceRun)> {
    let cluster = &acceptance.cluster;
    let t = &acceptance.deck.training;
    let tokens = harness::write_tokens(cluster, &acceptance.reference_deck()?, t.seed, work)?;
    let dir = work.join("reference");
    let deck = acceptance.deck.reference(&tokens, &dir.display().to_string(), t.steps)?;
    let trained = train_on_all(cluster, deck.clone(), Start::Scratch, Exit::Finished, None)?;
    let summary: Summary = decided_by_rank_0(cluster.comm, || {
        let path = dir.join("summary.json");
        let text =
            files::read_text(&path, files::MAX_RECORD_BYTES).map_err(|e| Error::io("read", &path, &e))?;
        serde_json::from_str(&text).map_err(|e| Error::Io(format!("{}: {e}", path.display())))
    })?;
    let mut metrics = speed::<B>(acceptance, &deck, &trained);
    against_plan(&summary, &mut metrics);

    let losses = GoldenLosses {
        reference: golden_losses::reference_name(acceptance.deck),
        computed_on: kind_of_device(cluster),
        losses: trained.losses.clone(),
        grad_norms: trained.grad_norms.clone(),
    };
    let stored = decided_by_rank_0(cluster.comm, || golden_losses::read(Path::new(&t.known_answers)))?;
    let golden = golden_losses::find(&stored, &losses.reference, &losses.computed_on);
    metrics.push(against_golden_losses(acceptance, &trained, golden));
    let known_digest =
        golden.filter(|(_, bits)| *bits).map(|(g, _)| harness::digest(&g.losses, &g.grad_norms));
    metrics.push(on_subsets(acceptance, work, &tokens, &trained, known_digest)?);
    Ok((metrics, ReferenceRun { tokens, trained, losses }))
}

/// Processor and instruction set, without the number of threads, on which bits do not depend.
fn kind_of_device<B: Backend>(cluster: &Cluster<'_, B>) -> String {
    let text = cluster.device.describe();
    let device = text.split(',').next().unwrap_or_default();
    match cluster.versions.get("instruction_set") {
        Some(set) => format!("{device}, {set}"),
        None => device.into(),
    }
}

fn speed<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    deck: &config::Deck,
    trained: &TrainedRun,
) -> Vec<Metric> {
    let cluster = &acceptance.cluster;
    let tokens_per_s = trained.tokens_per_s();
    let flops = Model::of_deck::<B::Device>(deck).spec.flops_per_token;
    let n_steps = trained.settled_ms().len();
    let step = |q: f64| quantile(trained.settled_ms(), q);
    let exposed = trained.exposed.iter().sum::<f64>() / trained.exposed.len() as f64;
    let mfu = match acceptance.deck.run.peak_gflops {
        0.0 => Metric::skipped(metric_limits::MFU.name, "run.peak_gflops is not set"),
        peak => {
            let mfu = tokens_per_s * flops / (peak * 1e9 * cluster.n() as f64);
            acceptance.judged(metric_limits::MFU, mfu, "", None)
        }
    };
    vec![
        acceptance
            .judged(metric_limits::TOKENS_PER_S, tokens_per_s, "tokens/s", None)
            .because(format!("median of {n_steps} steps")),
        mfu,
        Metric::info("training.gflops_per_rank", tokens_per_s * flops / cluster.n() as f64 / 1e9, "GFLOP/s"),
        Metric::info("training.step_p50", step(0.5), "ms"),
        Metric::info("training.step_p95", step(0.95), "ms"),
        acceptance.judged(metric_limits::STEP_P99, step(0.99), "ms", None),
        acceptance.judged(metric_limits::EXPOSED_COMM, exposed, "", None),
    ]
}

/// Bytes and memory must be the planned ones.
fn against_plan(summary: &Summary, metrics: &mut Vec<Metric>) {
    let mut exact = |name: &str, Planned { planned, measured }: &Planned| {
        metrics.push(Metric::exactly(
            name,
            *measured as f64,
            *planned as f64,
            "bytes",
            "differs from the plan",
        ));
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
        "steps in which a rank moved other bytes than planned",
    ));
}

/// Compares every loss to the bit where the golden ones were computed on the same kind of processor, else the
/// last one within a band.
fn against_golden_losses<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    trained: &TrainedRun,
    golden: Option<(&GoldenLosses, bool)>,
) -> Metric {
    let name = metric_limits::LOSSES.name;
    match golden {
        None => {
            let why = "no golden losses for this model and these steps; --record-answers FILE stores these";
            Metric::skipped(name, why)
        }
        Some((golden, true)) => {
            let bits = |xs: &[f64], i: usize| xs.get(i).map(|x| x.to_bits());
            let differs = |i: &usize| {
                bits(&golden.losses, *i) != bits(&trained.losses, *i)
                    || bits(&golden.grad_norms, *i) != bits(&trained.grad_norms, *i)
            };
            let n = golden.losses.len().max(trained.losses.len());
            let wrong: Vec<usize> = (0..n).filter(differs).collect();
            let blame = wrong.first().map_or(String::new(), |first| {
                format!("bits differ from step {} on, on the same kind of processor", first + 1)
            });
            Metric::exactly(name, wrong.len() as f64, 0.0, "steps", blame)
                .because(format!("bit for bit against golden losses from {}", golden.computed_on))
        }
        Some((golden, false)) => {
            let (own, wanted) = (trained.losses.last().copied(), golden.losses.last().copied());
            let words = format!(
                "loss of the last step; the golden one was computed on another kind of processor, {}",
                golden.computed_on
            );
            let mut metric = acceptance
                .judged(metric_limits::LOSSES, own.unwrap_or(f64::NAN), "nats", wanted)
                .because(words);
            metric.correctness = true;
            metric
        }
    }
}

/// Runs the same steps on halves of the ranks, and on halves of those whose bits differ.
fn on_subsets<B: Backend>(
    acceptance: &Acceptance<'_, B>,
    work: &Path,
    tokens: &str,
    trained: &TrainedRun,
    known: Option<u64>,
) -> Result<Metric> {
    let cluster = &acceptance.cluster;
    let name = "training.bad_ranks";
    if !acceptance.deck.training.find_bad_rank {
        return Ok(Metric::skipped(name, "training.find_bad_rank is off"));
    }
    if cluster.n() == 1 {
        return Ok(Metric::skipped(name, "one rank has no subsets"));
    }
    let mut round = 0;
    let n_micro_batches =
        acceptance.deck.training.global_batch_size / acceptance.deck.training.micro_batch_size;
    let finding = bisect::find(cluster.n(), n_micro_batches, trained.digest(), known, |groups| {
        round += 1;
        let dir = |g: usize| work.join(format!("subset_{round}_{g}")).display().to_string();
        let trained = train_on_groups(cluster, groups, |g| {
            acceptance.deck.reference(tokens, &dir(g), acceptance.deck.training.steps)
        })?;
        Ok(trained.iter().map(TrainedRun::digest).collect())
    });
    let finding = match finding {
        Ok(finding) => finding,
        Err(error @ Error::Agreed { .. }) => {
            return Err(agreed_failure(format!("the same steps on subsets: {error}")));
        }
        Err(error) => return Err(error),
    };
    let names = |ranks: &[usize]| ranks.iter().map(|&r| cluster.name(r)).collect::<Vec<_>>().join(", ");
    let rounds = format!("{round} round{} of runs on subsets", if round == 1 { "" } else { "s" });
    let (n_bad, blame) = match &finding {
        Finding::Clean => (0, String::new()),
        Finding::Bad(ranks) => (ranks.len(), format!("silent data corruption on {}", names(ranks))),
        Finding::Intermittent(ranks) => {
            (ranks.len(), format!("intermittent silent data corruption, among {}", names(ranks)))
        }
        Finding::Undecided => {
            let differing = if cluster.n() == 2 { names(&[0, 1]) } else { "subsets of the ranks".into() };
            let remedy = "store golden losses of a machine that you trust (--record-answers), or add a rank";
            (1, format!("{differing} compute different bits, and no two agree on the right ones: {remedy}"))
        }
    };
    let metric = Metric::exactly(name, n_bad as f64, 0.0, "", blame);
    Ok(if metric.status == Status::Pass { metric.because(rounds) } else { metric })
}
