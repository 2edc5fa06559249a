//! The system's counters of this process. Must not know: what the process does.

/// Counters of the process since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Peak resident memory (`ru_maxrss`), in bytes.
    pub peak_rss_bytes: u64,
    /// Page faults served without reading a disk (`ru_minflt`).
    pub page_faults: u64,
}

impl Usage {
    /// The current counters; zeros if the system provides none.
    pub fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: a place for one rusage, valid as zeros if the call fails.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        // Linux counts the resident set in KiB.
        Usage { peak_rss_bytes: usage.ru_maxrss as u64 * 1024, page_faults: usage.ru_minflt as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_shows_in_both_counters() {
        let before = Usage::now();
        let touched = vec![1u8; 64 << 20];
        let after = Usage::now();
        assert!(after.peak_rss_bytes >= touched.len() as u64, "{after:?}");
        assert!(after.page_faults > before.page_faults, "{before:?}, {after:?}");
    }
}
