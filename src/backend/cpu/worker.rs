//! One queue of collectives: a helper thread that runs them in the order they were submitted.
//!
//! Open MPI progresses only inside its calls, so the thread polls. It polls eagerly for a moment while the
//! host waits on this queue, and rests between polls when that moment is over, and while the host computes:
//! on a rank with one core it would take time from the kernels, and where ranks share cores from the rank
//! that is waited for.

use crate::backend::comm::{CommRecord, Landed, Pending};
use crate::error::Result;
use crate::telemetry::allocations::{self, Owner};
use crate::{test_hooks, threads};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// First rest between two polls while the host does not wait.
const REST_FIRST: Duration = Duration::from_micros(20);
/// Longest rest.
const REST_LONGEST: Duration = Duration::from_micros(200);
/// Polls without a rest while the host waits: some hundred microseconds.
const EAGER_POLLS: usize = 500;

/// Work of a queue: owns its buffers, runs to completion, yields them.
pub trait Queued: Send + 'static {
    /// Memory that the queue's thread reuses from one call to the next.
    type Scratch: Default;

    /// Runs it; returns the payload bytes received from other ranks.
    fn run(&mut self, pacer: &Pacer<'_>, scratch: &mut Self::Scratch) -> Result<u64>;
    /// Its buffers, after it has run.
    fn land(self, record: CommRecord<Instant>) -> Landed<Instant>;
}

/// Decides how often a collective polls.
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

/// Collectives that a queue has room for from the start: how many are in flight at once depends on timing.
const ROOM: usize = 64;

/// A lock is poisoned by a panic alone, and a panic ends the job.
const NOT_POISONED: &str = "lock poisoned";

/// What the host and the thread of a queue share. Collectives are known by their number, and the lists keep
/// their room, so that a steady step allocates nothing.
struct Shared<Q> {
    lists: Mutex<Lists<Q>>,
    /// A collective was submitted, or the queue was closed.
    submitted: Condvar,
    /// A collective has landed.
    landed: Condvar,
    /// Host threads blocked on this queue.
    waiting: AtomicUsize,
}

struct Lists<Q> {
    /// Number of the next collective.
    next: u64,
    queue: VecDeque<(u64, Q)>,
    landed: Vec<(u64, Result<Landed<Instant>>)>,
    closed: bool,
}

impl<Q: Queued> Shared<Q> {
    fn lock(&self) -> MutexGuard<'_, Lists<Q>> {
        self.lists.lock().expect(NOT_POISONED)
    }

    /// Waits for the next collective; none once the queue is closed and empty.
    fn next(&self) -> Option<(u64, Q)> {
        let idle = |lists: &mut Lists<Q>| lists.queue.is_empty() && !lists.closed;
        self.submitted.wait_while(self.lock(), idle).expect(NOT_POISONED).queue.pop_front()
    }

    /// The thread of the queue.
    fn run(&self) {
        allocations::count_this_thread(Owner::Program);
        let pacer = Pacer { waiting: &self.waiting };
        let mut scratch = Q::Scratch::default();
        while let Some((number, mut queued)) = self.next() {
            let started = Instant::now();
            let landed = queued.run(&pacer, &mut scratch).map(|received_bytes| {
                test_hooks::delay_collective();
                queued.land(CommRecord { received_bytes, started, finished: Instant::now() })
            });
            self.lock().landed.push((number, landed));
            self.landed.notify_all();
        }
    }
}

/// A queue with its thread.
pub struct Worker<Q: Queued> {
    shared: Arc<Shared<Q>>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Queued> Worker<Q> {
    /// Starts the thread.
    pub fn start(name: &str) -> Result<Self> {
        let (queue, landed) = (VecDeque::with_capacity(ROOM), Vec::with_capacity(ROOM));
        let lists = Mutex::new(Lists { next: 0, queue, landed, closed: false });
        let (submitted, landed) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { lists, submitted, landed, waiting: AtomicUsize::new(0) });
        let own = Arc::clone(&shared);
        let thread = threads::spawn(name, move || own.run())?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    /// Puts a collective at the end of the queue.
    pub fn submit(&self, queued: Q) -> InFlight<Q> {
        let mut lists = self.shared.lock();
        let number = lists.next;
        lists.next += 1;
        lists.queue.push_back((number, queued));
        self.shared.submitted.notify_one();
        let thread =
            self.thread.as_ref().expect("the thread lives until the queue is dropped").thread().clone();
        InFlight { shared: Arc::clone(&self.shared), number, thread }
    }
}

impl<Q: Queued> Drop for Worker<Q> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.submitted.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already aborted the job through the panic hook.
            let _ = thread.join();
        }
    }
}

/// A collective in flight. Dropped without a wait, it leaves its buffers with the queue until the queue ends.
pub struct InFlight<Q> {
    shared: Arc<Shared<Q>>,
    number: u64,
    thread: Thread,
}

impl<Q: Queued> Pending for InFlight<Q> {
    type Mark = Instant;

    fn wait(self) -> Result<Landed<Instant>> {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
        let mut lists = self.shared.lock();
        let (_, landed) = loop {
            match lists.landed.iter().position(|&(number, _)| number == self.number) {
                Some(at) => break lists.landed.swap_remove(at),
                None => lists = self.shared.landed.wait(lists).expect(NOT_POISONED),
            }
        };
        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        landed
    }
}
