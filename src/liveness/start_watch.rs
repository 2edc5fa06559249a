//! Monitors a rank's start, from before MPI to the first agreement of a run and on to its recorder: late
//! ranks are reported after `run.timeout`, and a signal ends a start that makes no progress.
//!
//! There is no communicator to use, and no run directory for heartbeats. So a rank exposes its position in
//! the name of its monitoring thread, which every process of the same user on the node can read, even if the
//! rank is stopped; the ranks of a node are found by the variables their launcher set. A hang on another node
//! is reported by that node's ranks.
//!
//! Must not know: MPI. The caller supplies the way to end the job.

use crate::batch::signals;
use crate::batch::signals::Stop;
use crate::environment::{self, Launched, Sibling};
use crate::error::{Exit, Result};
use crate::say::err;
use crate::{clock, human, threads};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Position of a rank in its start: every rank passes them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartPlace {
    /// MPI_Init.
    Mpi,
    /// The first messages between ranks.
    Connect,
    /// Rank 0 reads the deck; the others wait for it.
    Deck,
    /// Ranks compare program, deck and nodes.
    Compare,
    /// The device is opened, kernels are compiled, libraries connect.
    Backend,
    /// Plan and memory.
    Plan,
    /// Rank 0 checks the run directory and locks it; the others wait for it.
    RunDir,
}

/// Description, and whether only rank 0 has work there.
const PLACES: [(StartPlace, &str, bool); 7] = [
    (StartPlace::Mpi, "start MPI", false),
    (StartPlace::Connect, "connect the ranks", false),
    (StartPlace::Deck, "read the deck", true),
    (StartPlace::Compare, "compare the ranks", false),
    (StartPlace::Backend, "open the backend", false),
    (StartPlace::Plan, "plan", false),
    (StartPlace::RunDir, "check run.dir", true),
];

/// Polling interval of the thread.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a stop request may be pending before the start is given up.
const TIME_TO_HEAR: Duration = Duration::from_secs(5);
/// After this time the deck is queried for `run.timeout`; starts are shorter.
const ASK_DECK_AFTER: Duration = Duration::from_secs(1);
/// `run.timeout` while it is not known.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// Time for the first rank of a node to report before another one ends the job.
const TIME_TO_SPEAK: Duration = Duration::from_secs(3);
/// Opening a device may take long, and has separate limits.
const BACKEND_FACTOR: u32 = 2;

struct Watched {
    /// When the main thread reached its position.
    since: Mutex<(StartPlace, Instant)>,
    ticks: AtomicU64,
    /// `run.timeout` in milliseconds; u64::MAX = not known, 0 = no limit.
    timeout_ms: AtomicU64,
    mpi_runs: AtomicBool,
    over: AtomicBool,
}

/// A process starts once.
static WATCHED: OnceLock<Watched> = OnceLock::new();

/// How the job is ended: by MPI if it runs, otherwise by the end of this process, which the launcher detects.
#[derive(Clone, Copy)]
pub struct Ends {
    /// With MPI.
    pub job: fn(Exit),
    /// Without.
    pub process: fn(Exit),
}

/// Starts monitoring. `timeout` determines `run.timeout` if the start takes long; it may hang.
///
/// # Errors
/// The system cannot start a thread.
pub fn begin(timeout: impl FnOnce() -> Option<Duration> + Send + 'static, ends: Ends) -> Result<()> {
    let watched = WATCHED.get_or_init(|| Watched {
        since: Mutex::new((StartPlace::Mpi, clock::process_start())),
        ticks: AtomicU64::new(0),
        timeout_ms: AtomicU64::new(u64::MAX),
        mpi_runs: AtomicBool::new(false),
        over: AtomicBool::new(false),
    });
    threads::spawn(&thread_name(StartPlace::Mpi, 0), move || watch(watched, timeout, ends)).map(|_| ())
}

/// The main thread reaches a position.
pub fn at(place: StartPlace) {
    if let Some(watched) = WATCHED.get() {
        *watched.since.lock().unwrap_or_else(PoisonError::into_inner) = (place, Instant::now());
    }
}

/// The main thread progresses at its position, which may take long.
pub fn tick() {
    if let Some(watched) = WATCHED.get() {
        watched.ticks.fetch_add(1, Ordering::Relaxed);
        watched.since.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }
}

/// `run.timeout` is known; zero = no limit.
pub fn set_timeout(timeout: Duration) {
    if let Some(watched) = WATCHED.get() {
        watched.timeout_ms.store(timeout.as_millis() as u64, Ordering::Relaxed);
    }
}

/// MPI has started: it can end the job.
pub fn mpi_runs() {
    if let Some(watched) = WATCHED.get() {
        watched.mpi_runs.store(true, Ordering::Relaxed);
    }
}

/// The start is over, or monitored elsewhere.
pub fn end() {
    if let Some(watched) = WATCHED.get() {
        watched.over.store(true, Ordering::Relaxed);
    }
}

impl Watched {
    fn place(&self) -> (StartPlace, Instant) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None = no limit.
    fn timeout(&self) -> Option<Duration> {
        match self.timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            u64::MAX => Some(DEFAULT_TIMEOUT),
            ms => Some(Duration::from_millis(ms)),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn end_with(&self, exit: Exit, ends: Ends) {
        if self.mpi_runs.load(Ordering::Relaxed) { (ends.job)(exit) } else { (ends.process)(exit) }
    }
}

/// Prints a line, whatever the state of standard error.
fn say(line: &str) {
    err(&format!("zero3: {line}"));
}

/// The thread name that other processes read: the position's number, and the number of ticks there. At most
/// 15 bytes.
fn thread_name(place: StartPlace, ticks: u64) -> String {
    format!("z3 {} {}", place as usize, ticks % 100_000)
}

/// Position of a process's rank, from the name of its monitoring thread; None without one.
fn place_shown(name: &str) -> Option<(StartPlace, u64)> {
    let mut words = name.trim().strip_prefix("z3 ")?.split(' ');
    let place: usize = words.next()?.parse().ok()?;
    Some((PLACES.get(place)?.0, words.next()?.parse().ok()?))
}

fn watch(watched: &'static Watched, timeout: impl FnOnce() -> Option<Duration> + Send + 'static, ends: Ends) {
    let began = Instant::now();
    let mut timeout = Some(timeout);
    let (mut shown, mut asked_to_stop) = (thread_name(StartPlace::Mpi, 0), None);
    let mut awake = clock::Awake::now();
    loop {
        clock::rest(LOOK_EVERY);
        if watched.is_over() {
            return;
        }
        let looked = Instant::now();
        awake.look(looked, LOOK_EVERY);
        let (place, since) = watched.place();
        let name = thread_name(place, watched.ticks.load(Ordering::Relaxed));
        if name != shown {
            // A name is 15 bytes of the thread, not backed by a file.
            fs::write("/proc/thread-self/comm", &name).ok();
            shown = name;
        }
        if began.elapsed() > ASK_DECK_AFTER
            && watched.timeout_ms.load(Ordering::Relaxed) == u64::MAX
            && let Some(ask) = timeout.take()
        {
            // On a separate thread: the file may be what does not respond.
            let asked = threads::spawn("run.timeout", move || {
                if let Some(found) = ask() {
                    let ms = found.as_millis() as u64;
                    // Unless the ranks have agreed on it in the meantime.
                    watched
                        .timeout_ms
                        .compare_exchange(u64::MAX, ms, Ordering::Relaxed, Ordering::Relaxed)
                        .ok();
                }
            });
            if let Err(error) = asked {
                say(&error.to_string());
            }
        }
        let wish = signals::stop_code().max(signals::pending());
        if wish != 0 && asked_to_stop.get_or_insert(looked).elapsed() > TIME_TO_HEAR && !watched.is_over() {
            let what = PLACES[place as usize].1;
            let stop = Stop::from_code(wish).map_or(String::new(), |stop| stop.to_string());
            say(&format!(
                "stopped early: {stop}, and this one is still at `{what}`: nothing was started, run the same \
                 command again"
            ));
            watched.end_with(Exit::StoppedEarly, ends);
            return;
        }
        let waited = awake.part_of(since.elapsed());
        let factor = if place == StartPlace::Backend { BACKEND_FACTOR } else { 1 };
        if let Some(limit) = watched.timeout()
            && waited > limit * factor
            && judge(watched, place, limit * factor, waited)
        {
            watched.end_with(Exit::CommFailure, ends);
            return;
        }
    }
}

/// A rank of this node as seen by others.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    rank: usize,
    pid: u32,
    state: char,
    /// None before its monitoring starts.
    place: Option<(StartPlace, u64)>,
}

/// Reports late ranks, if this rank is the one to report. True if the job must end now; false if it
/// progresses after all.
fn judge(watched: &Watched, place: StartPlace, limit: Duration, waited: Duration) -> bool {
    let launched = environment::launched();
    let own_rank = launched.as_ref().map_or(0, |own| own.rank);
    let look = || -> Vec<Seen> {
        match &launched {
            Some(own) => environment::siblings(own).iter().map(seen).collect(),
            None => {
                let ticks = watched.ticks.load(Ordering::Relaxed);
                vec![Seen { rank: 0, pid: std::process::id(), state: 'R', place: Some((place, ticks)) }]
            }
        }
    };
    let all = look();
    // A second look after a moment: a rank that progresses is waited for.
    clock::rest(LOOK_EVERY * 3);
    let is_here = || !watched.is_over() && watched.place().0 == place && watched.place().1.elapsed() > limit;
    let again = look();
    if !is_here()
        || again.iter().any(|now| all.iter().any(|then| then.rank == now.rank && then.place != now.place))
    {
        return false;
    }
    let late = late(&again, launched.as_ref());
    // The culprit's node reports first; if it cannot, another one does, after the same time again.
    if late.is_empty() && launched.is_some() && waited < limit * 2 {
        return false;
    }
    let speaker = again.iter().find(|seen| !is_stopped(seen.state)).map_or(own_rank, |seen| seen.rank);
    if speaker != own_rank {
        clock::rest(TIME_TO_SPEAK);
        return is_here();
    }
    let what = PLACES[place as usize].1;
    say(&format!("rank {own_rank} has waited {:.0} s at `{what}` (run.timeout)", waited.as_secs_f64()));
    for line in if late.is_empty() { vec![elsewhere(&again, launched.as_ref())] } else { late } {
        say(&line);
    }
    say("the job ends with code 5");
    true
}

fn seen(sibling: &Sibling) -> Seen {
    let tasks = fs::read_dir(format!("/proc/{}/task", sibling.pid)).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let place = names.find_map(|name| place_shown(&name));
    Seen { rank: sibling.rank, pid: sibling.pid, state: sibling.state, place }
}

fn is_stopped(state: char) -> bool {
    ['T', 't', 'Z', 'X'].contains(&state)
}

/// A line for each rank of this node that the others wait for; none if that is a rank of another node.
fn late(all: &[Seen], launched: Option<&Launched>) -> Vec<String> {
    let mut lines = Vec::new();
    let any_stopped = all.iter().any(|seen| is_stopped(seen.state));
    // None, which is less than every position, if a rank is not monitored yet.
    let first = all.iter().map(|seen| seen.place.map(|(place, _)| place)).min().flatten();
    let last = all.iter().filter_map(|seen| seen.place).map(|(place, _)| place).max();
    for seen in all {
        let is_late = if any_stopped {
            is_stopped(seen.state)
        } else if seen.place.is_none() || first < last {
            seen.place.map(|(place, _)| place) == first
        } else {
            // All at the same position: if rank 0 works there, the others wait for it.
            seen.rank == 0 && last.is_some_and(|place| PLACES[place as usize].2)
        };
        if !is_late {
            continue;
        }
        let place = seen
            .place
            .map_or("its first step".to_string(), |(place, _)| format!("`{}`", PLACES[place as usize].1));
        let how = match seen.state {
            'T' | 't' => "it is stopped".to_string(),
            'Z' | 'X' => "it has ended".into(),
            'D' => "it waits for a disk or file server".into(),
            state => format!("it is alive (state {state})"),
        };
        lines.push(format!("rank {} (process {}) is not past {place}: {how}", seen.rank, seen.pid));
    }
    // If all ranks are on this node, one that is not visible has not started.
    if let Some(Launched { size: Some(size), local_size: Some(local), .. }) = launched
        && size == local
    {
        for rank in (0..*size).filter(|rank| all.iter().all(|seen| seen.rank != *rank)) {
            lines.push(format!("rank {rank} has not started, or has ended: this node has no process of it"));
        }
    }
    lines
}

/// The message if no rank of this node is late.
fn elsewhere(here: &[Seen], launched: Option<&Launched>) -> String {
    let of = launched.and_then(|own| own.size).map_or(String::new(), |size| format!(" of {size}"));
    format!(
        "the {}{of} on this node wait: a rank of another node is late, and no rank there reports which",
        human::counted(here.len(), "rank")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rank: usize, state: char, place: Option<StartPlace>) -> Seen {
        Seen { rank, pid: 70 + rank as u32, state, place: place.map(|place| (place, 0)) }
    }

    #[test]
    fn places_go_by_number_and_fit_a_thread_s_name() {
        for (i, (place, _, _)) in PLACES.into_iter().enumerate() {
            assert_eq!(place as usize, i);
            assert_eq!(place_shown(&(thread_name(place, 12) + "\n")), Some((place, 12)));
            assert!(thread_name(place, u64::MAX).len() <= 15);
        }
        for other in ["zero3", "z3 99 0", "z3 x 0", "z3 1", "watchdog"] {
            assert_eq!(place_shown(other), None, "{other}");
        }
    }

    #[test]
    fn the_late_rank_is_the_stopped_one_else_the_one_behind_else_rank_0_at_its_work() {
        use StartPlace::{Compare, Deck, Mpi};
        let one = |all: &[Seen]| late(all, None).join("\n");
        let stopped = one(&[seen(0, 'S', Some(Deck)), seen(1, 'T', Some(Mpi)), seen(2, 'S', Some(Mpi))]);
        assert_eq!(stopped, "rank 1 (process 71) is not past `start MPI`: it is stopped");
        let behind = one(&[seen(0, 'S', Some(Compare)), seen(1, 'D', Some(Deck))]);
        assert_eq!(
            behind,
            "rank 1 (process 71) is not past `read the deck`: it waits for a disk or file server"
        );
        let not_begun = one(&[seen(0, 'S', Some(Mpi)), seen(1, 'R', None)]);
        assert_eq!(not_begun, "rank 1 (process 71) is not past its first step: it is alive (state R)");
        let deck = one(&[seen(0, 'S', Some(Deck)), seen(1, 'S', Some(Deck))]);
        assert!(
            deck.starts_with("rank 0 (process 70) is not past `read the deck`") && !deck.contains("rank 1")
        );
        assert_eq!(
            one(&[seen(0, 'S', Some(Compare)), seen(1, 'S', Some(Compare))]),
            "",
            "somebody elsewhere"
        );
    }
}
