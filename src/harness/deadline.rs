//! A time limit that ends the job whatever hangs: a thread that waits for it and then says what was running,
//! and on which rank.

use super::cluster::Cluster;
use super::local_work::LocalWork;
use crate::backend::Backend;
use crate::error::Exit;
use crate::say;
use crate::test_hooks;
use crate::threads;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long rank 0 gives ranks in [`LocalWork`], which the others wait for, to report first.
const RANK_0_WAITS: Duration = Duration::from_secs(2);
/// Time between two looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the other ranks give rank 0.
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// The time limit; it stands until this is dropped.
pub struct Deadline {
    running: Arc<Mutex<&'static str>>,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    /// Ends the job `limit_s` seconds after the process of `cluster` started; 0 = never.
    pub fn start<B: Backend>(cluster: &Cluster<'_, B>, limit_s: f64) -> Self {
        let rank = cluster.rank();
        let waiter = Waiter {
            name: cluster.name(rank),
            reports_first: rank == 0,
            local_work: cluster.local_work.clone(),
            started: cluster.started,
            limit_s,
            abort: cluster.abort,
        };
        waiter.start()
    }

    /// Names what is running from now on.
    pub fn enter(&self, what: &'static str) {
        *self.running.lock().expect("lock poisoned") = what;
    }
}

/// What the thread knows.
struct Waiter {
    name: String,
    /// Reports for all ranks that wait in a collective.
    reports_first: bool,
    local_work: LocalWork,
    started: Instant,
    limit_s: f64,
    abort: fn(Exit),
}

impl Waiter {
    fn start(self) -> Deadline {
        let running = Arc::new(Mutex::new("start"));
        let (done, closing) = channel::<()>();
        let what = Arc::clone(&running);
        let thread =
            (self.limit_s > 0.0).then(|| threads::spawn("deadline", move || self.wait(&closing, &what)));
        // Where no thread can be started the scheduler's own limit has to do.
        let thread = thread.and_then(std::result::Result::ok);
        Deadline { running, done: Some(done), thread }
    }

    fn wait(self, closing: &Receiver<()>, running: &Mutex<&'static str>) {
        let Waiter { name, reports_first, local_work, started, limit_s, abort } = self;
        let has_passed = |at: Instant| loop {
            let left = at.saturating_duration_since(Instant::now() + test_hooks::ahead());
            match (left.is_zero(), closing.recv_timeout(left.min(LOOK_EVERY))) {
                (true, Err(RecvTimeoutError::Timeout)) => return true,
                (false, Err(RecvTimeoutError::Timeout)) => {}
                (_, Ok(()) | Err(RecvTimeoutError::Disconnected)) => return false,
            }
        };
        let limit = started + Duration::from_secs_f64(limit_s);
        if !has_passed(limit) {
            return;
        }
        let (grace, state) = match (local_work.is_running(), reports_first) {
            (true, _) => (Duration::ZERO, "is busy with local work, and the other ranks wait for it"),
            (false, true) => (RANK_0_WAITS, "is in a collective or waits for other ranks"),
            (false, false) => (OTHERS_WAIT, "is in a collective or waits for other ranks"),
        };
        if has_passed(limit + grace) {
            let what = *running.lock().expect("lock poisoned");
            say::err(&format!(
                "zero3: `{what}` is not over after {limit_s:.0} s, 1.5 times run.time_limit: {name} {state}; \
                 the job ends"
            ));
            abort(Exit::CommFailure);
        }
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
        let start = |local_work, limit_s| {
            let started = Instant::now();
            Waiter { name: "it".into(), reports_first: false, local_work, started, limit_s, abort: count }
                .start()
        };
        drop(start(LocalWork::default(), 3600.0));
        drop(start(LocalWork::default(), 0.0));
        assert_eq!(ABORTED.load(Ordering::SeqCst), 0);
        let work = LocalWork::default();
        work.run(|| {
            let deadline = start(work.clone(), 0.01);
            deadline.enter("a section");
            while ABORTED.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
}
