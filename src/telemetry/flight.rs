//! The flight recorder of a rank, and the watchdog that reads the others'.
//!
//! Every rank runs the same list of operations, so their number tells who is behind whom; within a long operation a rank ticks
//! as it gets on, and the others wait for it however long it takes. A rank's main thread notes each
//! operation in memory; a second thread writes the newest to `RUN/flight/rank_N.progress` now and then. When the main thread
//! has not moved for `timeout`, that thread reads the files of all ranks (the stuck communicator is of no use), and the lowest
//! rank that is alive says who has not arrived where. Each rank leaves its last events in `RUN/flight/rank_N.jsonl`, and the
//! job ends.
//!
//! Must not know: MPI. How the job is ended is told.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::time_limit::unix_now;

/// Events kept.
const N_EVENTS: usize = 256;
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
    closed: bool,
}

struct Shared {
    dir: PathBuf,
    rank: usize,
    n_ranks: usize,
    host: String,
    units: Vec<String>,
    state: Mutex<State>,
    closing: Condvar,
}

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Progress {
    rank: usize,
    host: String,
    pid: u32,
    /// Counts up as long as the process lives.
    beat: u64,
    ordinal: u64,
    ticks: u64,
    step: u64,
    what: String,
    /// Unix time at which the operation began.
    since_unix: f64,
}

/// The recorder of this rank. Dropped, it stops watching.
pub struct Flight {
    shared: Arc<Shared>,
    watchdog: Option<JoinHandle<()>>,
}

impl Flight {
    /// Starts recording into `RUN/flight`; with a `timeout` above zero also watching. `abort` ends the job. A run directory that is
    /// not there yet is left to come, unless this rank begins to wait long: bad data leave none behind.
    pub fn start(
        run_dir: &Path,
        (rank, n_ranks): (usize, usize),
        host: &str,
        units: Vec<String>,
        timeout: Duration,
        abort: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let now = Event { ordinal: 0, step: 0, what: "start", unit: None, began: Instant::now() };
        let shared = Arc::new(Shared {
            dir: run_dir.join("flight"),
            rank,
            n_ranks,
            host: host.into(),
            units,
            state: Mutex::new(State {
                now,
                ticks: 0,
                ticked: now.began,
                past: VecDeque::with_capacity(N_EVENTS),
                closed: false,
            }),
            closing: Condvar::new(),
        });
        let mut watchdog = None;
        if !timeout.is_zero() && n_ranks > 1 {
            // What an earlier job left is not this rank's sign of life.
            std::fs::remove_file(shared.progress_path(rank)).ok();
            std::fs::remove_file(shared.events_path()).ok();
            let watched = Arc::clone(&shared);
            let run = move || watched.watch(timeout, abort);
            watchdog = Some(std::thread::Builder::new().name("watchdog".into()).spawn(run)?);
        }
        Ok(Flight { shared, watchdog })
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
}

impl Progress {
    fn place(&self) -> (u64, u64) {
        (self.ordinal, self.ticks)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.closing.notify_all();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.join().ok();
            std::fs::remove_file(self.shared.progress_path(self.shared.rank)).ok();
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

    fn progress_path(&self, rank: usize) -> PathBuf {
        self.dir.join(format!("rank_{rank}.progress"))
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

    /// Writes this rank's sign of life. A fault of the file system is no reason to end a run.
    fn publish(&self, beat: u64) {
        let (now, ticks) = {
            let state = self.lock();
            (state.now, state.ticks)
        };
        let progress = Progress {
            rank: self.rank,
            host: self.host.clone(),
            pid: std::process::id(),
            beat,
            ordinal: now.ordinal,
            ticks,
            step: now.step,
            what: self.words(&now),
            since_unix: unix_now() - now.began.elapsed().as_secs_f64(),
        };
        let temporary = self.dir.join(format!(".rank_{}.tmp", self.rank));
        let text = serde_json::to_vec(&progress).expect("plain data");
        let written = std::fs::write(&temporary, text);
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, self.progress_path(self.rank))) {
            log::debug!("{}: {error}", self.progress_path(self.rank).display());
        }
    }

    fn read_all(&self) -> Vec<Option<Progress>> {
        let read = |rank| serde_json::from_slice(&std::fs::read(self.progress_path(rank)).ok()?).ok();
        (0..self.n_ranks).map(read).collect()
    }

    /// Waits for a beat; true when the recorder has been closed.
    fn rest(&self, beat: Duration) -> bool {
        let state = self.lock();
        let (state, _) =
            self.closing.wait_timeout_while(state, beat, |state| !state.closed).unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    fn watch(&self, timeout: Duration, abort: impl Fn()) {
        let beat = (timeout / 60).clamp(Duration::from_millis(200), Duration::from_secs(10));
        let mut n = 0;
        let mut dumped_at = u64::MAX;
        loop {
            n += 1;
            let (place, waited) = {
                let state = self.lock();
                (state.place(), state.now.began.max(state.ticked).elapsed())
            };
            let has_run_dir = self.dir.parent().is_some_and(Path::exists);
            if (has_run_dir || waited > timeout / 2)
                && let Err(error) = std::fs::create_dir_all(&self.dir)
            {
                log::debug!("{}: {error}", self.dir.display());
            }
            self.publish(n);
            // Ahead of the end, which may come from another rank.
            if waited > timeout / 2 && dumped_at != place.0 {
                dumped_at = place.0;
                self.dump();
            }
            if waited > timeout && self.judge(&mut n, beat, place) {
                abort();
                return;
            }
            if self.rest(beat) {
                return;
            }
        }
    }

    /// Looks twice at all ranks; the lowest live one says who is late. False when this rank, or one it may be waiting for, gets
    /// on after all.
    fn judge(&self, n: &mut u64, beat: Duration, place: (u64, u64)) -> bool {
        let before = self.read_all();
        let moves_on = |n: &mut u64, beats: u32| {
            (0..beats).any(|_| {
                let closed = self.rest(beat);
                *n += 1;
                self.publish(*n);
                closed || self.lock().place() != place
            })
        };
        if moves_on(n, BEATS_TO_LIVE) {
            return false;
        }
        let after = self.read_all();
        let place_of = |progress: &Option<Progress>| progress.as_ref().map(Progress::place);
        if before.iter().zip(&after).any(|(b, a)| b.is_some() && place_of(b) != place_of(a)) {
            return false;
        }
        let lives = |rank: usize| {
            let beat_of = |all: &[Option<Progress>]| all[rank].as_ref().map(|p| p.beat);
            rank == self.rank || beat_of(&before) != beat_of(&after)
        };
        let lowest = (0..self.n_ranks).find(|&r| lives(r)).expect("this one lives");
        if lowest != self.rank && moves_on(n, (TIME_TO_SAY.as_secs_f64() / beat.as_secs_f64()).ceil() as u32) {
            return false;
        }
        let live: Vec<bool> = (0..self.n_ranks).map(lives).collect();
        let own = self.lock().now;
        for line in verdict(&after, &live, self.rank, &self.words(&own), own.step, own.began.elapsed()) {
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
                "rank": self.rank, "host": self.host, "ordinal": event.ordinal, "step": event.step, "what": self.words(event),
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
    all: &[Option<Progress>],
    live: &[bool],
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
            None => format!("rank {rank} has not arrived at `{meeting}` of step {meeting_step}: it has never been seen"),
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

    fn progress(rank: usize, ordinal: u64) -> Option<Progress> {
        let (host, what) = (format!("n{rank}"), "forward h.0".to_string());
        Some(Progress { rank, host, pid: 7, beat: 1, ordinal, ticks: 0, step: 3, what, since_unix: unix_now() })
    }

    #[test]
    fn the_late_rank_is_the_one_without_a_sign_of_life_else_the_one_behind() {
        let late = |all: &[Option<Progress>], live: &[bool]| {
            verdict(all, live, 0, "wait h.1", 3, Duration::from_secs(9))[1..].join("\n")
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
    }

    #[test]
    fn a_rank_that_does_not_move_is_found_and_one_that_does_leaves_nothing() {
        static ABORTED: AtomicBool = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let start = |timeout| {
            let abort = || ABORTED.store(true, Ordering::SeqCst);
            Flight::start(dir.path(), (0, 2), "here", vec!["embed".into()], timeout, abort).unwrap()
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
                Flight::start(dir.path(), (rank, 2), "here", vec![], Duration::from_millis(timeout), abort).unwrap();
            flight.at(0, "data", None);
            flight
        };
        // The reader ticks; only the one that waits has a short timeout.
        let (reads, waits) = (start(0, 600_000), start(1, 300));
        waits.at(0, "wait", None);
        reads.shared.publish(1);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            reads.tick();
            reads.shared.publish(2);
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
}
