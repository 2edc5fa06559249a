//! The watch over a rank's start, from before MPI to the first agreement of a run and on to its recorder: who
//! has not come is named after `run.timeout`, and a signal ends what gets nowhere.
//!
//! There is no communicator to ask, and no run directory to leave signs of life in. So a rank shows where it
//! is in the name of its watching thread, which every process of the same user on the node can read, stopped
//! or not; the ranks of a node are found by the variables that their launcher gave them. What hangs on
//! another node is named by that node's ranks.
//!
//! Must not know: MPI. How the job is ended is told.

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

/// Where a rank is in its start: every rank comes to them in this order.
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
    /// Rank 0 looks into the run directory and locks it; the others wait for it.
    RunDir,
}

/// In words, and whether rank 0 alone has work there.
const PLACES: [(StartPlace, &str, bool); 7] = [
    (StartPlace::Mpi, "start MPI", false),
    (StartPlace::Connect, "connect the ranks", false),
    (StartPlace::Deck, "read the deck", true),
    (StartPlace::Compare, "compare the ranks", false),
    (StartPlace::Backend, "open the backend", false),
    (StartPlace::Plan, "plan", false),
    (StartPlace::RunDir, "look into run.dir", true),
];

/// Between two looks of the thread.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a wish to stop may go unheard before the start is given up.
const TIME_TO_HEAR: Duration = Duration::from_secs(5);
/// After which the deck is asked for `run.timeout`; starts are shorter.
const ASK_DECK_AFTER: Duration = Duration::from_secs(1);
/// `run.timeout` while it is not known.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// What the first rank of a node may take to speak before another one ends the job.
const TIME_TO_SPEAK: Duration = Duration::from_secs(3);
/// Opening a device may take its time, and has limits of its own.
const BACKEND_FACTOR: u32 = 2;

struct Watched {
    /// When the main thread came to its place.
    since: Mutex<(StartPlace, Instant)>,
    ticks: AtomicU64,
    /// `run.timeout` in milliseconds; u64::MAX = not known, 0 = no limit.
    timeout_ms: AtomicU64,
    mpi_runs: AtomicBool,
    over: AtomicBool,
}

/// A process starts once.
static WATCHED: OnceLock<Watched> = OnceLock::new();

/// How the job is ended: by MPI where it runs, else by the end of this process, which the launcher sees.
#[derive(Clone, Copy)]
pub struct Ends {
    /// With MPI.
    pub job: fn(Exit),
    /// Without.
    pub process: fn(Exit),
}

/// Begins to watch. `timeout` asks for `run.timeout` where the start takes long; it may hang.
///
/// # Errors
/// The system starts no thread.
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

/// The main thread comes to a place.
pub fn at(place: StartPlace) {
    if let Some(watched) = WATCHED.get() {
        *watched.since.lock().unwrap_or_else(PoisonError::into_inner) = (place, Instant::now());
    }
}

/// The main thread gets on at its place, which may take long.
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

/// The start is over, or somebody else watches.
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

/// Says a line, whatever has become of standard error.
fn say(line: &str) {
    err(&format!("zero3: {line}"));
}

/// What others read: the place by its number, and how often the rank has got on there. At most 15 bytes.
fn thread_name(place: StartPlace, ticks: u64) -> String {
    format!("z3 {} {}", place as usize, ticks % 100_000)
}

/// Where the rank of a process is, by the name of its watching thread; None where it has none.
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
            // A name is 15 bytes of the thread, without a file behind it.
            fs::write("/proc/thread-self/comm", &name).ok();
            shown = name;
        }
        if began.elapsed() > ASK_DECK_AFTER
            && watched.timeout_ms.load(Ordering::Relaxed) == u64::MAX
            && let Some(ask) = timeout.take()
        {
            // On a thread of its own: the file may be what does not answer.
            let asked = threads::spawn("run.timeout", move || {
                if let Some(found) = ask() {
                    let ms = found.as_millis() as u64;
                    // Not over what the ranks have agreed on meanwhile.
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
                "stopped early: {stop}, and this one got no further than `{what}`: nothing was begun, the \
                 same command goes on"
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

/// A rank of this node as it shows itself.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    rank: usize,
    pid: u32,
    state: char,
    /// None before its watch begins.
    place: Option<(StartPlace, u64)>,
}

/// Says who is late, where this rank is the one to speak. True when the job is to end now; false when it gets
/// on after all.
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
    // A second look after a moment: a rank that is seen to get on is waited for.
    clock::rest(LOOK_EVERY * 3);
    let is_here = || !watched.is_over() && watched.place().0 == place && watched.place().1.elapsed() > limit;
    let again = look();
    if !is_here()
        || again.iter().any(|now| all.iter().any(|then| then.rank == now.rank && then.place != now.place))
    {
        return false;
    }
    let late = late(&again, launched.as_ref());
    // The culprit's node speaks first; where that cannot, another one does, after as long again.
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

/// One line for each rank of this node that the others wait for; none where that is a rank of another node.
fn late(all: &[Seen], launched: Option<&Launched>) -> Vec<String> {
    let mut lines = Vec::new();
    let any_stopped = all.iter().any(|seen| is_stopped(seen.state));
    // None, which is less than every place, where the watch of a rank has not begun.
    let first = all.iter().map(|seen| seen.place.map(|(place, _)| place)).min().flatten();
    let last = all.iter().filter_map(|seen| seen.place).map(|(place, _)| place).max();
    for seen in all {
        let is_late = if any_stopped {
            is_stopped(seen.state)
        } else if seen.place.is_none() || first < last {
            seen.place.map(|(place, _)| place) == first
        } else {
            // All at one place: where rank 0 works, the others wait for it.
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
        lines.push(format!("rank {} (process {}) has not got past {place}: {how}", seen.rank, seen.pid));
    }
    // Where all ranks are on this node, one that is not seen has not begun.
    if let Some(Launched { size: Some(size), local_size: Some(local), .. }) = launched
        && size == local
    {
        for rank in (0..*size).filter(|rank| all.iter().all(|seen| seen.rank != *rank)) {
            lines.push(format!("rank {rank} has not begun, or has ended: no process of it is on this node"));
        }
    }
    lines
}

/// What can be said where no rank of this node is late.
fn elsewhere(here: &[Seen], launched: Option<&Launched>) -> String {
    let of = launched.and_then(|own| own.size).map_or(String::new(), |size| format!(" of {size}"));
    format!(
        "the {}{of} on this node wait: a rank of another node has not come, and no rank there says which",
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
        assert_eq!(stopped, "rank 1 (process 71) has not got past `start MPI`: it is stopped");
        let behind = one(&[seen(0, 'S', Some(Compare)), seen(1, 'D', Some(Deck))]);
        assert_eq!(
            behind,
            "rank 1 (process 71) has not got past `read the deck`: it waits for a disk or file server"
        );
        let not_begun = one(&[seen(0, 'S', Some(Mpi)), seen(1, 'R', None)]);
        assert_eq!(not_begun, "rank 1 (process 71) has not got past its first step: it is alive (state R)");
        let deck = one(&[seen(0, 'S', Some(Deck)), seen(1, 'S', Some(Deck))]);
        assert!(
            deck.starts_with("rank 0 (process 70) has not got past `read the deck`")
                && !deck.contains("rank 1")
        );
        assert_eq!(
            one(&[seen(0, 'S', Some(Compare)), seen(1, 'S', Some(Compare))]),
            "",
            "somebody elsewhere"
        );
    }
}
