//! The job ends, whatever hangs: a thread that waits for the hard limit and then says what was under way, and on which rank.

use crate::error::Exit;
use crate::threads;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who is at work of its own speaks at once; rank 0 then, and the others where it cannot.
const RANK_0_WAITS: Duration = Duration::from_secs(2);
/// As [`RANK_0_WAITS`].
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// Whether this rank is at work of its own, for which the others have to wait.
#[derive(Debug, Clone, Default)]
pub struct OwnWork(Arc<AtomicBool>);

impl OwnWork {
    /// Does it.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let done = work();
        self.0.store(false, Ordering::Relaxed);
        done
    }
}

/// Runs until it is dropped.
pub struct Deadline {
    under_way: Arc<Mutex<&'static str>>,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    /// Ends the job `limit_s` seconds after `started`; 0 = never. `name` is this rank's, the `is_first` speaks for those that wait.
    pub fn start(
        name: String,
        is_first: bool,
        own_work: OwnWork,
        (started, limit_s): (Instant, f64),
        abort: fn(Exit),
    ) -> Self {
        let under_way = Arc::new(Mutex::new("start"));
        let (done, closing) = channel::<()>();
        let what = Arc::clone(&under_way);
        let is_over = move |at: Instant| {
            closing.recv_timeout(at.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout)
        };
        let watch = move || {
            let limit = started + Duration::from_secs_f64(limit_s);
            if !is_over(limit) {
                return;
            }
            let is_at_work = own_work.0.load(Ordering::Relaxed);
            let (grace, state) = match (is_at_work, is_first) {
                (true, _) => (Duration::ZERO, "is at work of its own, and the others wait for it"),
                (false, true) => (RANK_0_WAITS, "waits for others, or with them"),
                (false, false) => (OTHERS_WAIT, "waits for others, or with them"),
            };
            if is_over(limit + grace) {
                let what = *what.lock().expect("nobody panics with it");
                writeln!(
                    std::io::stderr(),
                    "zero3: `{what}` is not over after {limit_s:.0} s, half as much again as run.time_limit: {name} {state}; the job ends"
                )
                .ok();
                abort(Exit::CommFailure);
            }
        };
        // Without a thread to spare the scheduler's own limit has to do.
        let thread = (limit_s > 0.0).then(|| threads::spawn("deadline", watch)).and_then(std::result::Result::ok);
        Deadline { under_way, done: Some(done), thread }
    }

    /// What is under way from now on.
    pub fn enter(&self, what: &'static str) {
        *self.under_way.lock().expect("nobody panics with it") = what;
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static ABORTED: AtomicUsize = AtomicUsize::new(0);

    fn count(_: Exit) {
        ABORTED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn what_hangs_is_ended_and_what_ends_in_time_is_not() {
        let start = |own_work, limit_s| Deadline::start("it".into(), false, own_work, (Instant::now(), limit_s), count);
        drop(start(OwnWork::default(), 3600.0));
        drop(start(OwnWork::default(), 0.0));
        assert_eq!(ABORTED.load(Ordering::SeqCst), 0);
        let deadline = start(OwnWork(Arc::new(true.into())), 0.01);
        deadline.enter("a section");
        while ABORTED.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
