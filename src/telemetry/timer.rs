//! Breakdown of the time of a step. Every nanosecond belongs to exactly one phase.
//!
//! A phase that starts inside another suspends the outer one until it ends: a wait for a collective during
//! the forward pass counts as exposed communication, not as forward. So the phases add up to the elapsed
//! time, and the unclaimed rest is [`Phase::Other`]. One timer belongs to one thread.
//!
//! Time is that of a [`Clock`]: of the host if work is done when a call returns, or of a device's queue if
//! the host runs ahead; then a phase costs the time the queue spent on it, and host work while the queue is
//! busy costs nothing. Must not know: what the phases do.

use crate::error::Result;
use std::cell::{Cell, RefCell};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Activity of a rank's main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Everything outside other phases.
    Other,
    /// Reading token files into a micro-batch.
    Data,
    /// Forward compute.
    Forward,
    /// Backward compute, recomputation included.
    Backward,
    /// Gradient norm, clipping and the update of the local slices.
    Optimizer,
    /// Waiting for a collective that compute needs.
    ExposedComm,
    /// Writing a checkpoint; not part of a step.
    Checkpoint,
    /// Validation; not part of a step.
    Evaluation,
}

impl Phase {
    /// Every phase, in the order of [`PhaseTimes`].
    pub const ALL: [Phase; 8] = [
        Phase::Other,
        Phase::Data,
        Phase::Forward,
        Phase::Backward,
        Phase::Optimizer,
        Phase::ExposedComm,
        Phase::Checkpoint,
        Phase::Evaluation,
    ];

    /// The name in summaries.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Other => "other",
            Phase::Data => "data",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::ExposedComm => "exposed_comm",
            Phase::Checkpoint => "checkpoint",
            Phase::Evaluation => "evaluation",
        }
    }

    /// Whether its time counts in `step_ms`.
    pub fn is_in_step(self) -> bool {
        !matches!(self, Phase::Checkpoint | Phase::Evaluation)
    }
}

/// Nanoseconds per phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes {
    ns: [u64; Phase::ALL.len()],
}

impl PhaseTimes {
    /// Time of one phase in ns.
    pub fn ns(&self, phase: Phase) -> u64 {
        self.ns[phase as usize]
    }

    /// Time of one phase in ms.
    pub fn ms(&self, phase: Phase) -> f64 {
        self.ns(phase) as f64 / 1e6
    }

    /// Time of the step in ms: everything except checkpoint and evaluation.
    pub fn step_ms(&self) -> f64 {
        Phase::ALL.iter().filter(|p| p.is_in_step()).map(|&p| self.ns(p)).sum::<u64>() as f64 / 1e6
    }

    /// Time of all phases in ns: the elapsed time.
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// Adds the times of another interval.
    pub fn add(&mut self, other: &PhaseTimes) {
        for (a, b) in self.ns.iter_mut().zip(other.ns) {
            *a += b;
        }
    }
}

/// Marks moments whose time may only be known later.
pub trait Clock {
    /// A moment.
    type Mark;

    /// Now, on this clock: after all work so far.
    fn mark(&self) -> Self::Mark;
    /// The time of a mark; waits until it has passed.
    ///
    /// # Errors
    /// The operation waited for failed.
    fn when(&self, mark: &Self::Mark) -> Result<Instant>;
}

/// A stopwatch that always runs for exactly one phase. No lock, and no allocation once a step is as long as
/// previous ones.
pub struct PhaseTimer<C: Clock> {
    clock: C,
    running: Cell<Phase>,
    /// Start of the intervals not taken yet.
    since: RefCell<C::Mark>,
    /// Phases with their end marks, in order.
    ended: RefCell<Vec<(Phase, C::Mark)>>,
}

impl<C: Clock> PhaseTimer<C> {
    /// Starts now, for [`Phase::Other`].
    pub fn new(clock: C) -> Self {
        let since = RefCell::new(clock.mark());
        PhaseTimer { clock, running: Cell::new(Phase::Other), since, ended: RefCell::default() }
    }

    /// Charges the time so far to the running phase, switches to `phase`, and returns the previous one.
    pub fn switch(&self, phase: Phase) -> Phase {
        if phase != self.running.get() {
            self.charge();
        }
        self.running.replace(phase)
    }

    /// Charges the time so far to the running phase.
    fn charge(&self) {
        self.ended.borrow_mut().push((self.running.get(), self.clock.mark()));
    }

    /// Switches to `phase` until the scope is dropped, then back.
    #[must_use = "the phase ends when the scope is dropped"]
    pub fn scope(&self, phase: Phase) -> PhaseScope<'_, C> {
        PhaseScope { timer: self, outer: self.switch(phase) }
    }

    /// Runs `f` as `phase`.
    pub fn time<T>(&self, phase: Phase, f: impl FnOnce() -> T) -> T {
        let _scope = self.scope(phase);
        f()
    }

    /// The times since the last call (or the start), which are reset. The running phase continues. Waits for
    /// the clock to reach the present.
    ///
    /// # Errors
    /// As for [`Clock::when`].
    pub fn take(&self) -> Result<PhaseTimes> {
        self.charge();
        let mut times = PhaseTimes::default();
        let mut since = self.clock.when(&self.since.borrow())?;
        for (phase, mark) in self.ended.borrow_mut().drain(..) {
            let now = self.clock.when(&mark)?;
            times.ns[phase as usize] += now.saturating_duration_since(since).as_nanos() as u64;
            since = now;
            self.since.replace(mark);
        }
        Ok(times)
    }
}

/// Ends its phase when dropped, also on a panic or an early return.
pub struct PhaseScope<'a, C: Clock> {
    timer: &'a PhaseTimer<C>,
    outer: Phase,
}

impl<C: Clock> Drop for PhaseScope<'_, C> {
    fn drop(&mut self) {
        self.timer.switch(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Host;

    impl Clock for Host {
        type Mark = Instant;

        fn mark(&self) -> Instant {
            Instant::now()
        }

        fn when(&self, mark: &Instant) -> Result<Instant> {
            Ok(*mark)
        }
    }

    fn sleep_ms(ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    #[test]
    fn an_inner_phase_stops_the_clock_of_the_outer_one() {
        let start = Instant::now();
        let timer = PhaseTimer::new(Host);
        timer.time(Phase::Forward, || {
            timer.time(Phase::ExposedComm, || {
                sleep_ms(30);
                timer.time(Phase::ExposedComm, || sleep_ms(5));
            });
        });
        let times = timer.take().unwrap();
        assert!(times.ms(Phase::ExposedComm) >= 35.0, "{times:?}");
        // With the outer clock running on, the two would add up to twice the sleep.
        let elapsed = start.elapsed().as_nanos() as u64;
        assert!(
            times.ns(Phase::Forward) + times.ns(Phase::ExposedComm) <= elapsed,
            "{times:?} of {elapsed} ns"
        );
    }

    #[test]
    fn phases_add_up_to_the_elapsed_time_and_a_step_has_no_checkpoint_in_it() {
        let start = Instant::now();
        let timer = PhaseTimer::new(Host);
        timer.time(Phase::Checkpoint, || sleep_ms(10));
        timer.time(Phase::Evaluation, || sleep_ms(5));
        timer.time(Phase::Data, || sleep_ms(3));
        sleep_ms(2);
        let times = timer.take().unwrap();
        let elapsed = start.elapsed().as_nanos() as u64;
        assert!(times.total_ns() <= elapsed && times.total_ns() >= 20_000_000, "{times:?} of {elapsed}");
        let apart = times.ns(Phase::Checkpoint) + times.ns(Phase::Evaluation);
        assert_eq!(times.step_ms(), (times.total_ns() - apart) as f64 / 1e6);
        assert_eq!(timer.take().unwrap().ns(Phase::Data), 0, "taken times begin anew");
    }

    #[test]
    fn a_panic_inside_a_phase_gives_the_clock_back() {
        let timer = PhaseTimer::new(Host);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            timer.time(Phase::Backward, || std::panic::resume_unwind(Box::new(())))
        }));
        assert!(result.is_err());
        assert_eq!(timer.switch(Phase::Data), Phase::Other);
    }

    #[test]
    fn taking_inside_a_phase_splits_it() {
        let timer = PhaseTimer::new(Host);
        let scope = timer.scope(Phase::Optimizer);
        sleep_ms(2);
        let first = timer.take().unwrap();
        sleep_ms(2);
        drop(scope);
        let second = timer.take().unwrap();
        for times in [first, second] {
            assert!(times.ms(Phase::Optimizer) >= 2.0, "{times:?}");
        }
        let mut sum = first;
        sum.add(&second);
        assert_eq!(sum.total_ns(), first.total_ns() + second.total_ns());
    }

    #[test]
    fn a_clock_that_lags_behind_charges_what_it_sees() {
        /// A queue that comes to its n-th mark n ms after the start.
        struct Queue(Instant, Cell<u64>);

        impl Clock for Queue {
            type Mark = u64;

            fn mark(&self) -> u64 {
                self.1.replace(self.1.get() + 1)
            }

            fn when(&self, mark: &u64) -> Result<Instant> {
                Ok(self.0 + Duration::from_millis(*mark))
            }
        }

        let timer = PhaseTimer::new(Queue(Instant::now(), Cell::new(0)));
        timer.time(Phase::Forward, || timer.time(Phase::ExposedComm, || ()));
        // Marks 0 to 5: Other, Forward, ExposedComm, Forward, Other.
        let times = timer.take().unwrap();
        let ms = [Phase::Other, Phase::Forward, Phase::ExposedComm].map(|phase| times.ms(phase));
        assert_eq!((ms, times.step_ms()), ([2.0, 2.0, 1.0], 5.0));
    }

    #[test]
    fn phases_are_listed_in_their_own_order() {
        for (i, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, i, "{}", phase.name());
        }
    }
}
