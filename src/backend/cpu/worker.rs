//! One queue of collectives: a helper thread that runs jobs in the order they were put.
//!
//! Open MPI progresses only while somebody calls it, so the thread polls. It polls eagerly for a moment while the host waits
//! on this queue, and rests between polls when that moment is over, and while the host computes: on a rank with one core it
//! would take time from the kernels, and where ranks share cores from the rank that is waited for.

use crate::backend::comm::{CommRecord, Landed, Pending};
use crate::error::Result;
use crate::telemetry::allocations::{self, Owner};
use crate::{test_hooks, threads};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// First rest between two polls while nobody waits.
const REST_FIRST: Duration = Duration::from_micros(20);
/// Longest rest.
const REST_LONGEST: Duration = Duration::from_micros(200);
/// Polls without a rest while somebody waits: some hundred microseconds.
const EAGER_POLLS: usize = 500;

/// Work of a queue: owns its buffers, runs to completion, yields them.
pub trait Job: Send + 'static {
    /// What the queue's thread keeps from one job to the next.
    type Kept: Default;

    /// Runs it; returns the payload bytes that came from others.
    fn run(&mut self, pacer: &Pacer<'_>, kept: &mut Self::Kept) -> Result<u64>;
    /// Its buffers, after it has run.
    fn land(self, record: CommRecord<Instant>) -> Landed<Instant>;
}

/// Decides how a job polls.
pub struct Pacer<'a> {
    /// Host threads blocked on this queue.
    waiting: &'a AtomicUsize,
}

impl Pacer<'_> {
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

/// Jobs that a queue has room for from the start: how many are on their way at once depends on the moment.
const ROOM: usize = 64;

/// What the host and the thread of a queue share. Jobs are known by their number, and the lists keep their room, so that a job
/// asks the heap for nothing.
struct Shared<J> {
    state: Mutex<State<J>>,
    /// A job was put, or the queue was closed.
    put: Condvar,
    /// A job has landed.
    landed: Condvar,
    /// Host threads blocked on this queue.
    waiting: AtomicUsize,
}

struct State<J> {
    /// Number of the next job.
    next: u64,
    jobs: VecDeque<(u64, J)>,
    landed: Vec<(u64, Result<Landed<Instant>>)>,
    closed: bool,
}

impl<J: Job> Shared<J> {
    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().expect("nobody panics with it")
    }

    /// The next job, when there is one; none once the queue is closed and all that was put has been taken.
    fn next(&self) -> Option<(u64, J)> {
        let idle = |state: &mut State<J>| state.jobs.is_empty() && !state.closed;
        self.put.wait_while(self.lock(), idle).expect("nobody panics with it").jobs.pop_front()
    }

    /// The thread of the queue.
    fn run(&self) {
        allocations::count_this_thread(Owner::Program);
        let pacer = Pacer { waiting: &self.waiting };
        let mut kept = J::Kept::default();
        while let Some((number, mut job)) = self.next() {
            let started = Instant::now();
            let landed = job.run(&pacer, &mut kept).map(|received_bytes| {
                test_hooks::delay_collective();
                job.land(CommRecord { received_bytes, started, finished: Instant::now() })
            });
            self.lock().landed.push((number, landed));
            self.landed.notify_all();
        }
    }
}

/// A queue with its thread.
pub struct Worker<J: Job> {
    shared: Arc<Shared<J>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Job> Worker<J> {
    /// Starts the thread.
    pub fn start(name: &str) -> Result<Self> {
        let (jobs, landed) = (VecDeque::with_capacity(ROOM), Vec::with_capacity(ROOM));
        let state = State { next: 0, jobs, landed, closed: false };
        let (put, landed) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), put, landed, waiting: AtomicUsize::new(0) });
        let own = Arc::clone(&shared);
        let thread = threads::spawn(name, move || own.run())?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    /// Puts a job at the end of the queue.
    pub fn submit(&self, job: J) -> InFlight<J> {
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        state.jobs.push_back((number, job));
        self.shared.put.notify_one();
        let thread = self.thread.as_ref().expect("the thread lives until the queue is dropped").thread().clone();
        InFlight { shared: Arc::clone(&self.shared), number, thread }
    }
}

impl<J: Job> Drop for Worker<J> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.put.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already aborted the job through the panic hook.
            let _ = thread.join();
        }
    }
}

/// A job on its way. Who drops it without waiting leaves its buffers with the queue, to the queue's end.
pub struct InFlight<J> {
    shared: Arc<Shared<J>>,
    number: u64,
    thread: Thread,
}

impl<J: Job> Pending for InFlight<J> {
    type Mark = Instant;

    fn wait(self) -> Result<Landed<Instant>> {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
        let mut state = self.shared.lock();
        let (_, landed) = loop {
            match state.landed.iter().position(|&(number, _)| number == self.number) {
                Some(at) => break state.landed.swap_remove(at),
                None => state = self.shared.landed.wait(state).expect("nobody panics with it"),
            }
        };
        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        landed
    }
}
