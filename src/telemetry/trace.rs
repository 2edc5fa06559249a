//! A timeline of selected steps: spans of compute, collectives and waits, and the live bytes, in the Chrome
//! trace format, which Perfetto and chrome://tracing open.
//!
//! Each rank is a process, each queue a thread. Ranks stamp their own clocks; the writer shifts them by
//! measured offsets. Must not know: MPI, units' meaning.

use crate::clock;
use crate::error::Result;
use crate::files;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The track of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Track {
    /// Kernels, and waits for what they need.
    Compute,
    /// Parameter gathers.
    Gather,
    /// Gradient reductions.
    Reduce,
}

/// One span, instant or counter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Event<'a> {
    /// Its track.
    pub track: Track,
    /// E.g. `forward`, `all_gather`, `wait`.
    pub what: &'a str,
    /// The unit it concerns.
    pub unit: Option<usize>,
    /// Start, ns since the epoch of the rank's clock.
    pub start_ns: u64,
    /// Duration in ns; 0 for an instant.
    pub ns: u64,
    /// Payload of a collective, or bytes released.
    pub bytes: u64,
    /// Bytes of all live buffers at its end.
    pub live_bytes: u64,
    /// Optimizer step.
    pub step: u64,
}

/// Records events while enabled. Disabled, it costs one branch per instruction.
#[derive(Debug)]
pub struct Trace {
    /// Monotonic and calendar time of the same moment.
    epoch: (Instant, u64),
    /// The step being recorded.
    step: Option<u64>,
    events: Vec<Event<'static>>,
}

impl Default for Trace {
    fn default() -> Self {
        let now = Instant::now();
        Trace { epoch: (now, clock::since_1970(now).as_nanos() as u64), step: None, events: Vec::new() }
    }
}

impl Trace {
    /// Starts recording as part of `step`, or stops.
    pub fn set_step(&mut self, step: Option<u64>) {
        self.step = step;
    }

    /// Whether events are recorded.
    pub fn is_on(&self) -> bool {
        self.step.is_some()
    }

    /// A point of the monotonic clock in ns of the calendar clock.
    pub fn ns_of(&self, at: Instant) -> u64 {
        let (instant, ns) = self.epoch;
        match at.checked_duration_since(instant) {
            Some(later) => ns + later.as_nanos() as u64,
            None => ns - instant.duration_since(at).as_nanos() as u64,
        }
    }

    /// Records a span from `start` to `end`.
    #[allow(clippy::too_many_arguments)]
    pub fn span(
        &mut self,
        track: Track,
        what: &'static str,
        unit: Option<usize>,
        (start, end): (Instant, Instant),
        bytes: u64,
        live_bytes: u64,
    ) {
        let Some(step) = self.step else { return };
        let start_ns = self.ns_of(start);
        let ns = end.saturating_duration_since(start).as_nanos() as u64;
        self.events.push(Event { track, what, unit, start_ns, ns, bytes, live_bytes, step });
    }

    /// Whether there are recorded events not taken yet.
    pub fn holds_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes all events.
    pub fn take(&mut self) -> Vec<Event<'static>> {
        std::mem::take(&mut self.events)
    }
}

/// Writes `trace.json`: `ranks[r]` are rank r's events, `offsets_ns[r]` the offset of its clock to rank 0's,
/// `hosts[r]` its node, `units` the names of units.
pub fn write(
    run_dir: &Path,
    ranks: &[Vec<Event<'_>>],
    offsets_ns: &[i64],
    hosts: &[String],
    units: &[String],
) -> Result<()> {
    let begin = ranks
        .iter()
        .zip(offsets_ns)
        .flat_map(|(events, &o)| events.iter().map(move |e| shifted(e.start_ns, o)))
        .min();
    let begin = begin.unwrap_or(0);
    let mut events = Vec::new();
    for (rank, (own, &offset)) in ranks.iter().zip(offsets_ns).enumerate() {
        // A thread's number must differ from every process's and other thread's: Perfetto treats thread 0,
        // and a thread with its process's number, as the process itself, and would draw a rank's queues on
        // one track.
        let tid = |track: Track| ranks.len() * (1 + track as usize) + rank;
        let meta = |name: &str, tid: usize, value: String| {
            let args = json!({"name": value});
            json!({"ph": "M", "name": name, "pid": rank, "tid": tid, "args": args})
        };
        events.push(meta("process_name", tid(Track::Compute), format!("rank {rank} on {}", hosts[rank])));
        for (track, name) in
            [(Track::Compute, "compute"), (Track::Gather, "gather queue"), (Track::Reduce, "reduce queue")]
        {
            events.push(meta("thread_name", tid(track), name.into()));
        }
        for e in own {
            let start_ns = shifted(e.start_ns, offset).saturating_sub(begin);
            let (ts, end) = (microseconds(start_ns), microseconds(start_ns + e.ns));
            let unit = e.unit.map_or("", |u| units[u].as_str());
            let name = format!("{} {unit}", e.what);
            let mut args = json!({"unit": unit, "step": e.step});
            if e.bytes > 0 {
                args["bytes"] = e.bytes.into();
                if end > ts && e.track != Track::Compute {
                    args["gigabytes_per_s"] = (e.bytes as f64 / ((end - ts) * 1e3)).into();
                }
            }
            let (name, tid) = (name.trim(), tid(e.track));
            events.push(if end == ts {
                json!({
                    "ph": "i", "name": name, "cat": e.what, "pid": rank, "tid": tid, "ts": ts, "s": "t",
                    "args": args
                })
            } else {
                let dur = end - ts;
                json!({
                    "ph": "X", "name": name, "cat": e.what, "pid": rank, "tid": tid, "ts": ts, "dur": dur,
                    "args": args
                })
            });
            if e.track == Track::Compute {
                events.push(json!({
                    "ph": "C", "name": "live bytes", "pid": rank, "ts": end,
                    "args": {"bytes": e.live_bytes}
                }));
            }
        }
    }
    let document = json!({"displayTimeUnit": "ms", "traceEvents": events});
    files::replace(&run_dir.join("trace.json"), |out| {
        serde_json::to_writer(&mut *out, &document)?;
        out.write_all(b"\n")
    })
}

/// A time in the format's unit, in multiples of 1/8 µs. These and their sums are exact in binary: Perfetto
/// truncates a time to whole nanoseconds, and drops a span that starts a nanosecond before the previous one
/// has ended.
fn microseconds(ns: u64) -> f64 {
    ns.saturating_add(62).div_euclid(125) as f64 / 8.0
}

fn shifted(ns: u64, offset_ns: i64) -> u64 {
    (ns as i64).saturating_sub(offset_ns).max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn spans_that_touch_do_not_overlap_for_a_reader_who_cuts_off() {
        let nanoseconds = |us: f64| (us * 1e3) as u64;
        for begin in 0..5_000 {
            let end = begin + 7 * begin % 1_013;
            let (begin, end) = (microseconds(begin), microseconds(end));
            assert_eq!(nanoseconds(begin) + nanoseconds(end - begin), nanoseconds(end));
        }
    }

    #[test]
    fn nothing_is_recorded_while_off_and_offsets_are_taken_out() {
        let mut trace = Trace::default();
        let now = Instant::now();
        trace.span(Track::Compute, "forward", Some(0), (now, now), 0, 0);
        assert!(trace.take().is_empty());
        trace.set_step(Some(3));
        trace.span(Track::Gather, "all_gather", Some(1), (now, now + Duration::from_micros(5)), 4000, 9);
        let mut late = trace.take();
        let on_time = late.clone();
        late[0].start_ns += 1_000_000;
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["a".to_string(), "b".to_string()];
        write(dir.path(), &[on_time, late], &[0, 1_000_000], &hosts, &["embed".into(), "h.0".into()])
            .unwrap();
        let text = std::fs::read_to_string(dir.path().join("trace.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let spans: Vec<_> =
            json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(spans.len(), 2);
        for span in spans {
            assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(0.0), Some(5.0)));
            assert_eq!(span["args"]["gigabytes_per_s"], 0.8);
            assert_eq!(span["name"], "all_gather h.0");
        }
    }
}
