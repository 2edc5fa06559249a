//! `summary.json` and the closing message of a run: what was done, and whether bytes moved and held match the
//! plan.
//!
//! The trainer fills it. Must not know: the origin of the numbers.

use crate::files;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::human;
use crate::telemetry::allocations::Allocations;
use crate::telemetry::ledger::MemKind;
use crate::telemetry::units::UnitTimes;

/// Name of the file under the run directory.
pub const SUMMARY_FILE: &str = "summary.json";

/// Everything about a finished or stopped run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Why the process ended, as text.
    pub exit_reason: String,
    /// The exit code it ended with.
    pub exit_code: i32,
    /// The run directory.
    pub run_dir: String,
    /// Digest of the resolved deck, 16 hex digits.
    #[serde(default)]
    pub deck: String,
    /// Ranks.
    pub world_size: u64,
    /// Optimizer step reached.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// Step this process started from: 0, or a checkpoint's.
    pub start_step: u64,
    /// Tokens trained on by this process, over all ranks.
    pub tokens: u64,
    /// Time from start to end of this process.
    pub wall_seconds: f64,
    /// Tokens per second of the training steps, without evaluation and checkpoints.
    pub tokens_per_s: Option<f64>,
    /// Breakdown of the time of this process.
    pub phases: Vec<PhaseTotal>,
    /// Heap allocations of rank 0 in the newest training step, from the first instruction to the optimizer's
    /// last.
    #[serde(default)]
    pub step_allocations: Vec<Allocations>,
    /// Last training loss in nats per token.
    pub loss: Option<f64>,
    /// Last validation loss in nats per token.
    pub val_loss: Option<f64>,
    /// Entropy of the validation tokens' frequencies in nats: the loss of a model that knows only
    /// frequencies.
    pub unigram_entropy: Option<f64>,
    /// Received payload per rank in one training step.
    pub all_gather_bytes_per_step: Planned,
    /// Received payload per rank in one training step.
    pub reduce_scatter_bytes_per_step: Planned,
    /// Received payload of every rank over the whole process.
    pub received_bytes: Vec<RankBytes>,
    /// Steps of any rank whose measured bytes differed from the plan; 0 unless the program is broken.
    pub steps_off_plan: u64,
    /// Model state of one rank between steps.
    pub resident: Resident,
    /// Whether small parameters remain whole on every rank.
    pub persistent: bool,
    /// Maximum bytes held at once.
    pub peak_bytes: Planned,
    /// The instruction at which they were held.
    pub peak_at: String,
    /// Peak of each kind of memory, on the rank with the highest total peak.
    pub peak_bytes_by_kind: Vec<KindBytes>,
    /// Collectives of each unit over all training steps, mean over ranks.
    pub units: Vec<UnitRow>,
    /// The newest complete checkpoint.
    pub last_checkpoint: Option<String>,
    /// Versions of program and libraries, instruction set.
    pub versions: BTreeMap<String, String>,
    /// Faults injected by tests, in this run or before the checkpoint it resumed from; none in a regular run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test_hooks: Vec<String>,
    /// What to try next; in the closing message only.
    #[serde(skip)]
    pub hints: Vec<String>,
}

/// Time of one phase over all steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PhaseTotal {
    /// E.g. `forward`.
    pub name: String,
    /// Mean over ranks.
    pub mean_ms: f64,
    /// The slowest rank's.
    pub max_ms: f64,
}

/// Collectives of one unit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UnitRow {
    /// E.g. `h.3`.
    pub name: String,
    /// Its times and bytes.
    #[serde(flatten)]
    pub times: UnitTimes,
}

/// Payload one rank received over the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankBytes {
    /// All-gathers of training steps.
    pub train_all_gather: u64,
    /// Gradient reductions of training steps.
    pub train_reduce_scatter: u64,
    /// All-gathers of evaluations.
    pub eval_all_gather: u64,
}

/// Planned and measured bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Planned {
    /// From the plan, before step 0.
    pub planned: u64,
    /// From the counters or the ledger.
    pub measured: u64,
}

/// One rank's model state at rest.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Resident {
    /// Parameters of the model (Psi), without padding.
    pub n_params: u64,
    /// Bytes of state per parameter held whole on every rank; 0 in stage 3.
    pub whole_bytes_per_param: u64,
    /// Bytes of state per parameter that are sharded: 16 in stage 3, in fp32 and in bf16 with bf16 gradients.
    pub cut_bytes_per_param: u64,
    /// `whole * n_params + cut * n_params / world_size`, a real number.
    pub formula_bytes: f64,
    /// Bytes added by padding and whole (persistent) parameters.
    pub padding_bytes: f64,
    /// Plan and ledger.
    pub bytes: Planned,
}

/// Peak of one kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes {
    /// The kind.
    pub kind: MemKind,
    /// Plan and ledger.
    #[serde(flatten)]
    pub bytes: Planned,
}

impl Resident {
    /// The formula of the stage with its numbers, `2 x 100 + 14 x 100 / 3 = 666.7`.
    pub fn formula_in_words(&self, world_size: u64) -> String {
        let per_param = (self.whole_bytes_per_param as usize, self.cut_bytes_per_param as usize);
        human::stage_formula(per_param, self.n_params, world_size)
    }
}

impl Summary {
    /// Atomically writes `summary.json`. Non-finite numbers become null.
    pub fn write(&self, run_dir: &Path) -> Result<()> {
        files::replace(&run_dir.join(SUMMARY_FILE), |out| {
            serde_json::to_writer_pretty(&mut *out, self)?;
            out.write_all(b"\n")
        })
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.planned == self.measured { "equal" } else { "DIFFERENT" };
        write!(f, "planned {:>14}  measured {:>14}  {verdict}", self.planned, self.measured)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = |name: &str| format!("  {name:<25}");
        writeln!(f, "{} (exit code {})", self.exit_reason, self.exit_code)?;
        let ranks = human::counted(self.world_size as usize, "rank");
        let (world_size, step, total) = (self.world_size, self.step, self.total_steps);
        writeln!(f, "{}{step} of {total}, from step {} on, {ranks}", label("step"), self.start_step)?;
        let time = human::seconds(self.wall_seconds);
        let rate =
            self.tokens_per_s.map_or(String::new(), |rate| format!(", {} tokens/s", human::count(rate)));
        writeln!(f, "{}{} in {time}{rate}", label("tokens"), self.tokens)?;
        if let Some(loss) = self.loss {
            writeln!(f, "{}{loss:.4} nats/token", label("training loss"))?;
        }
        if let Some(val_loss) = self.val_loss {
            let beside = self.unigram_entropy.map_or(String::new(), |entropy| {
                let side = if val_loss < entropy { "below" } else { "not below" };
                format!(", {side} the entropy of token frequencies ({entropy:.4})")
            });
            writeln!(f, "{}{val_loss:.4} nats/token{beside}", label("validation loss"))?;
        }
        let phase = |p: &PhaseTotal| format!("{} {}", p.name, human::seconds(p.mean_ms / 1e3));
        let phases: Vec<String> = self.phases.iter().filter(|p| p.mean_ms >= 500.0).map(phase).collect();
        if !phases.is_empty() {
            writeln!(f, "{}{}", label("time"), phases.join(", "))?;
        }
        if !self.test_hooks.is_empty() {
            writeln!(f, "{}{}", label("test hooks active"), self.test_hooks.join(", "))?;
        }
        writeln!(f, "bytes per rank")?;
        writeln!(f, "{}{}", label("all-gather per step"), self.all_gather_bytes_per_step)?;
        writeln!(f, "{}{}", label("reduce-scatter per step"), self.reduce_scatter_bytes_per_step)?;
        writeln!(f, "{}{}", label("resident at rest"), self.resident.bytes)?;
        let formula = self.resident.formula_in_words(world_size);
        let padding_bytes = self.resident.padding_bytes;
        let besides = if self.persistent { "padding and persistent parameters" } else { "padding" };
        writeln!(f, "{}{formula}, + {padding_bytes:.1} {besides}", label(""))?;
        writeln!(f, "{}{}", label("peak"), self.peak_bytes)?;
        if !self.peak_at.is_empty() {
            writeln!(f, "{}at {}", label(""), self.peak_at)?;
        }
        for KindBytes { kind, bytes } in
            self.peak_bytes_by_kind.iter().filter(|k| k.bytes != Planned::default())
        {
            writeln!(f, "    {:<23}{bytes}", kind.name())?;
        }
        writeln!(f, "files")?;
        writeln!(f, "{}{}/steps.csv, steps.jsonl, summary.json", label("logs"), self.run_dir)?;
        write!(f, "{}{}", label("checkpoint"), self.last_checkpoint.as_deref().unwrap_or("none"))?;
        if !self.hints.is_empty() {
            write!(f, "\nnext")?;
        }
        for hint in &self.hints {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            exit_reason: "finished: all 200 steps are done".into(),
            run_dir: "runs/tiny".into(),
            deck: "00c0ffee00c0ffee".into(),
            world_size: 3,
            step: 200,
            total_steps: 200,
            tokens: 1_638_400,
            wall_seconds: 95.0,
            tokens_per_s: Some(18_000.0),
            phases: vec![PhaseTotal { name: "forward".into(), mean_ms: 30_000.0, max_ms: 31_000.0 }],
            loss: Some(2.5),
            val_loss: Some(2.6),
            unigram_entropy: Some(3.2),
            all_gather_bytes_per_step: Planned { planned: 1000, measured: 1000 },
            reduce_scatter_bytes_per_step: Planned { planned: 1000, measured: 1001 },
            resident: Resident {
                n_params: 1000,
                whole_bytes_per_param: 0,
                cut_bytes_per_param: 16,
                formula_bytes: 16_000.0 / 3.0,
                padding_bytes: 32.0 / 3.0,
                bytes: Planned { planned: 5344, measured: 5344 },
            },
            peak_at: "backward of unit h.3".into(),
            peak_bytes_by_kind: vec![
                KindBytes { kind: MemKind::Gathered, bytes: Planned { planned: 7, measured: 7 } },
                KindBytes { kind: MemKind::Master, bytes: Planned::default() },
            ],
            hints: vec!["mpirun -n 3 ...".into()],
            ..Summary::default()
        }
    }

    #[test]
    fn the_closing_words_put_plan_and_measurement_side_by_side() {
        let shown = summary().to_string();
        for part in [
            "2.6000 nats/token, below the entropy of token frequencies (3.2000)",
            "measured           1000  equal",
            "measured           1001  DIFFERENT",
            "16 x 1000 / 3 = 5333.3, + 10.7 padding",
            "gathered params",
            "backward of unit h.3",
            "checkpoint               none",
            "runs/tiny/steps.csv",
            "next\n  mpirun -n 3 ...",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(!shown.contains("master"), "kinds without bytes are left out\n{shown}");
        assert!(shown.lines().all(|line| line == line.trim_end()), "{shown}");
    }

    #[test]
    fn the_file_reads_back_and_not_a_number_is_null() {
        let dir = tempfile::tempdir().unwrap();
        let mut written = summary();
        written.hints.clear();
        written.write(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("summary.json")).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), written);
        written.loss = Some(f64::NAN);
        written.write(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("summary.json")).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap().loss, None);
    }
}
