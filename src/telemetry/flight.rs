//! The flight recorder of a rank: which operation its main thread is at, kept in memory and written now and then for others.
//!
//! Every rank runs the same list of operations, so their number tells who is behind whom; within a long operation a rank ticks
//! as it gets on, and the others wait for it however long it takes. A rank's main thread notes each operation in memory; a second
//! thread (`watchdog.rs`) writes the newest to `RUN/flight/rank_N.progress` now and then, with what the rank holds, and
//! where it waits long its last events to `RUN/flight/rank_N.jsonl`.
//!
//! Must not know: MPI, how the others are judged.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ledger::{Ledger, MemKind};
use super::sign_of_life::{FLIGHT_DIR, Held, KindNow, Place, SignOfLife};
use super::time_limit::unix_now;
use super::watchdog::{look_every, watch};

/// Events kept.
const N_EVENTS: usize = 256;
/// The slowest beat.
pub(super) const SLOWEST_BEAT: Duration = Duration::from_secs(10);
/// Signs of life that all ranks together write in a second, before their beat is as slow as it gets: a file system serves more than
/// one run.
const SIGNS_PER_SECOND: f64 = 10.0;

/// One operation, as it began.
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

/// Where the main thread is.
struct State {
    now: Event,
    /// Signs of getting on within operations, and when the last one was.
    ticks: u64,
    ticked: Instant,
    past: VecDeque<Event>,
    /// Of each unit.
    gathers: Vec<Gathers>,
    closed: bool,
}

/// Memory to show.
struct Memory {
    ledger: Arc<Ledger>,
    /// Most bytes that the plan holds of each kind, and of all together.
    planned: Vec<(MemKind, u64)>,
    planned_total: u64,
}

/// What both threads of a recorder know: the main thread notes, the other one writes.
pub(super) struct Recording {
    /// `RUN/flight`.
    pub(super) dir: PathBuf,
    pub(super) rank: usize,
    /// Node of each rank.
    pub(super) hosts: Vec<String>,
    units: Vec<String>,
    state: Mutex<State>,
    /// What is held and what may be, once memory is there.
    memory: OnceLock<Memory>,
    /// Unix time at which recording began.
    started_unix: f64,
    /// Between two signs of life, at most.
    pub(super) beat: Duration,
    /// Signs of life so far. Held while one is written, which both threads do.
    beats: Mutex<u64>,
    closing: Condvar,
}

/// The recorder of this rank. Dropped, it stops watching.
pub struct Flight {
    recording: Arc<Recording>,
    watchdog: Option<JoinHandle<()>>,
}

impl Flight {
    /// Starts recording for `rank`, of as many as there are `hosts`, into `RUN/flight`; nothing is written where there are none.
    /// With a `timeout` above zero it also watches over the others, and `abort` ends the job. A run directory that is not there yet
    /// is left to come, unless this rank begins to wait long: bad data leave none behind.
    pub fn start(
        run_dir: &Path,
        rank: usize,
        hosts: Vec<String>,
        units: Vec<String>,
        timeout: Duration,
        abort: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let now = Event { ordinal: 0, step: 0, what: "start", unit: None, began: Instant::now() };
        let watches = !timeout.is_zero() && hosts.len() > 1;
        let recording = Arc::new(Recording {
            dir: run_dir.join(FLIGHT_DIR),
            rank,
            beat: beat(hosts.len(), if watches { look_every(timeout) } else { SLOWEST_BEAT }),
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
        });
        let mut watchdog = None;
        if !recording.hosts.is_empty() {
            // What an earlier job left is not this rank's sign of life.
            std::fs::remove_file(SignOfLife::path(&recording.dir, rank)).ok();
            std::fs::remove_file(recording.events_path()).ok();
            let watched = Arc::clone(&recording);
            let run = move || watch(&watched, watches.then_some(timeout), abort);
            watchdog = Some(std::thread::Builder::new().name("watchdog".into()).spawn(run)?);
        }
        Ok(Flight { recording, watchdog })
    }

    /// The run directory is there: this rank shows itself before the first step.
    pub fn appear(&self) {
        if self.watchdog.is_some() {
            self.recording.make_dir();
            self.recording.publish();
        }
    }

    /// Memory is there: signs of life say what of it is held, beside what the plan holds at most of each kind, and together.
    pub fn show_memory(&self, ledger: Arc<Ledger>, planned: Vec<(MemKind, u64)>, planned_total: u64) {
        let shown = self.recording.memory.set(Memory { ledger, planned, planned_total });
        assert!(shown.is_ok(), "a rank has one arena");
    }

    /// Parameters of `unit` are on their way.
    pub fn gathering(&self, unit: usize) {
        self.recording.lock().count_gathers(unit, 1, 0);
    }

    /// Parameters of `unit` have become whole.
    pub fn gathered(&self, unit: usize) {
        self.recording.lock().count_gathers(unit, -1, 1);
    }

    /// Parameters of `unit` are whole no more.
    pub fn released(&self, unit: usize) {
        self.recording.lock().count_gathers(unit, 0, -1);
    }

    /// The main thread begins an operation that every rank begins in the same order.
    pub fn at(&self, step: u64, what: &'static str, unit: Option<usize>) {
        let mut state = self.recording.lock();
        let next = Event { ordinal: state.now.ordinal + 1, step, what, unit, began: Instant::now() };
        if state.past.len() == N_EVENTS {
            state.past.pop_front();
        }
        let past = std::mem::replace(&mut state.now, next);
        state.past.push_back(past);
    }

    /// The main thread gets on within its operation, which takes long.
    pub fn tick(&self) {
        let mut state = self.recording.lock();
        state.ticks += 1;
        state.ticked = Instant::now();
    }

    /// The run is over; what is left is to leave MPI, together.
    pub fn leave(&self) {
        let step = self.recording.lock().now.step;
        self.at(step, "leave MPI", None);
    }
}

impl State {
    fn place(&self) -> Place {
        Place { ordinal: self.now.ordinal, ticks: self.ticks }
    }

    fn count_gathers(&mut self, unit: usize, on_their_way: i32, whole: i32) {
        // A recorder that writes nothing knows no units.
        if let Some(gathers) = self.gathers.get_mut(unit) {
            let changed = |count: u32, by: i32| {
                count.checked_add_signed(by).unwrap_or_else(|| panic!("unit {unit}: a gather ends that had not begun"))
            };
            gathers.on_their_way = changed(gathers.on_their_way, on_their_way);
            gathers.whole = changed(gathers.whole, whole);
        }
    }
}

/// Between two signs of life of a rank: a second where ranks are few, for whoever watches, and no longer than `longest`.
fn beat(n_ranks: usize, longest: Duration) -> Duration {
    Duration::from_secs_f64((n_ranks as f64 / SIGNS_PER_SECOND).clamp(1.0, SLOWEST_BEAT.as_secs_f64())).min(longest)
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.recording.lock().closed = true;
        self.recording.closing.notify_all();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.join().ok();
            std::fs::remove_file(SignOfLife::path(&self.recording.dir, self.recording.rank)).ok();
            // Of an operation that took long and came to its end.
            std::fs::remove_file(self.recording.events_path()).ok();
            // The last rank takes the empty directory away.
            std::fs::remove_dir(&self.recording.dir).ok();
        }
    }
}

impl Recording {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events_path(&self) -> PathBuf {
        self.dir.join(format!("rank_{}.jsonl", self.rank))
    }

    /// The operation that is under way.
    pub(super) fn now(&self) -> Event {
        self.lock().now
    }

    /// Where the main thread is.
    pub(super) fn place(&self) -> Place {
        self.lock().place()
    }

    /// Where the main thread is, and for how long it has not moved.
    pub(super) fn standing(&self) -> (Place, Duration) {
        let state = self.lock();
        (state.place(), state.now.began.max(state.ticked).elapsed())
    }

    /// An operation in words: `gather h.0`.
    pub(super) fn words(&self, event: &Event) -> String {
        match event.unit.and_then(|u| self.units.get(u)) {
            Some(unit) => format!("{} {unit}", event.what),
            None => event.what.into(),
        }
    }

    /// Makes the directory of signs of life. A fault of the file system is no reason to end a run, here and below.
    pub(super) fn make_dir(&self) {
        if let Err(error) = std::fs::create_dir_all(&self.dir) {
            log::debug!("{}: {error}", self.dir.display());
        }
    }

    /// Writes this rank's sign of life.
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
        let sign = SignOfLife {
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
            log::debug!("{}: {error}", SignOfLife::path(&self.dir, self.rank).display());
        }
    }

    /// What the ledger holds beside the plan: each kind that is ever held, and all together.
    fn held(&self) -> (Vec<KindNow>, Held) {
        let Some(Memory { ledger, planned, planned_total }) = self.memory.get() else { return Default::default() };
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
        let (state, _) =
            self.closing.wait_timeout_while(state, beat, |state| !state.closed).unwrap_or_else(PoisonError::into_inner);
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
                "rank": self.rank, "host": self.hosts[self.rank], "ordinal": event.ordinal, "step": event.step, "what": self.words(event),
                "began_unix": unix_now() - now.duration_since(event.began).as_secs_f64(),
                "seconds": ended.duration_since(event.began).as_secs_f64(),
                "ended": i + 1 < events.len(),
            });
            writeln!(text, "{line}").expect("writing to memory");
        }
        if let Err(error) = std::fs::write(self.events_path(), text) {
            log::warn!("{}: {error}", self.events_path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_says_what_is_gathered_and_held_beside_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let units = ["embed", "h.0", "h.1"].map(String::from).into();
        let flight = Flight::start(dir.path(), 0, vec!["here".into()], units, Duration::ZERO, || {}).unwrap();
        let ledger = Arc::new(Ledger::new());
        flight.show_memory(Arc::clone(&ledger), vec![(MemKind::Gathered, 50), (MemKind::Master, 0)], 70);
        ledger.take(MemKind::Gathered, 40);
        ledger.reset_peaks();
        ledger.give(MemKind::Gathered, 30);
        ledger.reset_peaks();
        flight.gathering(0);
        flight.gathered(0);
        flight.gathering(2);
        flight.at(7, "forward", Some(0));
        flight.appear();
        let read = || SignOfLife::read(&dir.path().join(FLIGHT_DIR), 0).unwrap();
        let sign = read();
        assert_eq!((sign.step, sign.what.as_str(), sign.world_size), (7, "forward embed", 1));
        assert_eq!((sign.gathered, sign.gathering), (vec!["embed".to_string()], vec!["h.1".to_string()]));
        let held = Held { now: 10, peak: 40, planned: 50 };
        assert_eq!(sign.memory, [KindNow { kind: MemKind::Gathered, held }], "the peak outlives the step");
        assert_eq!(sign.memory_total, Held { now: 10, peak: 40, planned: 70 });
        flight.released(0);
        flight.gathered(2);
        flight.recording.publish();
        assert_eq!((read().gathered, read().gathering), (vec!["h.1".to_string()], vec![]));
    }

    #[test]
    fn few_ranks_beat_every_second_and_many_as_slowly_as_the_watchdog_looks() {
        let seconds = |n, timeout| beat(n, look_every(Duration::from_secs(timeout))).as_secs_f64();
        assert_eq!([seconds(2, 600), seconds(50, 600), seconds(4096, 600)], [1.0, 5.0, 10.0]);
        assert_eq!([seconds(2, 12), seconds(4096, 60)], [0.2, 1.0], "a short timeout");
    }
}
