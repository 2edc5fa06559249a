//! The trace of chosen steps: recorded by every rank, put on one clock, written by rank 0.

use super::step::Stepper;
use crate::backend::agree::{all_or_none, decided_by_rank_0};
use crate::backend::{Backend, Comm};
use crate::error::Result;
use crate::telemetry::trace::{self, Event};
use std::path::Path;
use std::time::Instant;

/// Rounds of the clock comparison; the median of an odd number is one of them.
const ROUNDS: usize = 15;

/// Gathers every rank's events and writes `RUN/trace.json`. Collective.
pub fn write<B: Backend>(stepper: &mut Stepper<'_, B>, run_dir: &Path, host: &str) -> Result<()> {
    let offsets_ns = clock_offsets_ns(stepper)?;
    let hosts = all_or_none(stepper.comm, Ok(host.to_string()))?;
    let own = serde_json::to_vec(&stepper.trace.take()).expect("events are plain data");
    let texts = stepper.comm.all_gather_bytes(&own)?;
    decided_by_rank_0(stepper.comm, || {
        let ranks: Vec<Vec<Event<'_>>> =
            texts.iter().map(|text| serde_json::from_slice(text).expect("written by the same program")).collect();
        let units: Vec<String> = stepper.model.spec.units.iter().map(|u| u.name.clone()).collect();
        trace::write(run_dir, &ranks, &offsets_ns, &hosts, &units)
    })?;
    if stepper.comm.rank() == 0 {
        let apart = offsets_ns.iter().map(|o| o.unsigned_abs()).max().unwrap_or(0) as f64 / 1e3;
        log::info!("trace.json is written; clocks of ranks were up to {apart:.1} us from rank 0's and are corrected");
    }
    Ok(())
}

/// How far each rank's clock is ahead of rank 0's, in ns: the median over rounds of what ranks read when they leave a
/// barrier. Good to the time ranks take to leave one.
fn clock_offsets_ns<B: Backend>(stepper: &Stepper<'_, B>) -> Result<Vec<i64>> {
    let n = stepper.comm.size();
    let mut rounds: Vec<Vec<i64>> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        stepper.comm.barrier()?;
        let now = stepper.trace.ns_of(Instant::now());
        // Halves below 2^32 are exact in f64.
        let all = stepper.comm.all_gather_f64(&[(now >> 32) as f64, (now & 0xffff_ffff) as f64])?;
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
