//! Predictions beside runs: models that the fits have not seen, trained for a few steps on 1 to N ranks of
//! the job.

use super::node::Node;
use crate::backend::Backend;
use crate::backend::agree::all_or_none;
use crate::config::Deck;
use crate::config::hardware::Hardware;
use crate::error::Result;
use crate::harness::{Cluster, agreed_failure, train_on, write_tokens};
use crate::model::{precision, visit_kernels};
use crate::plan::forecast::{Forecast, Subject};
use crate::quantile::median;
use crate::train::planning;
use crate::train::state::Start;
use serde::Serialize;
use std::path::Path;

/// A model to train and predict.
struct TrialModel {
    name: &'static str,
    /// Keys of `[model]`.
    sizes: &'static str,
    /// Keys of `[zero]`.
    dtypes: &'static str,
}

const F32: &str = "";
const BF16: &str = "param_dtype = \"bf16\"\nreduce_dtype = \"bf16\"\n";
const GPT2_4X128: &str = "n_layer = 4\nn_head = 4\nd_model = 128\nseq_len = 128\nvocab_size = 512";
const GPT2_4X256: &str = "n_layer = 4\nn_head = 8\nd_model = 256\nseq_len = 128\nvocab_size = 512";
const LLAMA_3X384: &str = "family = \"llama\"\nn_layer = 3\nn_head = 6\nn_kv_head = 2\nd_model = 384\nd_ff = \
                           1024\nseq_len = 192\nvocab_size = 3000";

/// Widths, depths, families and types other than those of the fitted shapes.
const MODELS: [TrialModel; 4] = [
    TrialModel { name: "gpt2 4x128", sizes: GPT2_4X128, dtypes: F32 },
    TrialModel { name: "gpt2 4x256", sizes: GPT2_4X256, dtypes: F32 },
    TrialModel { name: "llama 3x384", sizes: LLAMA_3X384, dtypes: F32 },
    TrialModel { name: "gpt2 4x256 bf16", sizes: GPT2_4X256, dtypes: BF16 },
];
/// Micro-batches of each rank in a step.
const MICRO_BATCHES: usize = 2;
/// Sequences of a micro-batch.
const MICRO_BATCH_SIZE: usize = 4;
/// Seed of the synthetic tokens.
const TOKEN_SEED: u64 = 1;
/// Steps of a run; the first two do not count.
const STEPS: u64 = 10;

/// Measured and predicted step of one model on one number of ranks.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// Name.
    pub model: &'static str,
    /// Ranks.
    pub n_ranks: usize,
    /// Whether ranks shared cores.
    pub shared_cores: bool,
    /// Median step of the quickest round, since other processes only add to a time and are not predicted;
    /// seconds.
    pub measured_s: f64,
    /// Median step of the slowest round, seconds.
    pub slowest_s: f64,
    /// Predicted step, seconds.
    pub predicted_s: f64,
    /// Measured share of the step that the mean rank waits for collectives.
    pub measured_exposed: f64,
    /// Predicted share.
    pub predicted_exposed: f64,
}

impl Trial {
    /// Predicted over measured step, minus 1.
    pub fn error(&self) -> f64 {
        self.predicted_s / self.measured_s - 1.0
    }
}

fn deck(
    TrialModel { sizes, dtypes, .. }: &TrialModel,
    tokens: &str,
    dir: &Path,
    n_ranks: usize,
) -> Result<Deck> {
    let text = format!(
        "[run]\ndir = {:?}\nlocking = \"off\"\n[model]\n{sizes}\n[data]\ntrain = \
         [{tokens:?}]\n[train]\nsteps = {STEPS}\nmicro_batch_size = {MICRO_BATCH_SIZE}\nglobal_batch_size = \
         {}\n[optim]\nwarmup_steps = 2\n[zero]\n{dtypes}[checkpoint]\nevery = 0\n[log]\nevery = 0\n",
        dir.display().to_string(),
        MICRO_BATCHES * MICRO_BATCH_SIZE * n_ranks
    );
    Deck::parse(&text, &[], "a trial")
}

/// Trains each model on 1, 2 ... N ranks in each of `rounds` rounds, and predicts it. Collective; the same on
/// every rank.
pub fn run<B: Backend>(
    cluster: &Cluster<'_, B>,
    hardware: &Hardware,
    node: Node,
    rounds: usize,
    work: &Path,
) -> Result<Vec<Trial>> {
    let tokens = write_tokens(cluster, &deck(&MODELS[0], "tokens.u16", work, 1)?, TOKEN_SEED, work)?;
    let mut trials = Vec::new();
    let mut measured: Vec<Vec<(f64, f64)>> = Vec::new();
    for round in 0..rounds {
        let mut at = 0;
        for n_ranks in 1..=cluster.n() {
            let comm = (cluster.split)(usize::from(cluster.rank() >= n_ranks), cluster.rank())?;
            for model in &MODELS {
                let dir = work.join(format!("{round}_{at}"));
                let deck = deck(model, &tokens, &dir, n_ranks)?;
                let own = if cluster.rank() < n_ranks {
                    Some(train_on(cluster, &comm, deck.clone(), Start::Scratch, None)?)
                } else {
                    None
                };
                // Ranks that do not train leave their cores to those that do.
                cluster.quiet_barrier()?;
                let reported = all_or_none(cluster.comm, Ok(own.filter(|_| cluster.rank() == 0)))?;
                let trained =
                    reported[0].clone().expect("rank 0 is in every group").map_err(agreed_failure)?;
                let exposed = trained.exposed.iter().sum::<f64>() / trained.exposed.len() as f64;
                let outcome = (median(trained.settled_ms()) / 1e3, exposed);
                if round == 0 {
                    let forecast = predict::<B>(&deck, n_ranks, hardware, node)?;
                    trials.push(Trial {
                        model: model.name,
                        n_ranks,
                        shared_cores: n_ranks > node.devices,
                        measured_s: 0.0,
                        slowest_s: 0.0,
                        predicted_s: forecast.step_s,
                        measured_exposed: 0.0,
                        predicted_exposed: forecast.exposed_comm_s / forecast.step_s,
                    });
                    measured.push(Vec::new());
                }
                measured[at].push(outcome);
                at += 1;
            }
        }
    }
    for (trial, outcomes) in trials.iter_mut().zip(&measured) {
        let quickest = outcomes.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("at least one round");
        (trial.measured_s, trial.measured_exposed) = *quickest;
        trial.slowest_s = outcomes.iter().map(|o| o.0).fold(0.0, f64::max);
    }
    Ok(trials)
}

fn predict<B: Backend>(deck: &Deck, n_ranks: usize, hardware: &Hardware, node: Node) -> Result<Forecast> {
    let (model, plan) = planning::of_deck::<B::Device>(deck, n_ranks)?;
    let works = visit_kernels::of_model(&model, precision(deck));
    let subject = Subject {
        spec: &model.spec,
        works: &works,
        plan: &plan,
        n_micro: MICRO_BATCHES * n_ranks,
        per_node: node.ranks_per_node,
        tf32: false,
    };
    Forecast::new(&subject, hardware)
}
