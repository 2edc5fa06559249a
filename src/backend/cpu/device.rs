//! The processor cores of one rank, and how work is shared between them.
//!
//! [Note: tasks] Every kernel cuts its work into tasks by shape alone; a pool decides which thread runs a
//! task, never what a task is. So the bits of a result do not depend on the number of threads (rule 8).
//!
//! Must not know: what a task computes.

use crate::error::{Error, Result};
use crate::telemetry::allocations::{self, Owner};
use gemm_common::Parallelism;
use rayon::prelude::*;

/// The event of a device whose calls return when their work is done.
#[derive(Debug, Clone, Copy)]
pub struct Done;

/// The processor cores of one rank.
pub struct CpuDevice {
    threads: usize,
    /// None for one thread: then nothing leaves the calling thread.
    pub(super) pool: Option<rayon::ThreadPool>,
}

impl CpuDevice {
    /// A device that computes on `threads` threads.
    ///
    /// # Errors
    /// `threads` is 0, or the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::Input("0 compute threads: at least 1 is needed".into()));
        }
        let pool = (threads > 1)
            .then(|| {
                // The calling thread is one of them, so that it computes instead of handing over and waiting,
                // for every operation.
                let build = |with_this: bool| {
                    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
                    let builder = if with_this { builder.use_current_thread() } else { builder };
                    let builder = builder.thread_name(|i| format!("compute-{i}"));
                    builder.start_handler(|_| allocations::count_this_thread(Owner::Tasks)).build()
                };
                // It can be in one pool alone: a second device of this thread has threads of its own.
                build(true).or_else(|_| build(false))
            })
            .transpose()
            .map_err(|err| crate::threads::not_built(&format!("{threads} compute threads"), &err))?;
        Ok(CpuDevice { threads, pool })
    }

    /// Compute threads.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `task(0)` to `task(n_tasks - 1)`, in any order and at once where there is a pool.
    pub(super) fn for_each_task(&self, n_tasks: usize, task: impl Fn(usize) + Sync + Send) {
        match &self.pool {
            Some(pool) if n_tasks > 1 => install(pool, || (0..n_tasks).into_par_iter().for_each(task)),
            _ => (0..n_tasks).for_each(task),
        }
    }

    /// Runs `product` with the parallelism of this device.
    pub(super) fn with_parallelism(&self, product: impl FnOnce(Parallelism) + Send) {
        match &self.pool {
            Some(pool) => install(pool, || product(Parallelism::Rayon(self.threads))),
            None => product(Parallelism::None),
        }
    }
}

/// Runs `work` on the threads of `pool`.
pub(super) fn install<T: Send>(pool: &rayon::ThreadPool, work: impl FnOnce() -> T + Send) -> T {
    allocations::on_behalf_of(Owner::Tasks, || pool.install(work))
}
