//! The only way to start a thread, with an error message that lists the limits.
//!
//! Must not know: what threads do.

use crate::error::{Error, Result};
use crate::limits;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// Starts a thread called `name`.
///
/// # Errors
/// The system cannot start it: the error lists the limits of this process, exit code 5.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|e| refused(&format!("the thread `{name}`"), &e))
}

/// Work that runs on a thread, or on the spot if no thread can be started.
pub enum Work<T> {
    /// In progress, or done.
    OnThread(JoinHandle<T>),
    /// Its result.
    Done(T),
}

impl<T: Send + 'static> Work<T> {
    /// Starts it. Without a thread it is done before this returns, with a warning.
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        Work::start_on(Builder::new().name(name.into()), name, work)
    }

    fn start_on(thread: Builder, name: &str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        // The executor of the work takes it out; a thread that cannot start leaves it.
        let work = Arc::new(Mutex::new(Some(work)));
        let take = |work: &Mutex<Option<_>>| work.lock().expect("no holder panics").take();
        let shared = work.clone();
        match thread.spawn(move || take(&shared).expect("the work is there once")()) {
            Ok(thread) => Work::OnThread(thread),
            Err(why) => {
                log::warn!(
                    "{}: its work is done synchronously",
                    refused(&format!("the thread `{name}`"), &why)
                );
                Work::Done(take(&work).expect("no thread has it")())
            }
        }
    }

    /// Whether [`Work::join`] does not block.
    pub fn is_finished(&self) -> bool {
        match self {
            Work::OnThread(thread) => thread.is_finished(),
            Work::Done(_) => true,
        }
    }

    /// Its result; its panic is resumed here.
    pub fn join(self) -> T {
        match self {
            Work::OnThread(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Work::Done(found) => found,
        }
    }
}

/// Starts the threads for parallel iterators outside of a device, unless they are running. If left to the
/// first use, a failure to start them would be a panic.
///
/// # Errors
/// Those of [`spawn`].
pub fn start_shared_pool() -> Result<()> {
    match rayon::ThreadPoolBuilder::new().build_global() {
        // Without a source the error says that there is a pool.
        Err(error) if std::error::Error::source(&error).is_some() => {
            Err(not_built("the shared worker threads", &error))
        }
        _ => Ok(()),
    }
}

/// The error of a thread pool that could not be built.
pub fn not_built(what: &str, error: &rayon::ThreadPoolBuildError) -> Error {
    match std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => refused(what, source),
        None => Error::Io(format!("cannot start {what}: {error}")),
    }
}

/// An error that `what` could not be started, with the limits.
fn refused(what: &str, error: &std::io::Error) -> Error {
    let bounds = limits::bounds_of_threads();
    let bounds = if bounds.is_empty() { "none known".into() } else { bounds.join(", ") };
    Error::Io(format!("cannot start {what}: {error}; limits: {bounds}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_name_and_a_second_start_of_the_pool_is_none() {
        let named = spawn("a thread", || std::thread::current().name().map(String::from)).unwrap();
        assert_eq!(named.join().unwrap().as_deref(), Some("a thread"));
        start_shared_pool().unwrap();
        start_shared_pool().unwrap();
    }

    #[test]
    fn work_is_done_where_the_system_starts_no_thread_for_it() {
        let on_thread = Work::start("test", || std::thread::current().id());
        assert_ne!(on_thread.join(), std::thread::current().id());
        // No address space has room for such a stack.
        let here = Work::start_on(Builder::new().stack_size(1 << 60), "test", || std::thread::current().id());
        assert!(here.is_finished());
        assert_eq!(here.join(), std::thread::current().id());
    }

    #[test]
    fn a_thread_that_cannot_start_is_an_io_error_with_the_system_s_words() {
        let error = refused("the thread `x`", &std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert_eq!(error.exit().code(), 5);
        assert!(
            error.to_string().starts_with("cannot start the thread `x`: Resource temporarily"),
            "{error}"
        );
    }
}
