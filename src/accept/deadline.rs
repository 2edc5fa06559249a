//! The job ends, whatever hangs: a thread that waits for the hard limit and then says what was under way.

use crate::error::Exit;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rank 0 speaks first; the others only where it cannot.
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
pub struct Deadline {
    under_way: Arc<Mutex<&'static str>>,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    /// Ends the job `limit_s` seconds after `started`; 0 = never.
    pub fn start(rank: usize, started: Instant, limit_s: f64, abort: fn(Exit)) -> Self {
        let under_way = Arc::new(Mutex::new("start"));
        let (done, closing) = channel::<()>();
        let what = Arc::clone(&under_way);
        let watch = move || {
            let grace = if rank == 0 { Duration::ZERO } else { OTHERS_WAIT };
            let left = (started + Duration::from_secs_f64(limit_s) + grace).saturating_duration_since(Instant::now());
            if closing.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                let what = *what.lock().expect("nobody panics with it");
                writeln!(
                    std::io::stderr(),
                    "zero3: rank {rank}: `{what}` is not over after {limit_s:.0} s, half as much again as run.time_limit: the job ends"
                )
                .ok();
                abort(Exit::CommFailure);
            }
        };
        let thread = (limit_s > 0.0).then(|| std::thread::Builder::new().name("deadline".into()).spawn(watch));
        // Without a thread to spare the scheduler's own limit has to do.
        let thread = thread.and_then(std::result::Result::ok);
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ABORTED: AtomicUsize = AtomicUsize::new(0);

    fn count(_: Exit) {
        ABORTED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn what_hangs_is_ended_and_what_ends_in_time_is_not() {
        drop(Deadline::start(0, Instant::now(), 3600.0, count));
        drop(Deadline::start(0, Instant::now(), 0.0, count));
        assert_eq!(ABORTED.load(Ordering::SeqCst), 0);
        let deadline = Deadline::start(0, Instant::now(), 0.01, count);
        deadline.enter("a section");
        while ABORTED.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
