//! Figures of the execution: a traced step, the ledger and the plan, loss and speed of the whole run.

use super::run_plan::RunPlan;
use crate::figures::Figure;
use crate::figures::compute::Pass;
use crate::figures::loss_curve::{CurveStep, LossCurve};
use crate::figures::memory::{Layer, Measured, Memory};
use crate::figures::timeline::{MAX_RANKS, Span, Timeline, What};
use crate::plan::MicroBatches;
use crate::plan::Program;
use crate::plan::schedule::{self, Instr};
use crate::plan::slots::Slot;
use crate::records::run_records::RunEvent;
use crate::records::step_reader::LoggedStep;
use crate::report::recorded_run::{RecordedRun, TracedEvent};
use crate::telemetry::MemKind;
use crate::telemetry::trace::Track;

/// The first attempt at the first traced step, as far as it matches this plan.
struct TracedStep<'a> {
    step: u64,
    /// When it started on any rank, ms.
    begin_ms: f64,
    /// Rank 0's instructions of the first micro-step, if they match the plan.
    first_micro_step: Vec<&'a TracedEvent>,
    /// All events of the attempt.
    events: Vec<&'a TracedEvent>,
}

fn traced_step<'a>(run: &'a RecordedRun, planned: &RunPlan) -> Option<TracedStep<'a>> {
    let trace = run.trace.as_ref()?;
    let step = trace.iter().map(|e| e.step).min()?;
    let of_step = || trace.iter().filter(|e| e.step == step);
    let RunPlan { spec, plan, n_micro } = planned;
    let n_micro_steps = MicroBatches::new(*n_micro, plan.world_size).micro_steps();
    let programs: Vec<&Program> = (0..n_micro_steps).map(|a| plan.micro_step(a, n_micro_steps)).collect();
    let n_instrs: usize = programs.iter().map(|p| p.schedule.instrs.len()).sum();
    // A skipped step is attempted again under the same number.
    let own: Vec<&TracedEvent> = of_step().filter(|e| e.rank == 0 && e.track == Track::Compute).collect();
    let end_ms = own.get(n_instrs).map_or(f64::INFINITY, |next| next.start_ms);
    let first = programs[0];
    let is_planned = own.len() >= n_instrs
        && first.schedule.instrs.iter().zip(&own).all(|(&instr, event)| {
            let (what, unit) = first.describe(instr);
            event.what == what && spec.units[unit].name == event.unit
        });
    Some(TracedStep {
        step,
        begin_ms: of_step().map(|e| e.start_ms).fold(f64::INFINITY, f64::min),
        first_micro_step: if is_planned { own[..first.schedule.instrs.len()].to_vec() } else { Vec::new() },
        events: of_step().filter(|e| e.start_ms < end_ms).collect(),
    })
}

/// One step from the trace; None without one.
pub fn timeline(run: &RecordedRun, planned: &RunPlan) -> Option<Figure> {
    let traced = traced_step(run, planned)?;
    let span = |e: &TracedEvent| Span {
        what: what(e),
        unit: e.unit.clone(),
        start_ms: e.start_ms - traced.begin_ms,
        ms: e.ms,
        bytes: e.bytes,
    };
    let n_ranks = traced.events.iter().map(|e| e.rank + 1).max()?;
    let ranks: Vec<Vec<Span>> = (0..n_ranks.min(MAX_RANKS))
        .map(|rank| {
            let mut spans: Vec<Span> =
                traced.events.iter().filter(|e| e.rank == rank).map(|e| span(e)).collect();
            spans.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
            spans
        })
        .collect();
    let end = |e: &&TracedEvent| e.start_ms + e.ms - traced.begin_ms;
    let all = traced.events.iter().map(end).fold(0.0, f64::max);
    let first_micro_step_ms = traced.first_micro_step.last().map_or(all, end);
    Some(Timeline { step: traced.step, world_size: n_ranks, ranks, first_micro_step_ms }.figure())
}

fn what(e: &TracedEvent) -> What {
    match (e.track, e.what.as_str()) {
        (Track::Gather, _) => What::AllGather,
        (Track::Reduce, _) => What::ReduceScatter,
        (Track::Compute, "forward") => What::Compute(Pass::Forward),
        (Track::Compute, "loss") => What::Compute(Pass::Loss),
        (Track::Compute, "backward") => What::Compute(Pass::Backward),
        (Track::Compute, "gather") => What::StartGather,
        (Track::Compute, "release") => What::Release,
        (Track::Compute, "wait") => What::WaitGather,
        (Track::Compute, "wait for the reduction") => What::WaitReduce,
        (Track::Compute, _) => What::Other,
    }
}

/// Kinds of memory plotted as one, from the bottom up.
const LAYERS: [(&str, &[MemKind]); 7] = [
    ("at rest", &[MemKind::ParamShard, MemKind::Master, MemKind::GradShard, MemKind::OptimState]),
    ("gathered params", &[MemKind::Gathered]),
    ("prefetched params", &[MemKind::Prefetched]),
    ("full grads", &[MemKind::FullGrad]),
    ("staging and grad sums", &[MemKind::ReduceStaging, MemKind::GradSum, MemKind::Staging]),
    ("activations", &[MemKind::Activation]),
    ("workspace and input", &[MemKind::Workspace, MemKind::Input]),
];

/// The plan's memory over a micro-step, and the ledger's where the step was traced.
pub fn memory(run: &RecordedRun, planned: &RunPlan) -> Figure {
    let RunPlan { spec, plan, n_micro } = planned;
    let program = plan.micro_step(0, MicroBatches::new(*n_micro, plan.world_size).micro_steps());
    let instrs = &program.schedule.instrs;
    let throughout: Vec<&Slot> = plan.resident.iter().chain(&plan.step.slots).collect();
    let held = |at: usize, kinds: &[MemKind]| -> u64 {
        let always = throughout.iter().filter(|s| kinds.contains(&s.kind));
        let now =
            program.slots.iter().filter(|s| s.first <= at && at <= s.last && kinds.contains(&s.kind_at(at)));
        let outside = if kinds.contains(&MemKind::Staging) { plan.outside_bytes() } else { 0 };
        always.chain(now.collect::<Vec<_>>().iter()).map(|s| s.bytes() as u64).sum::<u64>() + outside
    };
    let layers = LAYERS.map(|(name, kinds)| Layer {
        name: name.into(),
        bytes: (0..instrs.len()).map(|at| held(at, kinds)).collect(),
    });
    // What ends with an instruction has been released when the ledger is read.
    let always: u64 = throughout.iter().map(|s| s.bytes() as u64).sum::<u64>() + plan.outside_bytes();
    let after = |at: usize| -> u64 {
        always
            + program
                .slots
                .iter()
                .filter(|s| s.first <= at && at < s.last)
                .map(|s| s.bytes() as u64)
                .sum::<u64>()
    };
    let traced = traced_step(run, planned).map(|t| t.first_micro_step).unwrap_or_default();
    let measured = traced
        .iter()
        .enumerate()
        .filter_map(|(at, event)| Some(Measured { at, bytes: event.live_bytes?, planned: after(at) }));
    let mut parts: Vec<(usize, String)> = Vec::new();
    for (at, instr) in instrs.iter().enumerate() {
        let name = match instr {
            Instr::Compute(schedule::Visit { pass: schedule::Pass::Forward, .. }) => "forward",
            Instr::Compute(schedule::Visit { pass: schedule::Pass::Loss, .. }) => "loss",
            Instr::Compute(schedule::Visit { pass: schedule::Pass::Backward, .. }) => "backward",
            _ => continue,
        };
        if parts.last().is_none_or(|(_, last)| last != name) {
            parts.push((if parts.is_empty() { 0 } else { at }, name.into()));
        }
    }
    let words = |&instr: &Instr| {
        let (what, unit) = program.describe(instr);
        format!("{what} {}", spec.units[unit].name)
    };
    Memory {
        layers: layers.to_vec(),
        instructions: instrs.iter().map(words).collect(),
        parts,
        planned_peak: run.summary.as_ref().map_or(plan.training_peaks().total, |s| s.peak_bytes.planned),
        measured_peak: run.summary.as_ref().map(|s| s.peak_bytes.measured),
        measured: measured.collect(),
    }
    .figure()
}

/// Loss and speed over the run.
pub fn loss_curve(run: &RecordedRun) -> Figure {
    let step = |s: &LoggedStep| CurveStep {
        step: s.step,
        loss: s.loss,
        val_loss: s.val_loss,
        step_ms: s.step_ms_max,
        tokens_per_s: s.tokens_per_s,
    };
    let restored = run.events.iter().filter_map(|event| match event {
        RunEvent::Start { step, from: Some(_), .. } => Some(*step),
        _ => None,
    });
    // After a kill the same attempt is made, and recorded, again.
    let mut skipped: Vec<(u64, u64)> = run
        .events
        .iter()
        .filter_map(|event| match event {
            RunEvent::Skip { step, attempts, .. } => Some((*attempts, step + 1)),
            RunEvent::Start { .. } | RunEvent::Straggler(_) | RunEvent::End { .. } => None,
        })
        .collect();
    skipped.sort_unstable();
    skipped.dedup();
    LossCurve {
        steps: run.steps.iter().map(step).collect(),
        restored_at: restored.collect(),
        skipped_at: skipped.into_iter().map(|(_, step)| step).collect(),
    }
    .figure()
}
