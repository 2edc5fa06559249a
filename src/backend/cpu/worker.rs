//! One queue of collectives: a helper thread that runs jobs in the order they were put.
//!
//! Open MPI progresses only while somebody calls it, so the thread polls. It polls eagerly for a moment while the host waits
//! on this queue, and rests between polls when that moment is over, and while the host computes: on a rank with one core it
//! would take time from the kernels, and where ranks share cores from the rank that is waited for.

use crate::backend::comm::{CommRecord, Landed, Pending};
use crate::error::{Error, Result};
use crate::telemetry::allocations;
use crate::test_hooks;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// First rest between two polls while nobody waits.
const REST_FIRST: Duration = Duration::from_micros(20);
/// Longest rest.
const REST_LONGEST: Duration = Duration::from_micros(200);
/// Polls without a rest while somebody waits: some hundred microseconds.
const EAGER_POLLS: usize = 500;

/// Work of a queue: owns its buffers, runs to completion, yields them.
type Job = Box<dyn FnOnce(&Pacer) -> Result<(Landed<Instant>, u64)> + Send>;

/// Decides how a job polls.
pub struct Pacer {
    /// Host threads blocked on this queue.
    waiting: Arc<AtomicUsize>,
}

impl Pacer {
    /// Calls `poll` until it returns true.
    pub fn until(&self, mut poll: impl FnMut() -> Result<bool>) -> Result<()> {
        let (mut eager_polls, mut idle_rest) = (0, REST_FIRST);
        while !poll()? {
            if self.waiting.load(Ordering::Acquire) == 0 {
                std::thread::park_timeout(idle_rest);
                idle_rest = (idle_rest * 2).min(REST_LONGEST);
            } else if eager_polls < EAGER_POLLS {
                eager_polls += 1;
                std::thread::yield_now();
            } else {
                std::thread::park_timeout(REST_FIRST);
            }
        }
        Ok(())
    }
}

/// Where a finished job leaves its result.
#[derive(Default)]
struct Mailbox {
    result: Mutex<Option<Result<Landed<Instant>>>>,
    arrived: Condvar,
}

/// A queue with its thread.
pub struct Worker {
    jobs: Option<Sender<(Job, Arc<Mailbox>)>>,
    thread: Option<JoinHandle<()>>,
    waiting: Arc<AtomicUsize>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(name: &str) -> Result<Self> {
        let (jobs, inbox) = channel::<(Job, Arc<Mailbox>)>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let pacer = Pacer { waiting: Arc::clone(&waiting) };
        let run = move || {
            allocations::count_this_thread();
            for (job, mailbox) in inbox {
                let started = Instant::now();
                let result = job(&pacer).map(|(mut landed, received_bytes)| {
                    test_hooks::delay_collective();
                    landed.record = CommRecord { received_bytes, started, finished: Instant::now() };
                    landed
                });
                *mailbox.result.lock().expect("no holder of the mailbox panics") = Some(result);
                mailbox.arrived.notify_all();
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(|e| Error::Comm(format!("cannot start the {name} thread: {e}")))?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread), waiting })
    }

    /// Puts a job at the end of the queue.
    pub fn submit(&self, job: impl FnOnce(&Pacer) -> Result<(Landed<Instant>, u64)> + Send + 'static) -> InFlight {
        let mailbox = Arc::new(Mailbox::default());
        let jobs = self.jobs.as_ref().expect("the queue is open until it is dropped");
        jobs.send((Box::new(job), Arc::clone(&mailbox))).expect("the queue's thread lives until it is dropped");
        let thread = self.thread.as_ref().expect("as above").thread().clone();
        InFlight { mailbox, waiting: Arc::clone(&self.waiting), thread }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already aborted the job through the panic hook.
            let _ = thread.join();
        }
    }
}

/// A job on its way.
pub struct InFlight {
    mailbox: Arc<Mailbox>,
    waiting: Arc<AtomicUsize>,
    thread: Thread,
}

impl Pending for InFlight {
    type Mark = Instant;

    fn wait(self) -> Result<Landed<Instant>> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
        let mut result = self.mailbox.result.lock().expect("no holder of the mailbox panics");
        while result.is_none() {
            result = self.mailbox.arrived.wait(result).expect("no holder of the mailbox panics");
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        result.take().expect("checked above")
    }
}
