//! `zero3 report RUN`: the five questions a person asks when memory or time is off, answered from the run's own records.
//!
//! Must not know: MPI, plans, devices. It reads `summary.json`.

use crate::error::{Error, Result};
use crate::telemetry::summary::Planned;
use crate::telemetry::{MemKind, Summary, UnitTimes, human};
use std::fmt::Write as _;
use std::path::Path;

/// The answers for a finished (or stopped) run.
pub fn five_answers(run_dir: &Path) -> Result<String> {
    let path = run_dir.join("summary.json");
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Error::Input(format!(
            "{}: {e}; a run directory with a finished or stopped run would do (a running job answers to SIGUSR2)",
            path.display()
        ))
    })?;
    let summary: Summary = serde_json::from_str(&text)
        .map_err(|e| Error::Input(format!("{}: not a summary of this version: {e}", path.display())))?;
    Ok(answer(&summary))
}

fn answer(s: &Summary) -> String {
    let mut out = String::new();
    let kind =
        |kind: MemKind| s.peak_bytes_by_kind.iter().find(|k| k.kind == kind).map_or(Planned::default(), |k| k.bytes);
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!("{}: {} (step {} of {}, {} ranks)", s.run_dir, s.exit_reason, s.step, s.total_steps, s.world_size));

    line("\n1. Which shards are resident at rest?".into());
    let r = &s.resident;
    line(format!(
        "   {} bytes on each rank, planned {}: {}, and {:.1} of padding and persistent parameters.",
        r.bytes.measured,
        r.bytes.planned,
        r.formula_in_words(s.world_size),
        r.padding_bytes
    ));
    for k in s.peak_bytes_by_kind.iter().filter(|k| k.kind.is_resident() && k.bytes.measured > 0) {
        line(format!("   {:<16} {:>14}", k.kind.name(), k.bytes.measured));
    }

    line("\n2. Which full parameters are gathered now?".into());
    let (live, ahead) = (kind(MemKind::Gathered), kind(MemKind::Prefetched));
    line(format!("   None: the run is over, and the ledger held {} bytes at its end.", r.bytes.measured));
    line(format!(
        "   During a step at most {} in use and {} on their way. Ask a running job with SIGUSR2.",
        human::bytes(live.measured),
        human::bytes(ahead.measured)
    ));

    line("\n3. Did prefetches overlap the current unit's compute?".into());
    line(format!(
        "   {:<10} {:>12} {:>12} {:>8}   {:>12} {:>12} {:>8}",
        "unit", "gather ms", "waited ms", "hidden", "reduce ms", "waited ms", "hidden"
    ));
    let mut total = UnitTimes::default();
    for unit in &s.units {
        let t = &unit.times;
        line(format!(
            "   {:<10} {:>12.2} {:>12.2} {:>8}   {:>12.2} {:>12.2} {:>8}",
            unit.name,
            t.gather_ms,
            t.gather_wait_ms,
            share(t.gather_ms, t.gather_wait_ms),
            t.reduce_ms,
            t.reduce_wait_ms,
            share(t.reduce_ms, t.reduce_wait_ms)
        ));
        total.gather_ms += t.gather_ms;
        total.gather_wait_ms += t.gather_wait_ms;
        total.reduce_ms += t.reduce_ms;
        total.reduce_wait_ms += t.reduce_wait_ms;
        total.late_byte_ms += t.late_byte_ms;
    }
    let (comm, wait) = (total.gather_ms + total.reduce_ms, total.gather_wait_ms + total.reduce_wait_ms);
    line(format!(
        "   {} of {comm:.1} ms of communication was hidden; {wait:.1} ms were waited for.",
        share(comm, wait)
    ));

    line("\n4. Were old full parameters released soon enough?".into());
    line(format!(
        "   {:.0} byte-ms kept after the last use, over all steps ({} gathered at peak); the plan releases right after use.",
        total.late_byte_ms,
        human::bytes(live.measured)
    ));
    if let Some(worst) = s.units.iter().max_by(|a, b| a.times.late_byte_ms.total_cmp(&b.times.late_byte_ms)) {
        line(format!("   The most by unit {}: {:.0} byte-ms.", worst.name, worst.times.late_byte_ms));
    }

    line("\n5. Were gradients reduced to shards, or did full copies pile up?".into());
    let full = kind(MemKind::FullGrad);
    let verdict = if full.measured <= full.planned { "they did not pile up" } else { "they piled up" };
    line(format!(
        "   At most {} bytes of full gradients at once, planned {}: {verdict}. {} bytes reduced per step, planned {}.",
        full.measured, full.planned, s.reduce_scatter_bytes_per_step.measured, s.reduce_scatter_bytes_per_step.planned
    ));
    let _ = write!(out, "   Receive staging at most {} bytes.", kind(MemKind::ReduceStaging).measured);
    out
}

fn share(comm_ms: f64, wait_ms: f64) -> String {
    UnitTimes::hidden(comm_ms, wait_ms).map_or("-".into(), |share| format!("{:.0} %", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::summary::{KindBytes, UnitRow};

    #[test]
    fn each_answer_cites_its_numbers() {
        let times = UnitTimes { gather_ms: 10.0, gather_wait_ms: 2.5, late_byte_ms: 77.0, ..UnitTimes::default() };
        let kind = |kind, n| KindBytes { kind, bytes: Planned { planned: n, measured: n } };
        let summary = Summary {
            units: vec![UnitRow { name: "h.0".into(), times }],
            peak_bytes_by_kind: vec![kind(MemKind::FullGrad, 4321), kind(MemKind::ParamShard, 99)],
            ..Summary::default()
        };
        let text = answer(&summary);
        for part in
            ["75 %", "10.00", "4321 bytes of full gradients at once", "did not pile up", "77 byte-ms", "params at rest"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_directory_without_a_summary_says_what_would_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = five_answers(dir.path()).unwrap_err();
        assert!(error.to_string().contains("SIGUSR2") && error.exit().code() == 2, "{error}");
    }
}
