//! The predicted cost of a step on given hardware: time, exposed communication, utilization, bytes that leave
//! a node.
//!
//! Reading order: [`Forecast::new`] here, `simulate.rs` (the run), `cost.rs` (seconds), `traffic.rs` (bytes);
//! then `advice.rs` (which knob to turn), `sweep.rs` (many plans), `model_size.rs` (a model of a number of
//! parameters), `forecast_table.rs` (text).
//!
//! The instructions are those of the executor, in their order. Pure. Must not know: MPI, devices, the clock.

pub mod advice;
pub mod cost;
pub mod forecast_table;
pub mod formula;
pub mod model_size;
pub mod simulate;
pub mod sweep;
#[cfg(feature = "figures")]
pub mod sweep_chart;
#[cfg(test)]
mod tests;
pub mod traffic;

use super::micro_batches::MicroBatches;
use super::placement::State;
use super::schedule::{Instr, Pass, Reduce, Schedule, Visit};
use super::{Knobs, Plan, Program};
use crate::config::hardware::Hardware;
use crate::dtype::DType;
use crate::error::Result;
use crate::params::ModelSpec;
use crate::work::{Kernel, UnitWork, Work};
use cost::Machine;
use serde::Serialize;
use simulate::{CommQueue, Outcome, Task};
use traffic::Layout;

/// The subject of a prediction: a plan, its work and its placement.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The model as data.
    pub spec: &'a ModelSpec,
    /// Kernels of each unit.
    pub works: &'a [UnitWork],
    /// The plan.
    pub plan: &'a Plan,
    /// Micro-batches of a step.
    pub n_micro: usize,
    /// Ranks of a full node.
    pub per_node: usize,
    /// f32 products round their operands to TF32.
    pub tf32: bool,
}

/// The prediction of one step. Times are those of rank 0, which has a micro-batch in every micro-step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Name of the hardware.
    pub hardware: String,
    /// Whether its figures were measured on such a machine; otherwise they are from data sheets and
    /// assumptions.
    pub measured: bool,
    /// Ranks.
    pub world_size: usize,
    /// Ranks of a full node.
    pub ranks_per_node: usize,
    /// Nodes.
    pub n_nodes: usize,
    /// Ranks without a micro-batch in the last micro-step (or in the only one).
    pub idle_ranks: usize,
    /// Micro-steps of a step.
    pub micro_steps: usize,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// Arena and host memory outside it, of one rank.
    pub memory_bytes: u64,
    /// Memory available to one rank.
    pub memory_limit_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
    /// Received by rank 0 in a step: all-gathers.
    pub all_gather_bytes: u64,
    /// Received by rank 0 in a step: reductions.
    pub reduce_scatter_bytes: u64,
    /// Sent to other nodes in a step by all ranks of the first node: all-gathers.
    pub leaving_node_all_gather_bytes: u64,
    /// Sent to other nodes in a step by all ranks of the first node: reductions.
    pub leaving_node_reduce_scatter_bytes: u64,
    /// One step.
    pub step_s: f64,
    /// Kernels alone: forward and backward, recomputation included.
    pub compute_s: f64,
    /// Recomputation in that time.
    pub recompute_s: f64,
    /// All-gathers alone.
    pub gather_s: f64,
    /// Reductions alone.
    pub reduce_s: f64,
    /// Norm, update, and the refresh of whole parameters after it.
    pub optimizer_s: f64,
    /// Exposed communication: compute waits for collectives.
    pub exposed_comm_s: f64,
    /// Tokens of all ranks per second.
    pub tokens_per_s: f64,
    /// `flops_per_token * tokens_per_s / (N * peak)`, as the `mfu` of a run.
    pub mfu: f64,
    /// Computed FLOPs (recomputation included, only the causal half of attention) divided by the peak.
    pub hfu: f64,
}

impl Forecast {
    /// Predicts one step.
    ///
    /// # Errors
    /// The hardware has no such nodes.
    pub fn new(subject: &Subject<'_>, hardware: &Hardware) -> Result<Self> {
        let Subject { spec, plan, n_micro, .. } = *subject;
        let n = plan.world_size;
        let machine = Machine::new(hardware, Layout::new(n, subject.per_node), subject.tf32)?;
        let mut sums = Sums::default();
        let order = MicroBatches::new(n_micro, n);
        let a = order.micro_steps();
        // All micro-steps except the last are alike.
        for (a_i, times) in [(0, a - 1), (a - 1, 1)].into_iter().filter(|(_, times)| *times > 0) {
            let (active, contributors) = (order.contributors(a_i), plan.contributors(n_micro, a_i));
            sums.add_micro_step(
                subject,
                &machine,
                plan.micro_step(a_i, a),
                active,
                contributors,
                times as f64,
            );
        }
        sums.add_update(subject, &machine);
        let step_s = sums.step_s;
        let tokens_per_step = (n_micro * spec.tokens_per_micro_batch) as u64;
        let tokens_per_s = tokens_per_step as f64 / step_s;
        let peak = machine.peak_flops(plan.knobs.param_dtype);
        let memory_bytes = plan.arena_bytes as u64 + plan.outside_bytes();
        let memory_limit_bytes = (hardware.device.memory_gb * 1e9) as u64;
        let volume = plan.step_volume(0, n_micro);
        let (leaving_gathers, leaving_reductions) = leaving_node(subject, &machine);
        let last_active = n_micro - (a - 1) * n;
        Ok(Forecast {
            hardware: hardware.hardware.name.clone(),
            measured: hardware.hardware.measured,
            world_size: n,
            ranks_per_node: machine.layout.per_node,
            n_nodes: machine.layout.n_nodes(),
            idle_ranks: n - last_active,
            micro_steps: a,
            tokens_per_step,
            memory_bytes,
            memory_limit_bytes,
            fits: memory_bytes <= memory_limit_bytes,
            all_gather_bytes: volume.all_gather_bytes,
            reduce_scatter_bytes: volume.reduce_scatter_bytes,
            leaving_node_all_gather_bytes: leaving_gathers,
            leaving_node_reduce_scatter_bytes: leaving_reductions,
            step_s,
            compute_s: sums.compute_s,
            recompute_s: sums.recompute_s,
            gather_s: sums.gather_s,
            reduce_s: sums.reduce_s,
            optimizer_s: sums.optimizer_s,
            exposed_comm_s: sums.exposed_s,
            tokens_per_s,
            mfu: spec.flops_per_token * tokens_per_s / (n as f64 * peak),
            hfu: sums.flops / (step_s * peak),
        })
    }
}

/// Accumulated times of a step.
#[derive(Debug, Default)]
struct Sums {
    step_s: f64,
    compute_s: f64,
    recompute_s: f64,
    gather_s: f64,
    reduce_s: f64,
    optimizer_s: f64,
    exposed_s: f64,
    /// For rank 0.
    flops: f64,
}

impl Sums {
    /// `times` runs of a program.
    fn add_micro_step(
        &mut self,
        subject: &Subject<'_>,
        machine: &Machine<'_>,
        program: &Program,
        active: usize,
        contributors: usize,
        times: f64,
    ) {
        let timed = TimedProgram::new(subject, machine, program, contributors);
        let Outcome { seconds, exposed_s, .. } = simulate::run(&timed.tasks, machine.sharing(active));
        self.step_s += times * seconds;
        self.exposed_s += times * exposed_s;
        self.compute_s += times * timed.compute_s;
        self.recompute_s += times * timed.recompute_s;
        self.gather_s += times * timed.gather_s;
        self.reduce_s += times * timed.reduce_s;
        self.flops += times * timed.flops;
    }

    /// The end of a step: sums at rest, losses, norm, update, refresh.
    fn add_update(&mut self, subject: &Subject<'_>, machine: &Machine<'_>) {
        let plan = subject.plan;
        let capacity = machine.sharing(plan.world_size).capacity;
        let (mut kernels_s, mut comm_s) = (0.0, 2.0 * machine.words_s());
        for (partition, placement) in plan.partitions.iter().zip(&plan.placements) {
            let shard = partition.shard_numel();
            let bytes = |state: State| state.dtype(&plan.knobs).map_or(0, |dtype| dtype.bytes());
            let grad = bytes(State::Grad);
            if plan.knobs.grad_dtype != DType::F32 || placement.grad == super::placement::Hold::Whole {
                kernels_s += machine.stream_s((shard * (4 + grad)) as u64);
            }
            kernels_s +=
                machine.kernel_s(&Work::pass(Kernel::SumOfSquares, plan.knobs.grad_dtype, shard * grad));
            let Knobs { optimizer, optim_states, param_dtype, .. } = plan.knobs;
            let update =
                Work::update(optimizer, optim_states.len(), param_dtype, plan.knobs.grad_dtype, shard);
            kernels_s += machine.kernel_s(&update);
        }
        if let Some(state) = plan.refreshed_state() {
            for bucket in plan.refresh.of(state) {
                let slices: u64 = bucket.staging.iter().map(|&s| plan.refresh.slots[s].bytes() as u64).sum();
                comm_s += machine.stream_s(2 * slices) + machine.all_gather_s(slices);
            }
        }
        self.optimizer_s += (kernels_s + comm_s) / capacity;
        self.exposed_s += comm_s / capacity;
        self.step_s += (kernels_s + comm_s) / capacity;
    }
}

/// A program's instructions with their times.
pub struct TimedProgram {
    /// In the order of the instructions.
    pub tasks: Vec<Task>,
    compute_s: f64,
    recompute_s: f64,
    gather_s: f64,
    reduce_s: f64,
    flops: f64,
}

impl TimedProgram {
    /// Assigns every instruction its time on rank 0.
    pub fn new(subject: &Subject<'_>, machine: &Machine<'_>, program: &Program, contributors: usize) -> Self {
        let Schedule { instrs, gathers, reduces } = &program.schedule;
        let mut timed = TimedProgram {
            tasks: Vec::with_capacity(instrs.len()),
            compute_s: 0.0,
            recompute_s: 0.0,
            gather_s: 0.0,
            reduce_s: 0.0,
            flops: 0.0,
        };
        let mut n_jobs = 0;
        let mut gather_jobs = vec![usize::MAX; gathers.len()];
        let mut reduce_jobs = vec![usize::MAX; reduces.len()];
        for instr in instrs {
            let task = match *instr {
                Instr::Gather(g) => {
                    let gather = &gathers[g];
                    let slice = |p: &usize| {
                        (subject.plan.knobs.param_dtype.bytes() * subject.plan.partitions[*p].shard_numel())
                            as u64
                    };
                    let calls =
                        gather.calls.iter().map(|call| gather.params[call.clone()].iter().map(slice).sum());
                    let seconds = calls.map(|bytes: u64| machine.all_gather_s(bytes)).sum();
                    timed.gather_s += seconds;
                    gather_jobs[g] = n_jobs;
                    Task::Start { job: n_jobs, queue: CommQueue::Gather, seconds }
                }
                Instr::Wait(g) => Task::Wait(gather_jobs[g]),
                Instr::Compute(Visit { unit, pass, .. }) => {
                    Task::Compute(timed.visit(subject, machine, program, unit, pass))
                }
                Instr::Release(_) => continue,
                Instr::Accumulate(r) => {
                    Task::Compute(timed.passes(machine, numel_of(subject, &reduces[r]) * 12))
                }
                Instr::Round(r) => Task::Compute(timed.passes(machine, numel_of(subject, &reduces[r]) * 6)),
                Instr::Reduce(r) => {
                    let seconds = reduction_s(subject, machine, &reduces[r], contributors);
                    timed.reduce_s += seconds;
                    reduce_jobs[r] = n_jobs;
                    Task::Start { job: n_jobs, queue: CommQueue::Reduce, seconds }
                }
                Instr::ReduceWait(r) => Task::Wait(reduce_jobs[r]),
            };
            n_jobs += usize::from(matches!(task, Task::Start { .. }));
            timed.tasks.push(task);
        }
        timed
    }

    /// Kernels of one visit.
    fn visit(
        &mut self,
        subject: &Subject<'_>,
        machine: &Machine<'_>,
        program: &Program,
        unit: usize,
        pass: Pass,
    ) -> f64 {
        let UnitWork { forward, backward } = &subject.works[unit];
        let seconds = |works: &[Work]| works.iter().map(|work| machine.kernel_s(work)).sum::<f64>();
        let flops = |works: &[Work]| works.iter().map(|work| work.flops).sum::<f64>();
        let again = pass == Pass::Backward && program.recomputed_out[unit].is_some();
        let (again_s, again_flops) = if again { (seconds(forward), flops(forward)) } else { (0.0, 0.0) };
        let works = if pass == Pass::Forward { forward } else { backward };
        let visit_s = seconds(works) + again_s;
        self.flops += flops(works) + again_flops;
        self.recompute_s += again_s;
        self.compute_s += visit_s;
        visit_s
    }

    fn passes(&mut self, machine: &Machine<'_>, bytes: u64) -> f64 {
        let seconds = machine.stream_s(bytes);
        self.compute_s += seconds;
        seconds
    }
}

/// Elements of the parameters of a reduction.
fn numel_of(subject: &Subject<'_>, reduce: &Reduce) -> u64 {
    reduce.params.iter().map(|&p| subject.plan.partitions[p].numel as u64).sum()
}

fn slice_numel_of(subject: &Subject<'_>, reduce: &Reduce) -> u64 {
    reduce.params.iter().map(|&p| subject.plan.partitions[p].shard_numel() as u64).sum()
}

fn reduction_s(subject: &Subject<'_>, machine: &Machine<'_>, reduce: &Reduce, contributors: usize) -> f64 {
    let knobs = &subject.plan.knobs;
    let (numel, n_calls) = (slice_numel_of(subject, reduce), reduce.buckets.len());
    machine.reduce_s(numel, knobs.reduce_dtype, contributors, knobs.deterministic, n_calls)
}

/// Bytes that all ranks of the first node send to other nodes in a step: all-gathers and reductions.
fn leaving_node(subject: &Subject<'_>, machine: &Machine<'_>) -> (u64, u64) {
    let Subject { plan, n_micro, .. } = *subject;
    let (layout, route, knobs) = (machine.layout, machine.hardware.network.gather, &plan.knobs);
    let gathered = |slice_bytes: u64| traffic::all_gather(layout, route, slice_bytes).leaving_node;
    // Bytes are proportional to slices, so those of a step can be computed at once.
    let slices =
        plan.step_volume(0, n_micro).all_gather_bytes.checked_div(plan.world_size as u64 - 1).unwrap_or(0);
    let slice_bytes = plan.reduce_slice_bytes();
    let reductions = plan.reductions(n_micro).map(|(k, times)| {
        traffic::reduce_scatter(layout, knobs.deterministic, k, slice_bytes).leaving_node * times
    });
    (gathered(slices), reductions.sum())
}
