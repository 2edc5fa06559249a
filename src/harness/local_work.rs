//! Whether a rank is working by itself, for the thread that ends the job at the time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this rank is working by itself, outside of any collective, while the others wait for it.
#[derive(Debug, Clone, Default)]
pub struct LocalWork(Arc<AtomicBool>);

impl LocalWork {
    /// Runs `work` as local work.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let done = work();
        self.0.store(false, Ordering::Relaxed);
        done
    }

    /// Whether local work is running.
    pub fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
