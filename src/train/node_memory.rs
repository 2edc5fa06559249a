//! Whether the ranks of a node together fit into its memory, before it is allocated: memory is overcommitted,
//! and a job that exceeds it is killed without a message.
//!
//! Must not know: the purpose of the memory.

use crate::limits;
use std::fs;

/// Memory of a node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// The maximum available to this job: physical memory and swap, or the limit of its control group.
    pub limit_bytes: u64,
    /// The part that other processes do not use now.
    pub available_bytes: u64,
}

impl NodeMemory {
    /// This node's; None if the system does not report it.
    pub fn here() -> Option<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        let files =
            limits::control_files(&limits::own_groups(), "memory", "memory.max", "memory.limit_in_bytes");
        let limits = files.into_iter().filter_map(|file| fs::read_to_string(file).ok());
        Self::of(&meminfo, limits.filter_map(|text| text.trim().parse().ok()))
    }

    /// From `/proc/meminfo` and the limits of the control groups this process is in.
    fn of(meminfo: &str, limits: impl Iterator<Item = u64>) -> Option<Self> {
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kb| kb * 1024)
        };
        let swap = |name: &str| bytes(name).unwrap_or(0);
        let all = bytes("MemTotal")? + swap("SwapTotal");
        let free = bytes("MemAvailable")? + swap("SwapFree");
        let limit_bytes = limits.fold(all, u64::min);
        Some(NodeMemory { limit_bytes, available_bytes: free.min(limit_bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    300 kB\nSwapTotal:  200 \
                           kB\nSwapFree:  50 kB\n";

    #[test]
    fn the_least_limit_counts() {
        let memory = |limits: &[u64]| NodeMemory::of(MEMINFO, limits.iter().copied()).unwrap();
        assert_eq!(memory(&[]), NodeMemory { limit_bytes: 1200 << 10, available_bytes: 350 << 10 });
        assert_eq!(memory(&[1 << 62, 5000, 7000]), NodeMemory { limit_bytes: 5000, available_bytes: 5000 });
        assert_eq!(NodeMemory::of("MemTotal: 5 kB\n", [].into_iter()), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = NodeMemory::here().expect("Linux says");
        assert!(0 < memory.available_bytes && memory.available_bytes <= memory.limit_bytes);
    }
}
