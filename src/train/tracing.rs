//! Observability of a step: times of its collectives, the answer to SIGUSR2, the trace of selected steps
//! (recorded by every rank, aligned to one clock, written by rank 0).
//!
//! Must not know: when a span is measured (`bookkeeping.rs`).

use super::pass::PassState;
use super::spans::{PendingSpan, SpanKind};
use super::stepper::Stepper;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Backend, Comm, Device};
use crate::error::Result;
use crate::params::ModelSpec;
use crate::plan::schedule::GatherId;
use crate::telemetry::Track;
use crate::telemetry::ledger::Label;
use crate::telemetry::trace;
use crate::telemetry::trace::Event;
use std::path::Path;
use std::time::Instant;

/// Rounds of the clock comparison; odd, so that the median is one of them.
const ROUNDS: usize = 15;

/// Gathers every rank's events and writes `RUN/trace.json`. Collective.
pub fn write<B: Backend>(stepper: &mut Stepper<'_, B>, run_dir: &Path, host: &str) -> Result<()> {
    let offsets_ns = clock_offsets_ns(stepper)?;
    let hosts = all_or_none(stepper.comm, Ok(host.to_string()))?;
    let own = serde_json::to_vec(&stepper.trace.take()).expect("events are plain data");
    let texts = stepper.comm.control().all_gather_bytes(&own)?;
    decided_by_rank_0(stepper.comm, || {
        let ranks: Vec<Vec<Event<'_>>> = texts
            .iter()
            .map(|text| serde_json::from_slice(text).expect("written by the same program"))
            .collect();
        let units: Vec<String> = stepper.model.spec.units.iter().map(|u| u.name.clone()).collect();
        trace::write(run_dir, &ranks, &offsets_ns, &hosts, &units)
    })?;
    if stepper.comm.rank() == 0 {
        let apart = offsets_ns.iter().map(|o| o.unsigned_abs()).max().unwrap_or(0) as f64 / 1e3;
        log::info!("trace.json is written; clock offsets of up to {apart:.1} us to rank 0 were corrected");
    }
    Ok(())
}

/// How far each rank's clock is ahead of rank 0's, in ns: the median over rounds of the clock read when
/// leaving a barrier. Accurate to the time that ranks take to leave it.
fn clock_offsets_ns<B: Backend>(stepper: &Stepper<'_, B>) -> Result<Vec<i64>> {
    let n = stepper.comm.size();
    let mut rounds: Vec<Vec<i64>> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        stepper.comm.control().barrier()?;
        let now = stepper.trace.ns_of(Instant::now());
        // Halves below 2^32 are exact in f64.
        let all = stepper.comm.control().all_gather_f64(&[(now >> 32) as f64, (now & 0xffff_ffff) as f64])?;
        let clock = |rank: usize| ((all[2 * rank] as i64) << 32) + all[2 * rank + 1] as i64;
        rounds.push((0..n).map(|rank| clock(rank) - clock(0)).collect());
    }
    Ok((0..n)
        .map(|rank| {
            let mut seen: Vec<i64> = rounds.iter().map(|round| round[rank]).collect();
            seen.sort_unstable();
            seen[ROUNDS / 2]
        })
        .collect())
}

impl<B: Backend> Stepper<'_, B> {
    /// Reads the times of all pending spans and adds them to their units and to the trace. Waits for the
    /// device to reach them.
    pub(super) fn settle(&mut self) -> Result<()> {
        for PendingSpan { kind, unit, start, end, counts } in self.spans.drain(..) {
            let span = (self.device.when(&start)?, self.device.when(&end)?);
            let ms = span.1.saturating_duration_since(span.0).as_secs_f64() * 1e3;
            let times = counts.then_some(&mut self.units[unit]);
            match kind {
                SpanKind::Collective { track, bytes, live_bytes } => {
                    let what = if track == Track::Reduce { "reduce_scatter" } else { "all_gather" };
                    self.trace.span(track, what, Some(unit), span, bytes, live_bytes);
                    let Some(times) = times else { continue };
                    let (sum_ms, sum_bytes) = match track {
                        Track::Reduce => (&mut times.reduce_ms, &mut times.reduce_bytes),
                        _ => (&mut times.gather_ms, &mut times.gather_bytes),
                    };
                    *sum_ms += ms;
                    *sum_bytes += bytes as f64;
                }
                SpanKind::Wait { on } => match (times, on) {
                    (Some(times), Track::Reduce) => times.reduce_wait_ms += ms,
                    (Some(times), _) => times.gather_wait_ms += ms,
                    (None, _) => {}
                },
                SpanKind::UnusedParams { bytes } => {
                    if let Some(times) = times {
                        times.late_byte_ms += bytes as f64 * ms;
                    }
                }
                SpanKind::Instr { what, bytes, live_bytes } => {
                    self.trace.span(Track::Compute, what, Some(unit), span, bytes, live_bytes);
                }
            }
        }
        Ok(())
    }

    /// Logs the position of this rank and what it holds: the answer to SIGUSR2.
    pub(super) fn answer(&self, pass: &PassState<'_, B>) {
        let (spec, schedule) = (&self.model.spec, &pass.program.schedule);
        let names = |ids: Vec<GatherId>| -> String {
            let names: Vec<&str> =
                ids.iter().map(|&g| spec.units[schedule.gathers[g].unit].name.as_str()).collect();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        };
        let (what, unit) = pass.program.describe(pass.instr());
        let (live, gathering) = pass.lists.gathers.now();
        log::warn!(
            "rank {} is at instruction {} of {}: {what} {}\ngathered: {}; in flight: {}\n{}\npeak at {}",
            self.comm.rank(),
            pass.at,
            schedule.instrs.len(),
            spec.units[unit].name,
            names(live),
            names(gathering),
            self.memory.ledger(),
            label_in_words(self.memory.ledger().peak_label(), spec)
        );
    }
}

/// The instruction of a peak, with its unit's name.
pub(super) fn label_in_words(label: Label, spec: &ModelSpec) -> String {
    match label.unit_idx {
        Some(unit) => format!("{} of unit {}", label.what, spec.units[unit].name),
        None => label.what.to_string(),
    }
}
