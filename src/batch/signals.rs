//! Signals as flags: a handler sets one, the loop looks. Nothing else is safe in a handler.
//!
//! A wish to stop stays until the process ends: a second signal changes nothing, not even in the middle of a
//! save.

use crate::config::values::STOP_SIGNALS;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static REPORT: AtomicBool = AtomicBool::new(false);
/// [`Stop::code`] of the wish to stop, 0 = none.
static STOP: AtomicI32 = AtomicI32::new(0);

/// Code of the first [`Stop::TimeLimit`]: above every signal number, so that the largest wish of all ranks is
/// well defined.
const TIME_LIMIT: i32 = 1000;

/// Who set a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The deck.
    Deck,
    /// Slurm, asked through `scontrol show job`.
    Scontrol,
    /// Slurm, in the environment of the job.
    SlurmEndTime,
    /// A section of the acceptance benchmark that asks for a stop to see one.
    Acceptance,
}

impl Limit {
    const ALL: [(Limit, &'static str); 4] = [
        (Limit::Deck, "run.time_limit"),
        (Limit::Scontrol, "scontrol show job"),
        (Limit::SlurmEndTime, "SLURM_JOB_END_TIME"),
        (Limit::Acceptance, "the acceptance benchmark"),
    ];

    /// The key, command or variable that says so.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Why a run is to stop early, with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A rank got this signal.
    Signal(i32),
    /// There is no time for one more step and a save.
    TimeLimit(Limit),
}

impl Stop {
    /// A number that travels between ranks; the largest one counts.
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
                Some((name, _)) => write!(f, "a rank got SIG{name}"),
                None => write!(f, "a rank got signal {number}"),
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

/// Keeps signals that batch systems send from this thread, and those it starts, until [`listen`] knows what
/// to make of them: a job may be preempted while MPI still starts, and a signal without a handler would end
/// the process. Those a person types are left alone.
pub fn hold() {
    mask(libc::SIG_BLOCK);
}

fn mask(how: libc::c_int) {
    // SAFETY: a sigset_t is plain bits, which sigemptyset sets up; the signals exist; a null pointer asks for
    // no old mask.
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

/// A file that grows beyond `ulimit -f` is an error of the write that met the limit, as a full disk is, and
/// not the end of the process.
pub fn leave_limits_to_errno() {
    // SAFETY: no handler runs; the system call that meets the limit fails with EFBIG.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The largest of the signals held back by [`hold`] that has come; 0 = none.
pub fn pending() -> i32 {
    // SAFETY: a sigset_t is plain bits, which sigpending fills in; the signals exist.
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

/// From now on SIGUSR2 asks for a report, and each of `stop` for a stop, instead of ending the process. What
/// was held arrives.
pub fn listen(stop: &[libc::c_int]) {
    let handlers = stop.iter().map(|&signal| (signal, note_stop as extern "C" fn(libc::c_int)));
    for (signal, handler) in handlers.chain([(libc::SIGUSR2, note_report as extern "C" fn(libc::c_int))]) {
        // SAFETY: the handlers only touch atomics, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
    mask(libc::SIG_UNBLOCK);
}

/// Whether a report was asked for since the last look.
pub fn report_wanted() -> bool {
    REPORT.load(Ordering::Relaxed) && REPORT.swap(false, Ordering::Relaxed)
}

/// Wishes to stop at the next step boundary.
pub fn ask_to_stop(stop: Stop) {
    STOP.fetch_max(stop.code(), Ordering::Relaxed);
}

/// Sends this process a signal, as a scheduler would.
pub fn send_to_self(signal: libc::c_int) {
    // SAFETY: a plain system call on this process.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Forgets a wish to stop that was this program's own.
pub fn withdraw_stop() {
    STOP.store(0, Ordering::Relaxed);
}

/// [`Stop::code`] of this rank's wish, 0 = none.
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
        assert_eq!(Stop::Signal(libc::SIGUSR1).to_string(), "a rank got SIGUSR1");
    }
}
