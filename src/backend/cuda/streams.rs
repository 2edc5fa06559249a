//! The four queues as four streams, and events between them.
//!
//! Events are pooled: a step records some hundreds and creates none once the pool is full. A stream that was
//! told to wait for an event keeps the moment it stood for, so an event may be recorded again as soon as its
//! last handle is gone.
//!
//! Must not know: kernels, NCCL. What can fail without a stream noticing registers a check, which every wait
//! of the host makes.

use super::driver::fault;
use crate::backend::Queue;
use crate::clock;
use crate::error::Result;
use crate::test_hooks;
use cudarc::driver::{result as driver, sys};
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Polls of the host before it begins to rest in between.
const EAGER_POLLS: u32 = 10_000;
/// Rest between two polls after that.
const REST: Duration = Duration::from_micros(20);
/// Polls between two runs of the checks.
const POLLS_PER_CHECK: u32 = 256;
/// Clocks of host and device drift apart: compared again after this time, when the device has just been
/// waited for.
const COMPARE_EVERY: Duration = Duration::from_millis(100);

/// The streams of a device.
pub struct Streams {
    raw: [sys::CUstream; 4],
    events: Rc<Pool>,
    marks: Rc<Pool>,
    /// The moment of one mark on the host's clock.
    base: RefCell<Option<(Mark, Instant)>>,
    n_marks: Cell<u64>,
    checks: RefCell<Vec<(CheckId, Check)>>,
    n_checks: Cell<CheckId>,
}

/// Reports a failure that a stream cannot see.
type Check = Box<dyn Fn() -> Result<()>>;

/// Names a check; checks are numbered in the order they were added.
pub type CheckId = u64;

/// Events of one kind, used again when their last handle is gone.
struct Pool {
    flags: sys::CUevent_flags,
    /// Each event, and how many handles it has.
    events: RefCell<Vec<(sys::CUevent, u32)>>,
    /// Those without any.
    free: RefCell<Vec<usize>>,
}

/// An event of a pool. Handles are counted in the pool: an `Rc` for each event would be allocated at every
/// step.
struct Pooled {
    at: usize,
    pool: Rc<Pool>,
}

impl Pooled {
    fn raw(&self) -> sys::CUevent {
        self.pool.events.borrow()[self.at].0
    }
}

impl Clone for Pooled {
    fn clone(&self) -> Self {
        self.pool.events.borrow_mut()[self.at].1 += 1;
        Pooled { at: self.at, pool: Rc::clone(&self.pool) }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let n_handles = &mut self.pool.events.borrow_mut()[self.at].1;
        *n_handles -= 1;
        if *n_handles == 0 {
            self.pool.free.borrow_mut().push(self.at);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (raw, _) in self.events.take() {
            // SAFETY: created by this pool, whose handles keep it alive. An error at the end is of no
            // consequence.
            unsafe { driver::event::destroy(raw) }.ok();
        }
    }
}

impl Pool {
    fn new(flags: sys::CUevent_flags) -> Rc<Self> {
        Rc::new(Pool { flags, events: RefCell::default(), free: RefCell::default() })
    }

    /// An event that stands for everything put on `stream` so far.
    fn record(self: &Rc<Self>, stream: sys::CUstream) -> Pooled {
        let free = self.free.borrow_mut().pop();
        let at = free.unwrap_or_else(|| self.create());
        self.events.borrow_mut()[at].1 = 1;
        let pooled = Pooled { at, pool: Rc::clone(self) };
        // SAFETY: both belong to the current context and live.
        expect("cuEventRecord", unsafe { driver::event::record(pooled.raw(), stream) });
        pooled
    }

    /// One more event.
    fn create(&self) -> usize {
        let mut events = self.events.borrow_mut();
        events.push((expect("cuEventCreate", driver::event::create(self.flags)), 0));
        // None is free now, and all may be: giving one back asks for no memory.
        self.free.borrow_mut().reserve(events.len());
        events.len() - 1
    }
}

/// A point on a queue.
#[derive(Clone)]
pub struct Event(Pooled);

/// A point on a queue that knows its time.
#[derive(Clone)]
pub struct Mark {
    event: Pooled,
    /// Marks are numbered in the order they were made.
    number: u64,
}

/// The host, in a list of waits that otherwise names queues.
#[derive(Debug)]
struct Host;

/// What cannot fail but through a device that has died: it ends the job.
fn expect<T>(call: &str, result: std::result::Result<T, driver::DriverError>) -> T {
    result.unwrap_or_else(|error| fault(call, error).raise())
}

impl Streams {
    /// Creates the streams in the current context. Collectives go before kernels where both could run: others
    /// wait for them.
    pub fn create() -> Result<Self> {
        let (lowest, highest) =
            driver::stream::get_priority_range().map_err(|e| fault("cuCtxGetStreamPriorityRange", e))?;
        let create = |priority| {
            driver::stream::create_with_priority(driver::stream::StreamKind::NonBlocking, priority)
                .map_err(|e| fault("cuStreamCreateWithPriority", e))
        };
        Ok(Streams {
            raw: [create(lowest)?, create(highest)?, create(highest)?, create(lowest)?],
            events: Pool::new(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING),
            marks: Pool::new(sys::CUevent_flags::CU_EVENT_DEFAULT),
            base: RefCell::new(None),
            n_marks: Cell::new(0),
            checks: RefCell::default(),
            n_checks: Cell::new(0),
        })
    }

    /// The driver's handle of a queue.
    pub fn raw(&self, queue: Queue) -> sys::CUstream {
        self.raw[queue as usize]
    }

    /// Makes every wait of the host run `check`, too.
    pub fn add_check(&self, check: Check) -> CheckId {
        let id = self.n_checks.get();
        self.n_checks.set(id + 1);
        self.checks.borrow_mut().push((id, check));
        id
    }

    /// Forgets a check: what it looks at is about to go.
    pub fn remove_check(&self, id: CheckId) {
        self.checks.borrow_mut().retain(|(other, _)| *other != id);
    }

    /// Marks the point after everything put on `queue` so far.
    pub fn record(&self, queue: Queue) -> Event {
        Event(self.events.record(self.raw(queue)))
    }

    /// Makes later work on `queue` run after `event`. Tests leave single waits out, by the place of the call:
    /// every order between streams is made here, one line for each reason.
    #[track_caller]
    pub fn wait(&self, queue: Queue, event: &Event) {
        if test_hooks::skips_wait(Location::caller(), queue) {
            return;
        }
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both belong to the current context and live; the stream keeps what it needs of the event.
        expect("cuStreamWaitEvent", unsafe {
            driver::stream::wait_event(self.raw(queue), event.0.raw(), flags)
        });
    }

    /// Blocks the host until `event` is past. Tests leave these waits out, too.
    ///
    /// # Errors
    /// The device failed, or a check found a fault.
    #[track_caller]
    pub fn sync(&self, event: &Event) -> Result<()> {
        if test_hooks::skips_wait(Location::caller(), Host) {
            return Ok(());
        }
        self.poll(event.0.raw())
    }

    /// Blocks the host until everything on `queue` is done, and compares the clocks while there is nothing to
    /// disturb.
    ///
    /// # Errors
    /// As for [`Streams::sync`].
    pub fn drain(&self, queue: Queue) -> Result<()> {
        self.poll(self.record(queue).0.raw())?;
        if self.base.borrow().as_ref().is_none_or(|(_, at)| at.elapsed() > COMPARE_EVERY) {
            let mark = self.mark(queue);
            self.poll(mark.event.raw())?;
            *self.base.borrow_mut() = Some((mark, Instant::now()));
        }
        Ok(())
    }

    /// Marks the point after everything put on `queue` so far, with its time.
    pub fn mark(&self, queue: Queue) -> Mark {
        let number = self.n_marks.get();
        self.n_marks.set(number + 1);
        Mark { event: self.marks.record(self.raw(queue)), number }
    }

    /// When the device reached `mark`, on the host's clock; waits for it.
    ///
    /// # Errors
    /// As for [`Streams::sync`].
    pub fn when(&self, mark: &Mark) -> Result<Instant> {
        self.poll(mark.event.raw())?;
        let base = self.base.borrow();
        let (base, at) = base.as_ref().expect("the device was waited for when it was opened");
        let (from, to) = if base.number <= mark.number { (base, mark) } else { (mark, base) };
        // SAFETY: both were recorded with timing and are past.
        let ms = unsafe { driver::event::elapsed(from.event.raw(), to.event.raw()) }
            .map_err(|e| fault("cuEventElapsedTime", e))?;
        // Marks of two streams may be past in another order than they were made in.
        let ms = if base.number <= mark.number { f64::from(ms) } else { -f64::from(ms) };
        let apart = Duration::from_secs_f64(ms.abs() / 1e3);
        Ok(if ms >= 0.0 { *at + apart } else { at.checked_sub(apart).unwrap_or(*at) })
    }

    /// Asks until the event is past.
    fn poll(&self, event: sys::CUevent) -> Result<()> {
        let mut polls = 0u32;
        loop {
            // SAFETY: an event that its caller holds.
            match unsafe { driver::event::query(event) } {
                Ok(()) => return Ok(()),
                Err(driver::DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {}
                Err(error) => return Err(fault("the device's work", error)),
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CHECK) {
                self.checks.borrow().iter().try_for_each(|(_, check)| check())?;
            }
            if polls > EAGER_POLLS {
                clock::rest(REST);
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for raw in self.raw {
            // SAFETY: created above, destroyed once; the driver lets running work end first.
            unsafe { driver::stream::destroy(raw) }.ok();
        }
    }
}
