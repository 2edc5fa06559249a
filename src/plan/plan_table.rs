//! The plan as text and JSON: `zero3 plan`.

use super::micro_batches::MicroBatches;
use super::partition::Partition;
use super::placement::bytes_per_param;
use super::schedule::{Instr, Pass, Schedule, Visit};
use super::volume::{Bound, Saving, Volume};
use super::{Peaks, Plan};
use crate::human;
use crate::params::ModelSpec;
use serde::Serialize;
use std::fmt;

/// Additional parameters of a printed plan.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Shape {
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Ranks of one node.
    pub ranks_per_node: usize,
}

/// A printed plan. All sizes are bytes per rank unless stated otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct Paper {
    /// Ranks in the shard group (N).
    pub world_size: usize,
    /// Ranks of one node.
    pub ranks_per_node: usize,
    /// Parameters of the model (Psi).
    pub n_params: usize,
    /// The same with padding (Psi^).
    pub n_params_padded: usize,
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Micro-steps of a step (A).
    pub micro_steps: usize,
    /// Ranks with a micro-batch in the last micro-step.
    pub ranks_in_last_micro_step: usize,
    /// The partition of each parameter.
    pub params: Vec<ParamRow>,
    /// Whether gradients are accumulated and reduced only in the last micro-step.
    pub reduced_once: bool,
    /// One micro-step (the last one, if gradients are accumulated), instruction by instruction.
    pub schedule: Vec<String>,
    /// Resident model state, padding included.
    pub resident_bytes: u64,
    /// `whole * Psi + cut * Psi / N` bytes, without padding and persistent parameters.
    pub formula_bytes: f64,
    /// `(whole, cut)` bytes per parameter of the stage.
    pub bytes_per_param: (usize, usize),
    /// Peak of each kind of memory in training.
    pub peak_bytes_by_kind: Vec<KindRow>,
    /// Largest sum of all kinds at once.
    pub peak_bytes: u64,
    /// The instruction of that peak.
    pub peak_at: String,
    /// Size of the arena: the peak plus packing overhead.
    pub arena_bytes: u64,
    /// Received per step by each rank.
    pub step_volume: Vec<VolumeRow>,
    /// Upper limit of the bytes a rank receives per step, with nothing persistent.
    pub upper_bound: Bound,
    /// Savings of one micro-step compared with gathering everything twice.
    pub savings: Vec<Saving>,
    /// Received from other nodes by all ranks of one full node per step.
    pub node: NodeVolume,
}

/// The partition of one parameter.
#[derive(Debug, Clone, Serialize)]
pub struct ParamRow {
    /// Name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements.
    pub numel: usize,
    /// Elements of a slice, padding included.
    pub shard_numel: usize,
    /// Elements of padding over all ranks.
    pub padding: usize,
    /// Ranks whose slice is empty.
    pub empty_slices: usize,
}

/// Peak of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct KindRow {
    /// Kind of memory.
    pub kind: &'static str,
    /// Peak bytes.
    pub bytes: u64,
}

/// Received per step by some ranks.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeRow {
    /// First rank with these figures.
    pub first_rank: usize,
    /// Last rank with these figures.
    pub last_rank: usize,
    /// All-gathers.
    pub all_gather_bytes: u64,
    /// Gradient reductions.
    pub reduce_scatter_bytes: u64,
}

/// Traffic into a node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct NodeVolume {
    /// Gathers, with every rank fetching separately.
    pub all_gather_bytes: u64,
    /// Reductions by exchange of slices (rule 8).
    pub reduce_scatter_bytes: u64,
    /// Incoming bytes of rings that enter each node once, for the same reductions.
    pub ring_reduce_scatter_bytes: u64,
}

impl Paper {
    /// Prints a plan.
    pub fn new(spec: &ModelSpec, plan: &Plan, shape: Shape) -> Self {
        let n = plan.world_size;
        let psi_hat: usize = plan.partitions.iter().map(Partition::padded_numel).sum();
        let order = MicroBatches::new(shape.n_micro, n);
        let a = order.micro_steps();
        let peaks = plan.training_peaks();
        let mut step_volume: Vec<VolumeRow> = Vec::new();
        let borders = plan.volume_borders(shape.n_micro);
        for (i, &rank) in borders.iter().enumerate() {
            let last_rank = borders.get(i + 1).unwrap_or(&n) - 1;
            let Volume { all_gather_bytes, reduce_scatter_bytes } = plan.step_volume(rank, shape.n_micro);
            match step_volume.last_mut() {
                Some(row)
                    if (row.all_gather_bytes, row.reduce_scatter_bytes)
                        == (all_gather_bytes, reduce_scatter_bytes) =>
                {
                    row.last_rank = last_rank;
                }
                _ => step_volume.push(VolumeRow {
                    first_rank: rank,
                    last_rank,
                    all_gather_bytes,
                    reduce_scatter_bytes,
                }),
            }
        }
        Paper {
            world_size: n,
            ranks_per_node: shape.ranks_per_node.min(n),
            n_params: spec.numel(),
            n_params_padded: psi_hat,
            n_micro: shape.n_micro,
            micro_steps: a,
            ranks_in_last_micro_step: order.contributors(a - 1),
            params: spec
                .params
                .iter()
                .zip(&plan.partitions)
                .map(|(param, p)| ParamRow {
                    name: param.name.clone(),
                    shape: param.shape.clone(),
                    numel: p.numel,
                    shard_numel: p.shard_numel(),
                    padding: p.padded_numel() - p.numel,
                    empty_slices: p.n_empty(),
                })
                .collect(),
            reduced_once: plan.reduces_once(),
            schedule: instructions(spec, &plan.train.schedule),
            resident_bytes: plan.resident_bytes(),
            formula_bytes: plan.formula_bytes(spec.numel()),
            bytes_per_param: bytes_per_param(&plan.knobs),
            peak_bytes_by_kind: peaks
                .by_kind
                .iter()
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(kind, bytes)| KindRow { kind: kind.name(), bytes: *bytes })
                .collect(),
            peak_bytes: peaks.total,
            peak_at: peak_at(spec, plan, &peaks),
            arena_bytes: plan.arena_bytes as u64,
            step_volume,
            upper_bound: plan.bound(shape.n_micro),
            savings: plan.savings(spec),
            node: node_volume(plan, shape),
        }
    }
}

/// Every rank of a full node receives slices of every rank outside it. For the first node, whose ranks have
/// the most micro-batches.
fn node_volume(plan: &Plan, shape: Shape) -> NodeVolume {
    let n = plan.world_size;
    let k = shape.ranks_per_node.min(n);
    let (ranks, outside) = (k as u64, (n - k) as u64);
    // A gather receives the same from each peer.
    let from_a_peer =
        plan.step_volume(0, shape.n_micro).all_gather_bytes.checked_div(n as u64 - 1).unwrap_or(0);
    let slices = ranks * plan.reduce_slice_bytes();
    let contributions: Vec<(u64, u64)> = plan
        .reductions(shape.n_micro)
        .map(|(active, times)| (active.saturating_sub(k) as u64, times))
        .collect();
    // In a reduce-scatter ranks without a gradient take part, too.
    let on_a_ring = |contributed: u64| contributed > 0 || !plan.knobs.deterministic && outside > 0;
    let on_rings = contributions.iter().filter(|(contributed, _)| on_a_ring(*contributed));
    let rings = on_rings.map(|(_, times)| times).sum::<u64>();
    // A ring's link into a node carries all slices but one.
    let ring_slices = if outside > 0 { n as u64 - 1 } else { 0 };
    let ring_reduce_scatter_bytes =
        plan.reduce_slice_bytes().saturating_mul(rings).saturating_mul(ring_slices);
    let contributed: u64 =
        contributions.iter().map(|(contributed, times)| contributed.saturating_mul(*times)).sum();
    NodeVolume {
        all_gather_bytes: (ranks * outside).saturating_mul(from_a_peer),
        reduce_scatter_bytes: match plan.knobs.deterministic {
            true => slices.saturating_mul(contributed),
            false => ring_reduce_scatter_bytes,
        },
        ring_reduce_scatter_bytes,
    }
}

/// One line per instruction.
fn instructions(spec: &ModelSpec, schedule: &Schedule) -> Vec<String> {
    let unit = |u: usize| &spec.units[u].name;
    let pass = |p: Pass| match p {
        Pass::Forward => "forward",
        Pass::Loss => "loss",
        Pass::Backward => "backward",
    };
    schedule
        .instrs
        .iter()
        .map(|instr| match *instr {
            Instr::Gather(g) => {
                format!("gather   {} for {}", unit(schedule.gathers[g].unit), pass(schedule.gathers[g].pass))
            }
            Instr::Wait(g) => format!("wait     {}", unit(schedule.gathers[g].unit)),
            Instr::Compute(Visit { unit: u, pass: Pass::Loss, .. }) => {
                format!("compute  {} loss and backward", unit(u))
            }
            Instr::Compute(Visit { unit: u, pass: p, .. }) => format!("compute  {} {}", unit(u), pass(p)),
            Instr::Release(g) => format!("release  {}", unit(schedule.gathers[g].unit)),
            Instr::Accumulate(r) => format!("hold     gradients of {}", unit(schedule.reduces[r].unit)),
            Instr::Round(r) => format!("round    gradients of {}", unit(schedule.reduces[r].unit)),
            Instr::Reduce(r) => format!("reduce   gradients of {}", unit(schedule.reduces[r].unit)),
            Instr::ReduceWait(r) => format!("reduced  gradients of {}", unit(schedule.reduces[r].unit)),
        })
        .collect()
}

/// The instruction at the peak of training, or a description if it is not an instruction's.
fn peak_at(spec: &ModelSpec, plan: &Plan, peaks: &Peaks) -> String {
    if peaks.total > plan.train.peaks.total + plan.outside_bytes() {
        return "refresh".into();
    }
    let instructions = instructions(spec, &plan.train.schedule);
    instructions[plan.train.peaks.at].split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.world_size;
        writeln!(f, "plan for {}, {} on a node", human::counted(n, "rank"), self.ranks_per_node)?;
        writeln!(f, "\npartition: {} parameters, {} with padding", self.n_params, self.n_params_padded)?;
        let width = self.params.iter().map(|p| p.name.len()).max().unwrap_or(9).max(9);
        writeln!(
            f,
            "  {:<width$} {:>16} {:>12} {:>12} {:>8} {:>6}",
            "parameter", "shape", "numel", "slice", "padding", "empty"
        )?;
        for p in &self.params {
            let shape = format!("{:?}", p.shape);
            let (name, numel, slice) = (&p.name, p.numel, p.shard_numel);
            writeln!(
                f,
                "  {name:<width$} {shape:>16} {numel:>12} {slice:>12} {:>8} {:>6}",
                p.padding, p.empty_slices
            )?;
        }
        writeln!(
            f,
            "\nschedule: {} micro-batches in {} micro-steps, the last one of {} ranks; {} micro-step is",
            self.n_micro,
            self.micro_steps,
            self.ranks_in_last_micro_step,
            if self.reduced_once { "the last" } else { "each" }
        )?;
        for line in &self.schedule {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "\nmemory per rank, at peak")?;
        for KindRow { kind, bytes } in &self.peak_bytes_by_kind {
            writeln!(f, "  {kind:<18} {bytes:>16}  {:>10}", human::bytes(*bytes))?;
        }
        let row = |name: &str, bytes: u64| format!("  {name:<18} {bytes:>16}  {:>10}", human::bytes(bytes));
        writeln!(f, "{}  at {}", row("total", self.peak_bytes), self.peak_at)?;
        writeln!(f, "{}", row("arena", self.arena_bytes))?;
        writeln!(
            f,
            "{}  {}, + padding and persistent parameters",
            row("at rest", self.resident_bytes),
            human::stage_formula(self.bytes_per_param, self.n_params as u64, n as u64)
        )?;
        writeln!(f, "\nbytes received per step")?;
        writeln!(f, "  {:<12} {:>16} {:>16} {:>16}", "ranks", "all-gather", "reduce-scatter", "total")?;
        for v in &self.step_volume {
            let ranks = if v.first_rank == v.last_rank {
                v.first_rank.to_string()
            } else {
                format!("{}..={}", v.first_rank, v.last_rank)
            };
            let (gather, reduce) = (v.all_gather_bytes, v.reduce_scatter_bytes);
            writeln!(f, "  {ranks:<12} {gather:>16} {reduce:>16} {:>16}", gather + reduce)?;
        }
        let Bound { all_gathers, reductions, bytes } = self.upper_bound;
        writeln!(
            f,
            "  at most      {bytes:>50}  ({} and {} of everything, (N-1)/N of it)",
            human::counted(all_gathers, "all-gather"),
            human::counted(reductions, "reduction")
        )?;
        for s in &self.savings {
            writeln!(f, "  saved        {:>50}  {} per micro-step: {}", s.bytes, s.param, s.reason)?;
        }
        writeln!(f, "\nbytes a node of {} ranks receives from other nodes per step", self.ranks_per_node)?;
        writeln!(f, "  all-gather     {:>16}", self.node.all_gather_bytes)?;
        write!(
            f,
            "  reduce-scatter {:>16}  (a ring: {}; the exchange gives bitwise the same results on every rank \
             count)",
            self.node.reduce_scatter_bytes, self.node.ring_reduce_scatter_bytes
        )
    }
}
