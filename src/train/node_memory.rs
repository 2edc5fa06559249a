//! Whether what the ranks of a node will hold together fits into it, before it is allocated: memory is handed out on credit,
//! and a job that uses more than there is is killed without a word.
//!
//! Must not know: what the memory is for.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory of a node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// The most that this job can ever have: physical memory and swap, or the limit of its control group.
    pub limit_bytes: u64,
    /// What is not in use by others now.
    pub available_bytes: u64,
}

impl NodeMemory {
    /// This node's; None where the system does not say.
    pub fn here() -> Option<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limits = limit_files(&groups).into_iter().filter_map(|file| fs::read_to_string(file).ok());
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

/// The files with the limits of a process's control groups and of those around them: version 2, then version 1.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let group = group.trim_start_matches('/');
        files.extend(Path::new(group).ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    300 kB\nSwapTotal:  200 kB\nSwapFree:  50 kB\n";

    #[test]
    fn the_least_limit_counts() {
        let memory = |limits: &[u64]| NodeMemory::of(MEMINFO, limits.iter().copied()).unwrap();
        assert_eq!(memory(&[]), NodeMemory { limit_bytes: 1200 << 10, available_bytes: 350 << 10 });
        assert_eq!(memory(&[1 << 62, 5000, 7000]), NodeMemory { limit_bytes: 5000, available_bytes: 5000 });
        assert_eq!(NodeMemory::of("MemTotal: 5 kB\n", [].into_iter()), None);
    }

    #[test]
    fn limits_are_looked_for_in_every_group_around_this_process() {
        let files = |groups| limit_files(groups).iter().map(|f| f.display().to_string()).collect::<Vec<_>>();
        let v2 = ["slurm/job_1/memory.max", "slurm/memory.max", "memory.max"].map(|f| format!("/sys/fs/cgroup/{f}"));
        assert_eq!(files("0::/slurm/job_1\n"), v2);
        let v1 = ["a/memory.limit_in_bytes", "memory.limit_in_bytes"].map(|f| format!("/sys/fs/cgroup/memory/{f}"));
        assert_eq!(files("5:devices:/x\n4:cpu,memory:/a\n"), v1);
        assert!(files("nonsense").is_empty());
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = NodeMemory::here().expect("Linux says");
        assert!(0 < memory.available_bytes && memory.available_bytes <= memory.limit_bytes);
    }
}
