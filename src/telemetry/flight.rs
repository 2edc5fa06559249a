//! The flight recorder of a rank, and the watchdog that reads the others'.
//!
//! Every rank runs the same list of operations, so their number tells who is behind whom; within a long operation a rank ticks
//! as it gets on, and the others wait for it however long it takes. A rank's main thread notes each
//! operation in memory; a second thread writes the newest to `RUN/flight/rank_N.progress` now and then, with what the rank
//! holds. When the main thread has not moved for `timeout`, that thread reads the files of all ranks (the stuck communicator is
//! of no use), and the lowest
//! rank that is alive says who has not arrived where. Each rank leaves its last events in `RUN/flight/rank_N.jsonl`, and the
//! job ends.
//!
//! Must not know: MPI. How the job is ended is told.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ledger::{Ledger, MemKind};
use super::sign_of_life::{FLIGHT_DIR, Held, KindNow, SignOfLife};
use super::time_limit::unix_now;

/// Events kept.
const N_EVENTS: usize = 256;
/// The slowest beat.
const SLOWEST_BEAT: Duration = Duration::from_secs(10);
/// Signs of life that all ranks together write in a second, before their beat is as slow as it gets: a file system serves more than
/// one run.
const SIGNS_PER_SECOND: f64 = 10.0;
/// Beats between two looks at the others, after which a file that has not changed is of a rank that does not live.
const BEATS_TO_LIVE: u32 = 3;
/// What the lowest live rank may take to say who is late before another one ends the job in its place.
const TIME_TO_SAY: Duration = Duration::from_secs(10);

/// One operation, as it began.
#[derive(Debug, Clone, Copy)]
struct Event {
    ordinal: u64,
    step: u64,
    what: &'static str,
    unit: Option<usize>,
    began: Instant,
}

struct State {
    now: Event,
    /// Signs of getting on within operations, and when the last one was.
    ticks: u64,
    ticked: Instant,
    past: VecDeque<Event>,
    /// Gathers of each unit that are on their way, and those that are whole.
    gathers: Vec<(u32, u32)>,
    closed: bool,
}

/// Memory to show.
struct Memory {
    ledger: Arc<Ledger>,
    /// Most bytes that the plan holds of each kind, and of all together.
    planned: Vec<(MemKind, u64)>,
    planned_total: u64,
}

struct Shared {
    dir: PathBuf,
    rank: usize,
    /// Node of each rank.
    hosts: Vec<String>,
    units: Vec<String>,
    state: Mutex<State>,
    /// What is held and what may be, once memory is there.
    memory: OnceLock<Memory>,
    /// Unix time at which recording began.
    started_unix: f64,
    /// Between two signs of life, at most.
    beat: Duration,
    /// Signs of life so far. Held while one is written, which both threads do.
    beats: Mutex<u64>,
    closing: Condvar,
}

/// The recorder of this rank. Dropped, it stops watching.
pub struct Flight {
    shared: Arc<Shared>,
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
        let shared = Arc::new(Shared {
            dir: run_dir.join(FLIGHT_DIR),
            rank,
            beat: beat(hosts.len(), if watches { look_every(timeout) } else { SLOWEST_BEAT }),
            hosts,
            state: Mutex::new(State {
                now,
                ticks: 0,
                ticked: now.began,
                past: VecDeque::with_capacity(N_EVENTS),
                gathers: vec![(0, 0); units.len()],
                closed: false,
            }),
            units,
            memory: OnceLock::new(),
            started_unix: unix_now(),
            beats: Mutex::new(0),
            closing: Condvar::new(),
        });
        let mut watchdog = None;
        if !shared.hosts.is_empty() {
            // What an earlier job left is not this rank's sign of life.
            std::fs::remove_file(SignOfLife::path(&shared.dir, rank)).ok();
            std::fs::remove_file(shared.events_path()).ok();
            let watched = Arc::clone(&shared);
            let run = move || watched.watch(watches.then_some(timeout), abort);
            watchdog = Some(std::thread::Builder::new().name("watchdog".into()).spawn(run)?);
        }
        Ok(Flight { shared, watchdog })
    }

    /// The run directory is there: this rank shows itself before the first step.
    pub fn appear(&self) {
        if self.watchdog.is_some() {
            self.shared.make_dir();
            self.shared.publish();
        }
    }

    /// Memory is there: signs of life say what of it is held, beside what the plan holds at most of each kind, and together.
    pub fn show_memory(&self, ledger: Arc<Ledger>, planned: Vec<(MemKind, u64)>, planned_total: u64) {
        let shown = self.shared.memory.set(Memory { ledger, planned, planned_total });
        assert!(shown.is_ok(), "a rank has one arena");
    }

    /// Parameters of `unit` are on their way.
    pub fn gathering(&self, unit: usize) {
        self.shared.lock().count_gathers(unit, 1, 0);
    }

    /// Parameters of `unit` have become whole.
    pub fn gathered(&self, unit: usize) {
        self.shared.lock().count_gathers(unit, -1, 1);
    }

    /// Parameters of `unit` are whole no more.
    pub fn released(&self, unit: usize) {
        self.shared.lock().count_gathers(unit, 0, -1);
    }

    /// The main thread begins an operation that every rank begins in the same order.
    pub fn at(&self, step: u64, what: &'static str, unit: Option<usize>) {
        let mut state = self.shared.lock();
        let next = Event { ordinal: state.now.ordinal + 1, step, what, unit, began: Instant::now() };
        if state.past.len() == N_EVENTS {
            state.past.pop_front();
        }
        let past = std::mem::replace(&mut state.now, next);
        state.past.push_back(past);
    }

    /// The main thread gets on within its operation, which takes long.
    pub fn tick(&self) {
        let mut state = self.shared.lock();
        state.ticks += 1;
        state.ticked = Instant::now();
    }

    /// The run is over; what is left is to leave MPI, together.
    pub fn leave(&self) {
        let step = self.shared.lock().now.step;
        self.at(step, "leave MPI", None);
    }
}

impl State {
    /// What changes when the main thread gets on.
    fn place(&self) -> (u64, u64) {
        (self.now.ordinal, self.ticks)
    }

    fn count_gathers(&mut self, unit: usize, on_their_way: i32, whole: i32) {
        // A recorder that writes nothing knows no units.
        if let Some(gathers) = self.gathers.get_mut(unit) {
            let changed = (gathers.0.checked_add_signed(on_their_way), gathers.1.checked_add_signed(whole));
            let (Some(a), Some(b)) = changed else { panic!("unit {unit}: a gather ends that had not begun") };
            *gathers = (a, b);
        }
    }
}

/// Between two looks at whether this rank has stood still for too long.
fn look_every(timeout: Duration) -> Duration {
    (timeout / 60).clamp(Duration::from_millis(200), SLOWEST_BEAT)
}

/// Between two signs of life of a rank: a second where ranks are few, for whoever watches, and no longer than `longest`.
fn beat(n_ranks: usize, longest: Duration) -> Duration {
    Duration::from_secs_f64((n_ranks as f64 / SIGNS_PER_SECOND).clamp(1.0, SLOWEST_BEAT.as_secs_f64())).min(longest)
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.closing.notify_all();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.join().ok();
            std::fs::remove_file(SignOfLife::path(&self.shared.dir, self.shared.rank)).ok();
            // Of an operation that took long and came to its end.
            std::fs::remove_file(self.shared.events_path()).ok();
            // The last rank takes the empty directory away.
            std::fs::remove_dir(&self.shared.dir).ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events_path(&self) -> PathBuf {
        self.dir.join(format!("rank_{}.jsonl", self.rank))
    }

    fn words(&self, event: &Event) -> String {
        match event.unit.and_then(|u| self.units.get(u)) {
            Some(unit) => format!("{} {unit}", event.what),
            None => event.what.into(),
        }
    }

    /// Makes the directory of signs of life. A fault of the file system is no reason to end a run, here and below.
    fn make_dir(&self) {
        if let Err(error) = std::fs::create_dir_all(&self.dir) {
            log::debug!("{}: {error}", self.dir.display());
        }
    }

    /// Writes this rank's sign of life.
    fn publish(&self) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        *beats += 1;
        let (now, ticks, gathers) = {
            let state = self.lock();
            (state.now, state.ticks, state.gathers.clone())
        };
        let names = |wanted: fn(&(u32, u32)) -> bool| {
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
            gathered: names(|&(_, whole)| whole > 0),
            gathering: names(|&(on_their_way, _)| on_their_way > 0),
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

    fn read_all(&self) -> Vec<Option<SignOfLife>> {
        (0..self.hosts.len()).map(|rank| SignOfLife::read(&self.dir, rank)).collect()
    }

    /// Waits for a beat; true when the recorder has been closed.
    fn rest(&self, beat: Duration) -> bool {
        let state = self.lock();
        let (state, _) =
            self.closing.wait_timeout_while(state, beat, |state| !state.closed).unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    /// Writes signs of life, and with a `timeout` also looks whether this rank has stood still for too long.
    fn watch(&self, timeout: Option<Duration>, abort: impl Fn()) {
        let mut dumped_at = u64::MAX;
        loop {
            let (place, waited) = {
                let state = self.lock();
                (state.place(), state.now.began.max(state.ticked).elapsed())
            };
            let has_run_dir = self.dir.parent().is_some_and(Path::exists);
            let waits_long = timeout.is_some_and(|timeout| waited > timeout / 2);
            if has_run_dir || waits_long {
                self.make_dir();
            }
            self.publish();
            // Ahead of the end, which may come from another rank.
            if waits_long && dumped_at != place.0 {
                dumped_at = place.0;
                self.dump();
            }
            if timeout.is_some_and(|timeout| waited > timeout && self.judge(look_every(timeout), place)) {
                abort();
                return;
            }
            if self.rest(self.beat) {
                return;
            }
        }
    }

    /// Looks twice at all ranks; the lowest live one says who is late. False when this rank, or one it may be waiting for, gets
    /// on after all.
    fn judge(&self, beat: Duration, place: (u64, u64)) -> bool {
        let before = self.read_all();
        let moves_on = |beats: u32| {
            (0..beats).any(|_| {
                let closed = self.rest(beat);
                self.publish();
                closed || self.lock().place() != place
            })
        };
        if moves_on(BEATS_TO_LIVE) {
            return false;
        }
        let after = self.read_all();
        let place_of = |sign: &Option<SignOfLife>| sign.as_ref().map(SignOfLife::place);
        if before.iter().zip(&after).any(|(b, a)| b.is_some() && place_of(b) != place_of(a)) {
            return false;
        }
        let lives = |rank: usize| {
            let beat_of = |all: &[Option<SignOfLife>]| all[rank].as_ref().map(|p| p.beat);
            rank == self.rank || beat_of(&before) != beat_of(&after)
        };
        let lowest = (0..self.hosts.len()).find(|&r| lives(r)).expect("this one lives");
        if lowest != self.rank && moves_on((TIME_TO_SAY.as_secs_f64() / beat.as_secs_f64()).ceil() as u32) {
            return false;
        }
        let live: Vec<bool> = (0..self.hosts.len()).map(lives).collect();
        let own = self.lock().now;
        for line in verdict(&after, &live, &self.hosts, self.rank, &self.words(&own), own.step, own.began.elapsed()) {
            log::error!("{line}");
        }
        log::error!("the last events of each rank are in {}; the job ends with code 5", self.dir.display());
        true
    }

    /// Writes the last events, oldest first.
    fn dump(&self) {
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

/// Who has not arrived, one line per late rank: those without a sign of life; without such, those furthest behind.
fn verdict(
    all: &[Option<SignOfLife>],
    live: &[bool],
    hosts: &[String],
    own_rank: usize,
    own_words: &str,
    own_step: u64,
    waited: Duration,
) -> Vec<String> {
    let ordinals = all.iter().map(|p| p.as_ref().map_or(0, |p| p.ordinal));
    let (first, last) = (ordinals.clone().min().unwrap_or(0), ordinals.max().unwrap_or(0));
    let any_dead = live.contains(&false);
    // Where the others wait, for a rank that is itself behind.
    let ahead = all.iter().flatten().find(|p| p.ordinal == last);
    let own_is_behind = all[own_rank].as_ref().is_some_and(|p| p.ordinal < last);
    let (meeting, meeting_step) = match ahead {
        Some(p) if own_is_behind => (p.what.as_str(), p.step),
        _ => (own_words, own_step),
    };
    let mut lines = vec![format!(
        "rank {own_rank} has {} {:.0} s at `{own_words}` of step {own_step} (run.timeout)",
        if own_is_behind { "stood still for" } else { "waited" },
        waited.as_secs_f64()
    )];
    for (rank, progress) in all.iter().enumerate() {
        let is_late =
            if any_dead { !live[rank] } else { first < last && progress.as_ref().map_or(0, |p| p.ordinal) == first };
        if !is_late {
            continue;
        }
        lines.push(match progress {
            None => format!(
                "rank {rank} on {} has not arrived at `{meeting}` of step {meeting_step}: it has never been seen",
                hosts[rank]
            ),
            Some(p) => {
                let sign = if live[rank] { "it is alive" } else { "it gives no sign of life (stopped, or its node is gone)" };
                format!(
                    "rank {rank} on {} (process {}) has not arrived at `{meeting}` of step {meeting_step}: last seen at `{}` of step {}, \
                     which it began {:.0} s ago; {sign}",
                    p.host,
                    p.pid,
                    p.what,
                    p.step,
                    (unix_now() - p.since_unix).max(0.0)
                )
            }
        });
    }
    if lines.len() == 1 {
        lines.push("every rank has arrived and lives: the collective itself does not end (network, or MPI)".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn progress(rank: usize, ordinal: u64) -> Option<SignOfLife> {
        let (host, what) = (format!("n{rank}"), "forward h.0".to_string());
        let since_unix = unix_now();
        Some(SignOfLife { rank, host, pid: 7, beat: 1, ordinal, step: 3, what, since_unix, ..SignOfLife::default() })
    }

    #[test]
    fn the_late_rank_is_the_one_without_a_sign_of_life_else_the_one_behind() {
        let late = |all: &[Option<SignOfLife>], live: &[bool]| {
            let hosts: Vec<String> = (0..all.len()).map(|rank| format!("n{rank}")).collect();
            verdict(all, live, &hosts, 0, "wait h.1", 3, Duration::from_secs(9))[1..].join("\n")
        };
        let dead = late(&[progress(0, 9), progress(1, 9), progress(2, 9)], &[true, true, false]);
        assert!(dead.starts_with("rank 2 on n2 (process 7) has not arrived at `wait h.1` of step 3"), "{dead}");
        assert!(dead.contains("no sign of life") && !dead.contains("rank 1"), "{dead}");
        let behind = late(&[progress(0, 9), progress(1, 4), progress(2, 8)], &[true; 3]);
        assert!(behind.starts_with("rank 1 on n1") && behind.contains("last seen at `forward h.0`"), "{behind}");
        assert!(behind.contains("it is alive") && !behind.contains("rank 2"), "{behind}");
        // The rank that looks is the one behind.
        let own = late(&[progress(0, 4), progress(1, 9)], &[true; 2]);
        assert!(own.starts_with("rank 0 on n0 (process 7) has not arrived at `forward h.0` of step 3"), "{own}");
        let none = late(&[progress(0, 9), progress(1, 9)], &[true; 2]);
        assert!(none.contains("every rank has arrived"), "{none}");
        let unseen = late(&[progress(0, 9), None], &[true, false]);
        assert!(unseen.starts_with("rank 1 on n1 has not arrived") && unseen.contains("never been seen"), "{unseen}");
    }

    #[test]
    fn a_rank_that_does_not_move_is_found_and_one_that_does_leaves_nothing() {
        static ABORTED: AtomicBool = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let start = |timeout| {
            let abort = || ABORTED.store(true, Ordering::SeqCst);
            Flight::start(dir.path(), 0, vec!["here".into(); 2], vec!["embed".into()], timeout, abort).unwrap()
        };
        let flight = start(Duration::from_secs(60));
        flight.at(1, "gather", Some(0));
        drop(flight);
        assert!(!dir.path().join("flight").exists(), "a run that ends well leaves nothing");

        let flight = start(Duration::from_millis(300));
        flight.at(1, "gather", Some(0));
        let began = Instant::now();
        while !ABORTED.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(30), "the watchdog does not bark");
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = std::fs::read_to_string(dir.path().join("flight/rank_0.jsonl")).unwrap();
        assert!(text.lines().last().unwrap().contains("gather embed"), "{text}");
    }

    #[test]
    fn a_rank_that_gets_on_is_waited_for_until_it_no_longer_does() {
        static ABORTED: AtomicBool = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let abort = || ABORTED.store(true, Ordering::SeqCst);
        let start = |rank, timeout| {
            let flight =
                Flight::start(dir.path(), rank, vec!["here".into(); 2], vec![], Duration::from_millis(timeout), abort)
                    .unwrap();
            flight.at(0, "data", None);
            flight
        };
        // The reader ticks; only the one that waits has a short timeout.
        let (reads, waits) = (start(0, 600_000), start(1, 300));
        waits.at(0, "wait", None);
        reads.shared.publish();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            reads.tick();
            reads.shared.publish();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!ABORTED.load(Ordering::SeqCst), "the reader was getting on");
        while !ABORTED.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(40), "the reader stands still and nobody says so");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop((reads, waits));
        assert!(!dir.path().join("flight").exists(), "a run that ends by itself leaves nothing");
    }

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
        flight.shared.publish();
        assert_eq!((read().gathered, read().gathering), (vec!["h.1".to_string()], vec![]));
    }

    #[test]
    fn few_ranks_beat_every_second_and_many_as_slowly_as_the_watchdog_looks() {
        let seconds = |n, timeout| beat(n, look_every(Duration::from_secs(timeout))).as_secs_f64();
        assert_eq!([seconds(2, 600), seconds(50, 600), seconds(4096, 600)], [1.0, 5.0, 10.0]);
        assert_eq!([seconds(2, 12), seconds(4096, 60)], [0.2, 1.0], "a short timeout");
    }
}
