//! The data of a recorder, and their files: the current operation, previous ones, gathers and memory.
//!
//! The main thread records, another one writes. Must not know: the readers of the files, and their
//! conclusions.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::unix_now;
use crate::files;
use crate::liveness::heartbeat::{FLIGHT_DIR, Heartbeat, Held, KindNow, Place};
use crate::telemetry::ledger::{Ledger, MemKind};

/// Number of events in the buffer.
const N_EVENTS: usize = 256;
/// The slowest beat.
pub(super) const SLOWEST_BEAT: Duration = Duration::from_secs(10);
/// Heartbeats per second of all ranks together, up to the slowest beat: a file system serves more than one
/// run.
const SIGNS_PER_SECOND: f64 = 10.0;

/// An operation, as it started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    ordinal: u64,
    pub(super) step: u64,
    what: &'static str,
    unit: Option<usize>,
    pub(super) began: Instant,
}

/// Gathers of a unit.
#[derive(Debug, Clone, Copy, Default)]
struct Gathers {
    on_their_way: u32,
    whole: u32,
}

/// Position of the main thread.
struct State {
    now: Event,
    /// Number of ticks within operations, and the time of the last one.
    ticks: u64,
    ticked: Instant,
    past: VecDeque<Event>,
    /// By unit.
    gathers: Vec<Gathers>,
    closed: bool,
}

/// Memory to report.
pub(super) struct Memory {
    pub(super) ledger: Arc<Ledger>,
    /// Maximum bytes of the plan, by kind and in total.
    pub(super) planned: Vec<(MemKind, u64)>,
    pub(super) planned_total: u64,
}

/// State shared by both threads of a recorder: the main thread records, the other one writes.
pub(super) struct Recording {
    /// `RUN/flight`.
    pub(super) dir: PathBuf,
    pub(super) rank: usize,
    /// Node of each rank.
    pub(super) hosts: Vec<String>,
    units: Vec<String>,
    state: Mutex<State>,
    /// Bytes held and planned, once memory is allocated.
    memory: OnceLock<Memory>,
    /// Unix time at which recording started.
    started_unix: f64,
    /// Maximum time between two heartbeats.
    pub(super) beat: Duration,
    /// Heartbeats so far. Locked while one is written, by either thread.
    beats: Mutex<u64>,
    closing: Condvar,
}

impl State {
    fn place(&self) -> Place {
        Place { ordinal: self.now.ordinal, ticks: self.ticks }
    }

    fn count_gathers(&mut self, unit: usize, on_their_way: i32, whole: i32) {
        // A recorder that writes nothing has no units.
        if let Some(gathers) = self.gathers.get_mut(unit) {
            let changed = |count: u32, by: i32| {
                count
                    .checked_add_signed(by)
                    .unwrap_or_else(|| panic!("unit {unit}: the end of a gather that was not started"))
            };
            gathers.on_their_way = changed(gathers.on_their_way, on_their_way);
            gathers.whole = changed(gathers.whole, whole);
        }
    }
}

/// Time between two heartbeats of a rank: a second if ranks are few, for live observation, and at most
/// `longest`.
pub(super) fn beat(n_ranks: usize, longest: Duration) -> Duration {
    Duration::from_secs_f64((n_ranks as f64 / SIGNS_PER_SECOND).clamp(1.0, SLOWEST_BEAT.as_secs_f64()))
        .min(longest)
}

impl Recording {
    /// For `rank`, one of `hosts.len()`, with a heartbeat every `beat`.
    pub(super) fn new(
        run_dir: &Path,
        rank: usize,
        hosts: Vec<String>,
        units: Vec<String>,
        beat: Duration,
    ) -> Self {
        let now = Event { ordinal: 0, step: 0, what: "start", unit: None, began: Instant::now() };
        Recording {
            dir: run_dir.join(FLIGHT_DIR),
            rank,
            beat,
            hosts,
            state: Mutex::new(State {
                now,
                ticks: 0,
                ticked: now.began,
                past: VecDeque::with_capacity(N_EVENTS),
                gathers: vec![Gathers::default(); units.len()],
                closed: false,
            }),
            units,
            memory: OnceLock::new(),
            started_unix: unix_now(),
            beats: Mutex::new(0),
            closing: Condvar::new(),
        }
    }

    /// An operation starts.
    pub(super) fn begin(&self, step: u64, what: &'static str, unit: Option<usize>) {
        let mut state = self.lock();
        let next = Event { ordinal: state.now.ordinal + 1, step, what, unit, began: Instant::now() };
        if state.past.len() == N_EVENTS {
            state.past.pop_front();
        }
        let past = std::mem::replace(&mut state.now, next);
        state.past.push_back(past);
    }

    /// The current operation progresses.
    pub(super) fn tick(&self) {
        let mut state = self.lock();
        state.ticks += 1;
        state.ticked = Instant::now();
    }

    /// Changes the number of gathers of `unit` in flight, and of those that are whole.
    pub(super) fn count_gathers(&self, unit: usize, on_their_way: i32, whole: i32) {
        self.lock().count_gathers(unit, on_their_way, whole);
    }

    /// Memory is allocated, once.
    pub(super) fn show_memory(&self, memory: Memory) {
        assert!(self.memory.set(memory).is_ok(), "a rank has one arena");
    }

    /// Wakes the other thread.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.closing.notify_all();
    }

    /// Removes this rank's files.
    pub(super) fn remove_files(&self) {
        std::fs::remove_file(Heartbeat::path(&self.dir, self.rank)).ok();
        std::fs::remove_file(self.events_path()).ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events_path(&self) -> PathBuf {
        self.dir.join(format!("rank_{}.jsonl", self.rank))
    }

    /// The current operation.
    pub(super) fn now(&self) -> Event {
        self.lock().now
    }

    /// Position of the main thread.
    pub(super) fn place(&self) -> Place {
        self.lock().place()
    }

    /// Position of the main thread, and how long it has been there.
    pub(super) fn standing(&self) -> (Place, Duration) {
        let state = self.lock();
        (state.place(), state.now.began.max(state.ticked).elapsed())
    }

    /// An operation as text: `gather h.0`.
    pub(super) fn words(&self, event: &Event) -> String {
        match event.unit.and_then(|u| self.units.get(u)) {
            Some(unit) => format!("{} {unit}", event.what),
            None => event.what.into(),
        }
    }

    /// Creates the directory of heartbeats. File system errors never end a run, here and below.
    pub(super) fn make_dir(&self) {
        if let Err(error) = std::fs::create_dir_all(&self.dir) {
            log::debug!("{}: {error}", self.dir.display());
        }
    }

    /// Writes this rank's heartbeat.
    pub(super) fn publish(&self) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        *beats += 1;
        let (now, ticks, gathers) = {
            let state = self.lock();
            (state.now, state.ticks, state.gathers.clone())
        };
        let names = |wanted: fn(&Gathers) -> bool| {
            let units = self.units.iter().zip(&gathers).filter(|(_, counts)| wanted(counts));
            units.map(|(name, _)| name.clone()).collect()
        };
        let (memory, memory_total) = self.held();
        let sign = Heartbeat {
            rank: self.rank,
            world_size: self.hosts.len(),
            host: self.hosts[self.rank].clone(),
            pid: std::process::id(),
            started_unix: self.started_unix,
            beat: *beats,
            beat_seconds: self.beat.as_secs_f64(),
            updated_unix: unix_now(),
            ordinal: now.ordinal,
            ticks,
            step: now.step,
            what: self.words(&now),
            since_unix: unix_now() - now.began.elapsed().as_secs_f64(),
            gathered: names(|counts| counts.whole > 0),
            gathering: names(|counts| counts.on_their_way > 0),
            memory,
            memory_total,
        };
        if let Err(error) = sign.write(&self.dir) {
            log::debug!("{}: {error}", Heartbeat::path(&self.dir, self.rank).display());
        }
    }

    /// The ledger and the plan: each kind that is ever used, and the total.
    fn held(&self) -> (Vec<KindNow>, Held) {
        let Some(Memory { ledger, planned, planned_total }) = self.memory.get() else {
            return Default::default();
        };
        let (by_kind, (now, peak)) = ledger.since_start();
        let kinds = MemKind::ALL.into_iter().zip(by_kind).map(|(kind, (now, peak))| {
            let planned = planned.iter().find(|(k, _)| *k == kind).map_or(0, |(_, bytes)| *bytes);
            KindNow { kind, held: Held { now, peak, planned } }
        });
        let kinds = kinds.filter(|k| k.held != Held::default()).collect();
        (kinds, Held { now, peak, planned: *planned_total })
    }

    /// Waits for a beat; true when the recorder has been closed.
    pub(super) fn rest(&self, beat: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .closing
            .wait_timeout_while(state, beat, |state| !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    /// Writes the last events, oldest first.
    pub(super) fn dump(&self) {
        let (events, now) = {
            let state = self.lock();
            (state.past.iter().copied().chain([state.now]).collect::<Vec<_>>(), Instant::now())
        };
        let mut text = Vec::new();
        for (i, event) in events.iter().enumerate() {
            let ended = events.get(i + 1).map_or(now, |next| next.began);
            let line = serde_json::json!({
                "rank": self.rank, "host": self.hosts[self.rank], "ordinal": event.ordinal,
                "step": event.step, "what": self.words(event),
                "began_unix": unix_now() - now.duration_since(event.began).as_secs_f64(),
                "seconds": ended.duration_since(event.began).as_secs_f64(),
                "ended": i + 1 < events.len(),
            });
            writeln!(text, "{line}").expect("writing to memory");
        }
        if let Err(error) = files::replace_unsynced(&self.events_path(), &text) {
            log::warn!("{}: {error}", self.events_path().display());
        }
    }
}
