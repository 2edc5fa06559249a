//! Signals as flags: a handler sets one, the loop polls it. Nothing else is safe in a handler.
//!
//! A stop request lasts until the process ends: a second signal has no effect, not even during a save.

use crate::config::values::STOP_SIGNALS;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static REPORT: AtomicBool = AtomicBool::new(false);
/// [`Stop::code`] of the stop request, 0 = none.
static STOP: AtomicI32 = AtomicI32::new(0);

/// Code of the first [`Stop::TimeLimit`]: above every signal number, so that the maximum of all ranks'
/// requests is well defined.
const TIME_LIMIT: i32 = 1000;

/// The source of a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The deck.
    Deck,
    /// Slurm, through `scontrol show job`.
    Scontrol,
    /// Slurm, in the environment of the job.
    SlurmEndTime,
    /// A section of the acceptance benchmark that requests a stop to test it.
    Acceptance,
}

impl Limit {
    const ALL: [(Limit, &'static str); 4] = [
        (Limit::Deck, "run.time_limit"),
        (Limit::Scontrol, "scontrol show job"),
        (Limit::SlurmEndTime, "SLURM_JOB_END_TIME"),
        (Limit::Acceptance, "the acceptance benchmark"),
    ];

    /// The key, command or variable that sets it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Why a run must stop early, with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A rank got this signal.
    Signal(i32),
    /// There is no time for another step and a save.
    TimeLimit(Limit),
}

impl Stop {
    /// A number exchanged between ranks; the maximum counts.
    pub fn code(self) -> i32 {
        match self {
            Stop::Signal(number) => number,
            Stop::TimeLimit(limit) => TIME_LIMIT + limit as i32,
        }
    }

    /// The reverse of [`Stop::code`]; none for 0.
    pub fn from_code(code: i32) -> Option<Stop> {
        match code {
            0 => None,
            number => Some(match Limit::ALL.iter().find(|(limit, _)| TIME_LIMIT + *limit as i32 == number) {
                Some((limit, _)) => Stop::TimeLimit(*limit),
                None => Stop::Signal(number),
            }),
        }
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::TimeLimit(limit) => write!(f, "the time limit is near ({})", limit.name()),
            Stop::Signal(number) => match STOP_SIGNALS.iter().find(|s| s.1 == *number) {
                Some((name, _)) => write!(f, "a rank received SIG{name}"),
                None => write!(f, "a rank received signal {number}"),
            },
        }
    }
}

extern "C" fn note_report(_signal: libc::c_int) {
    REPORT.store(true, Ordering::Relaxed);
}

extern "C" fn note_stop(signal: libc::c_int) {
    STOP.fetch_max(signal, Ordering::Relaxed);
}

/// Blocks signals that batch systems send in this thread, and those it starts, until [`listen`] handles them:
/// a job may be preempted while MPI starts, and a signal without a handler would end the process. Interactive
/// signals are not blocked.
pub fn hold() {
    mask(libc::SIG_BLOCK);
}

fn mask(how: libc::c_int) {
    // SAFETY: a sigset_t is plain bits, which sigemptyset initializes; the signals exist; a null pointer
    // requests no old mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for (_, signal) in STOP_SIGNALS.into_iter().filter(|s| ![libc::SIGINT, libc::SIGQUIT].contains(&s.1))
        {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(how, &set, std::ptr::null_mut());
    }
}

/// A file that exceeds `ulimit -f` is an error of that write, like a full disk, and does not end the process.
pub fn leave_limits_to_errno() {
    // SAFETY: no handler runs; the system call that exceeds the limit fails with EFBIG.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The largest pending signal of those blocked by [`hold`]; 0 = none.
pub fn pending() -> i32 {
    // SAFETY: a sigset_t is plain bits, which sigpending fills; the signals exist.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        if libc::sigpending(&mut set) != 0 {
            return 0;
        }
        STOP_SIGNALS
            .iter()
            .map(|s| s.1)
            .filter(|&s| s != libc::SIGURG && libc::sigismember(&set, s) == 1)
            .max()
            .unwrap_or(0)
    }
}

/// From now on SIGUSR2 requests a report, and each of `stop` a stop, instead of ending the process. Blocked
/// signals are delivered.
pub fn listen(stop: &[libc::c_int]) {
    let handlers = stop.iter().map(|&signal| (signal, note_stop as extern "C" fn(libc::c_int)));
    for (signal, handler) in handlers.chain([(libc::SIGUSR2, note_report as extern "C" fn(libc::c_int))]) {
        // SAFETY: the handlers only touch atomics, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
    mask(libc::SIG_UNBLOCK);
}

/// Whether a report was requested since the last call.
pub fn report_wanted() -> bool {
    REPORT.load(Ordering::Relaxed) && REPORT.swap(false, Ordering::Relaxed)
}

/// Requests a stop at the next step boundary.
pub fn ask_to_stop(stop: Stop) {
    STOP.fetch_max(stop.code(), Ordering::Relaxed);
}

/// Sends this process a signal, as a scheduler would.
pub fn send_to_self(signal: libc::c_int) {
    // SAFETY: a plain system call on this process.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Clears a stop request made by the program itself.
pub fn withdraw_stop() {
    STOP.store(0, Ordering::Relaxed);
}

/// [`Stop::code`] of this rank's request, 0 = none.
pub fn stop_code() -> i32 {
    STOP.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        let limits = Limit::ALL.map(|(limit, _)| Stop::TimeLimit(limit));
        for stop in limits.into_iter().chain([Stop::Signal(libc::SIGTERM)]) {
            assert_eq!(Stop::from_code(stop.code()), Some(stop));
        }
        for (i, (limit, name)) in Limit::ALL.into_iter().enumerate() {
            assert_eq!((limit as usize, limit.name()), (i, name));
        }
        assert_eq!(Stop::TimeLimit(Limit::Deck).to_string(), "the time limit is near (run.time_limit)");
        assert_eq!(Stop::from_code(0), None);
        assert_eq!(Stop::Signal(libc::SIGUSR1).to_string(), "a rank received SIGUSR1");
    }
}
