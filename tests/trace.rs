//! `trace.json` keeps to the trace event format that Perfetto and chrome://tracing read, strictly, and says
//! what happened.
//!
//! Format: the "Trace Event Format" document of the Chromium project (complete, instant, counter and metadata
//! events). `make test-perfetto` has Perfetto's own trace processor read the same file.

mod common;

use common::{Case, Steps};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const RANKS: u64 = 3;

fn member<'a>(event: &'a Map<String, Value>, name: &str) -> &'a Value {
    event.get(name).unwrap_or_else(|| panic!("no {name} in {event:?}"))
}

fn number(event: &Map<String, Value>, name: &str) -> f64 {
    let number = member(event, name).as_f64().unwrap_or_else(|| panic!("{name} is no number in {event:?}"));
    assert!(number.is_finite() && number >= 0.0, "{name} of {event:?}");
    number
}

#[test]
fn every_event_keeps_to_the_format_and_no_two_spans_of_a_line_overlap() {
    let case = Case::tiny();
    case.train(RANKS as usize, "run", &["log.trace=2..=3", "zero.prefetch_units=2"])
        .output()
        .expect_success();
    let text = std::fs::read_to_string(case.path("run/trace.json")).expect("a trace");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["displayTimeUnit"], "ms");
    let events: Vec<&Map<String, Value>> = document["traceEvents"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|e| e.as_object().expect("an object"))
        .collect();

    // (pid, tid) or (pid, counter): the end of what was last there, in us.
    let mut lines: BTreeMap<(u64, String), f64> = BTreeMap::new();
    let mut processes: BTreeMap<u64, String> = BTreeMap::new();
    let mut threads: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut named = 0;
    let mut bytes: BTreeMap<(u64, String, u64), f64> = BTreeMap::new();
    for event in &events {
        let kind = member(event, "ph").as_str().expect("text");
        let pid = member(event, "pid").as_u64().expect("a number");
        assert!(pid < RANKS, "{event:?}");
        let name = member(event, "name").as_str().expect("text");
        assert!(!name.is_empty());
        let args = member(event, "args").as_object().expect("an object");
        let tid = || member(event, "tid").as_u64().expect("a number");
        let mut follows = |line: String, start: f64, end: f64| {
            let before = lines.insert((pid, line), end).unwrap_or(0.0);
            assert!(start >= before, "starts at {start} us, before {before}: {event:?}");
        };
        let members: &[&str] = match kind {
            "M" => {
                named += 1;
                let value = member(args, "name").as_str().expect("text").to_string();
                match name {
                    "process_name" => assert!(processes.insert(pid, value).is_none(), "{event:?}"),
                    "thread_name" => assert!(threads.insert((pid, tid()), value).is_none(), "{event:?}"),
                    other => panic!("{other} is no metadata we write"),
                }
                &["ph", "name", "pid", "tid", "args"]
            }
            "X" => {
                let (start, length) = (number(event, "ts"), number(event, "dur"));
                assert!(length > 0.0, "{event:?}");
                follows(format!("tid {}", tid()), start, start + length);
                let cut_off = |us: f64| (us * 1e3) as u64;
                assert_eq!(
                    cut_off(start) + cut_off(length),
                    cut_off(start + length),
                    "as Perfetto reads it: {event:?}"
                );
                let cat = member(event, "cat").as_str().expect("text").to_string();
                let step = member(args, "step").as_u64().expect("a number");
                assert!((2..=3).contains(&step), "{event:?}");
                let carries = matches!(cat.as_str(), "all_gather" | "reduce_scatter");
                assert_eq!(carries, tid() >= 2 * RANKS, "collectives have lines of their own: {event:?}");
                if carries {
                    let (moved, speed) = (number(args, "bytes"), number(args, "gigabytes_per_s"));
                    assert!((speed - moved / (length * 1e3)).abs() <= 1e-6 * speed + 1e-9, "{event:?}");
                    *bytes.entry((pid, cat, step)).or_default() += moved;
                }
                &["ph", "name", "cat", "pid", "tid", "ts", "dur", "args"]
            }
            "i" => {
                assert_eq!(member(event, "s"), "t", "{event:?}");
                let at = number(event, "ts");
                follows(format!("tid {}", tid()), at, at);
                &["ph", "name", "cat", "pid", "tid", "ts", "s", "args"]
            }
            "C" => {
                let at = number(event, "ts");
                follows(format!("counter {name}"), at, at);
                assert!(args.len() == 1 && number(args, "bytes") > 0.0, "{event:?}");
                &["ph", "name", "pid", "ts", "args"]
            }
            other => panic!("events of type {other} are not written"),
        };
        let extra: Vec<&String> = event.keys().filter(|key| !members.contains(&key.as_str())).collect();
        assert!(extra.is_empty(), "{extra:?} in {event:?}");
    }

    assert_eq!(
        processes.keys().copied().collect::<Vec<_>>(),
        (0..RANKS).collect::<Vec<_>>(),
        "each rank is a process"
    );
    assert!(
        processes.iter().all(|(rank, name)| name.starts_with(&format!("rank {rank} on "))),
        "{processes:?}"
    );
    assert_eq!(threads.len(), 3 * RANKS as usize, "three lines each");
    assert_eq!(named, 4 * RANKS);
    for rank in 0..RANKS {
        // Numbers of threads are unique, and none is a process's.
        let tids = (1..=3).map(|track| RANKS * track + rank);
        assert!(tids.clone().all(|tid| threads.contains_key(&(rank, tid))), "{threads:?}");
        for line in tids.map(|tid| format!("tid {tid}")).chain(["counter live bytes".into()]) {
            assert!(lines.contains_key(&(rank, line.clone())), "nothing on {line} of rank {rank}");
        }
    }
    // What the spans carry is what the log says of those steps.
    let steps = Steps::read(&case.path("run"));
    for (cat, column) in [("all_gather", "all_gather_bytes"), ("reduce_scatter", "reduce_scatter_bytes")] {
        for step in [2, 3] {
            let of_rank = |rank: u64| bytes[&(rank, cat.to_string(), step)];
            let mean = (0..RANKS).map(of_rank).sum::<f64>() / RANKS as f64;
            let logged = steps.numbers(column)[step as usize - 1];
            assert!(
                (mean - logged).abs() < 1e-3 * logged,
                "{cat} of step {step}: {mean} traced, {logged} logged"
            );
        }
    }
}
