//! Where the time of a step goes. Every nanosecond belongs to exactly one phase.
//!
//! A phase that begins inside another stops the outer one's clock until it ends: a wait for a collective during the
//! forward pass counts as exposed communication, not as forward. So the phases add up to the elapsed time, and what nobody
//! claimed is [`Phase::Other`]. One timer belongs to one thread. Must not know: what the phases do.

use std::cell::Cell;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What a rank's main thread is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Whatever no scope claims.
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

    /// Time of the step in ms: everything but checkpoint and evaluation.
    pub fn step_ms(&self) -> f64 {
        Phase::ALL.iter().filter(|p| p.is_in_step()).map(|&p| self.ns(p)).sum::<u64>() as f64 / 1e6
    }

    /// Time of all phases in ns: what elapsed.
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// Adds the times of another stretch.
    pub fn add(&mut self, other: &PhaseTimes) {
        for (a, b) in self.ns.iter_mut().zip(other.ns) {
            *a += b;
        }
    }
}

/// A stopwatch that always runs for exactly one phase. No allocation, no lock.
#[derive(Debug)]
pub struct PhaseTimer {
    running: Cell<Phase>,
    since: Cell<Instant>,
    times: Cell<PhaseTimes>,
}

impl Default for PhaseTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl PhaseTimer {
    /// Starts now, for [`Phase::Other`].
    pub fn new() -> Self {
        PhaseTimer {
            running: Cell::new(Phase::Other),
            since: Cell::new(Instant::now()),
            times: Cell::new(PhaseTimes::default()),
        }
    }

    /// Charges the time so far to the running phase, lets `phase` run from now on, and returns the phase that ran.
    pub fn switch(&self, phase: Phase) -> Phase {
        let now = Instant::now();
        let mut times = self.times.get();
        times.ns[self.running.get() as usize] += now.duration_since(self.since.get()).as_nanos() as u64;
        self.times.set(times);
        self.since.set(now);
        self.running.replace(phase)
    }

    /// Lets `phase` run until the scope is dropped, then the phase that ran before.
    #[must_use = "the phase ends when the scope is dropped"]
    pub fn scope(&self, phase: Phase) -> PhaseScope<'_> {
        PhaseScope { timer: self, outer: self.switch(phase) }
    }

    /// Runs `f` as `phase`.
    pub fn time<T>(&self, phase: Phase, f: impl FnOnce() -> T) -> T {
        let _scope = self.scope(phase);
        f()
    }

    /// The times since the last call (or the start), which begin anew. The running phase goes on.
    pub fn take(&self) -> PhaseTimes {
        self.switch(self.running.get());
        self.times.take()
    }
}

/// Ends its phase when dropped, also by a panic or an early return.
#[derive(Debug)]
pub struct PhaseScope<'a> {
    timer: &'a PhaseTimer,
    outer: Phase,
}

impl Drop for PhaseScope<'_> {
    fn drop(&mut self) {
        self.timer.switch(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sleep_ms(ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    #[test]
    fn an_inner_phase_stops_the_clock_of_the_outer_one() {
        let start = Instant::now();
        let timer = PhaseTimer::new();
        timer.time(Phase::Forward, || {
            timer.time(Phase::ExposedComm, || {
                sleep_ms(30);
                timer.time(Phase::ExposedComm, || sleep_ms(5));
            });
        });
        let times = timer.take();
        assert!(times.ms(Phase::ExposedComm) >= 35.0, "{times:?}");
        // With the outer clock running on, the two would add up to twice the sleep.
        let elapsed = start.elapsed().as_nanos() as u64;
        assert!(times.ns(Phase::Forward) + times.ns(Phase::ExposedComm) <= elapsed, "{times:?} of {elapsed} ns");
    }

    #[test]
    fn phases_add_up_to_the_elapsed_time_and_a_step_has_no_checkpoint_in_it() {
        let start = Instant::now();
        let timer = PhaseTimer::new();
        timer.time(Phase::Checkpoint, || sleep_ms(10));
        timer.time(Phase::Evaluation, || sleep_ms(5));
        timer.time(Phase::Data, || sleep_ms(3));
        sleep_ms(2);
        let times = timer.take();
        let elapsed = start.elapsed().as_nanos() as u64;
        assert!(times.total_ns() <= elapsed && times.total_ns() >= 20_000_000, "{times:?} of {elapsed}");
        let apart = times.ns(Phase::Checkpoint) + times.ns(Phase::Evaluation);
        assert_eq!(times.step_ms(), (times.total_ns() - apart) as f64 / 1e6);
        assert_eq!(timer.take().ns(Phase::Data), 0, "taken times begin anew");
    }

    #[test]
    fn a_panic_inside_a_phase_gives_the_clock_back() {
        let timer = PhaseTimer::new();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            timer.time(Phase::Backward, || std::panic::resume_unwind(Box::new(())))
        }));
        assert!(result.is_err());
        assert_eq!(timer.switch(Phase::Data), Phase::Other);
    }

    #[test]
    fn taking_inside_a_phase_splits_it() {
        let timer = PhaseTimer::new();
        let scope = timer.scope(Phase::Optimizer);
        sleep_ms(2);
        let first = timer.take();
        sleep_ms(2);
        drop(scope);
        let second = timer.take();
        for times in [first, second] {
            assert!(times.ms(Phase::Optimizer) >= 2.0, "{times:?}");
        }
        let mut sum = first;
        sum.add(&second);
        assert_eq!(sum.total_ns(), first.total_ns() + second.total_ns());
    }

    #[test]
    fn phases_are_listed_in_their_own_order() {
        for (i, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, i, "{}", phase.name());
        }
    }
}
