//! The ranks of the job as benchmarks see them: devices, communicators, host names, timed calls.

use super::local_work::LocalWork;
use crate::backend::agree::all_or_none;
use crate::backend::{Backend, Comm, Device, Queue};
use crate::error::{Exit, Result};
use crate::test_hooks;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Makes a group of the ranks with the same colour, ordered by key. Collective over the whole job.
pub type Split<'a, C> = dyn Fn(usize, usize) -> Result<C> + 'a;

/// All ranks of the job, as one of them sees them.
pub struct Cluster<'a, B: Backend> {
    /// This rank's device.
    pub device: &'a B::Device,
    /// All ranks.
    pub comm: &'a B::Comm,
    /// Makes groups of them.
    pub split: &'a Split<'a, B::Comm>,
    /// Host name of each rank.
    pub hosts: Vec<String>,
    /// Versions of the program, of MPI and so on, and the instruction set.
    pub versions: BTreeMap<String, String>,
    /// Fill released buffers with NaN.
    pub poison: bool,
    /// When the process started.
    pub started: Instant,
    /// Ends the job on every rank.
    pub abort: fn(Exit),
    /// Whether this rank is computing or writing by itself, while the others wait for it.
    pub local_work: LocalWork,
}

impl<B: Backend> Cluster<'_, B> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Number of ranks.
    pub fn n(&self) -> usize {
        self.comm.size()
    }

    /// `rank 3 on n2`.
    pub fn name(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank])
    }

    /// One number from every rank, in rank order. Collective.
    pub fn gather(&self, own: f64) -> Result<Vec<f64>> {
        self.comm.control().all_gather_f64(&[own])
    }

    /// Returns when every rank has called it. Where the library can, ranks that wait leave their cores to
    /// those that work.
    pub fn quiet_barrier(&self) -> Result<()> {
        match self.comm.library() {
            Some(library) => library.quiet_barrier(),
            None => all_or_none(self.comm, Ok(())).map(drop),
        }
    }

    /// Waits until everything on the compute queue is done.
    pub fn settle(&self) -> Result<()> {
        self.device.when(&self.device.mark(Queue::Compute)).map(drop)
    }

    /// Mean time of calls of `work`, made for `seconds` and at least three times, after one that is not
    /// timed. The mean, because what other processes take of a rank's core falls between most of its short
    /// calls: a median would not show it.
    pub fn mean_time(&self, seconds: f64, work: impl FnMut()) -> Result<Duration> {
        self.local_work.run(|| self.mean_of_calls(seconds, work))
    }

    fn mean_of_calls(&self, seconds: f64, mut work: impl FnMut()) -> Result<Duration> {
        work();
        self.settle()?;
        let began = Instant::now();
        let mut n_calls = 0;
        while n_calls < 3 || began.elapsed().as_secs_f64() < seconds {
            let started = Instant::now();
            work();
            self.settle()?;
            test_hooks::drag(started.elapsed());
            n_calls += 1;
        }
        Ok(began.elapsed() / n_calls)
    }
}
