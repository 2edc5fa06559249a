//! Signals as flags: a handler sets one, the loop looks. Nothing else is safe in a handler.

use std::sync::atomic::{AtomicBool, Ordering};

static REPORT: AtomicBool = AtomicBool::new(false);

extern "C" fn ask_for_report(_signal: libc::c_int) {
    REPORT.store(true, Ordering::Relaxed);
}

/// From now on SIGUSR2 asks for a report instead of ending the process.
pub fn listen() {
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR2, ask_for_report as *const () as libc::sighandler_t) };
}

/// Whether a report was asked for since the last look.
pub fn report_wanted() -> bool {
    REPORT.load(Ordering::Relaxed) && REPORT.swap(false, Ordering::Relaxed)
}
