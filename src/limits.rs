//! Limits of this process: processors, and the limits of its control groups.
//!
//! Must not know: what they are used for.

use std::fs;
use std::path::{Path, PathBuf};

/// The processors this thread may run on, ascending; if the system does not list them, the standard library's
/// count. From a text list, which has no fixed width: a mask of the C library's type ends at 1,024.
pub fn allowed_cpus() -> Vec<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(cpus_in).filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| {
        let n = std::thread::available_parallelism().map_or(1, |n| n.get());
        (0..n).collect()
    })
}

/// `0-3,8` as numbers; None for anything else.
fn cpus_in(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// A quota of the node's processor time that a control group shares.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuQuota {
    /// In processors.
    pub cpus: f64,
    /// The file that sets it: ranks in one group share it.
    pub file: PathBuf,
}

/// The smallest quota of this process's control groups; None without a quota.
pub fn cpu_quota() -> Option<CpuQuota> {
    least_quota(&own_groups(), |path| fs::read_to_string(path).ok())
}

/// The control groups of this process: `/proc/self/cgroup`.
pub fn own_groups() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

fn least_quota(groups: &str, file: impl Fn(&Path) -> Option<String>) -> Option<CpuQuota> {
    let files = control_files(groups, "cpu", "cpu.max", "cpu.cfs_quota_us").into_iter();
    let quotas = files.filter_map(|path| {
        let text = file(&path)?;
        let mut words = text.split_whitespace();
        // "max" in version 2 and -1 in version 1 mean unlimited.
        let quota_us = words.next()?.parse::<f64>().ok().filter(|us| *us > 0.0)?;
        let period_us: f64 = match words.next() {
            Some(period) => period.parse().ok()?,
            None => file(&path.with_file_name("cpu.cfs_period_us"))?.trim().parse().ok()?,
        };
        (period_us > 0.0).then(|| CpuQuota { cpus: quota_us / period_us, file: path })
    });
    quotas.min_by(|a, b| a.cpus.total_cmp(&b.cpus))
}

/// What bounds the memory of this process, in words.
pub fn bounds_of_memory() -> Vec<String> {
    let own = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    memory_bounds(&own, &own_groups(), |path| fs::read_to_string(path).ok())
}

fn memory_bounds(own: &str, groups: &str, file: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, flag) in [("Max address space", "v"), ("Max data size", "d")] {
        if let Some(bytes) = soft_limit(own, name) {
            let what = name.trim_start_matches("Max ");
            found.push(format!("{bytes} bytes of {what} (ulimit -{flag})"));
        }
    }
    for path in control_files(groups, "memory", "memory.max", "memory.limit_in_bytes") {
        // Version 1 writes a bound that no machine reaches where there is none.
        let bytes = file(&path).and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(bytes) = bytes.filter(|&bytes| bytes < 1 << 60) {
            found.push(format!("{bytes} bytes of this control group ({})", path.display()));
        }
    }
    found
}

/// The soft limit of a row of `/proc/PID/limits`; None where it is unlimited.
fn soft_limit<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    let row = limits.lines().find_map(|line| line.strip_prefix(name))?;
    row.split_whitespace().next().filter(|value| *value != "unlimited")
}

/// What bounds the threads of this process, in words.
pub fn bounds_of_threads() -> Vec<String> {
    let own = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    thread_bounds(&own, &own_groups(), |path| fs::read_to_string(path).ok())
}

fn thread_bounds(own: &str, groups: &str, file: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(n) = soft_limit(own, "Max processes") {
        found.push(format!("{n} threads of this user (ulimit -u)"));
    }
    if let Some(bytes) = soft_limit(own, "Max address space") {
        found.push(format!("{bytes} bytes of address space (ulimit -v)"));
    }
    for path in control_files(groups, "pids", "pids.max", "pids.max") {
        if let Some(n) = file(&path).filter(|text| text.trim() != "max") {
            found.push(format!("{} threads of this control group ({})", n.trim(), path.display()));
        }
    }
    found
}

/// The files with one limit of a process's control groups and their ancestors, innermost first; `groups` is
/// [`own_groups`]. Version 2 has one tree, version 1 one per controller, with another file name.
pub fn control_files(groups: &str, controller: &str, v2_file: &str, v1_file: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup".into(), v2_file),
            _ if controllers.split(',').any(|c| c == controller) => {
                (format!("/sys/fs/cgroup/{controller}"), v1_file)
            }
            _ => continue,
        };
        let group = group.trim_start_matches('/');
        files.extend(Path::new(group).ancestors().map(|group| Path::new(&root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processors_has_no_width() {
        assert_eq!(cpus_in("\t0-2,8\n").unwrap(), [0, 1, 2, 8]);
        assert_eq!(cpus_in("0-1535").unwrap().len(), 1536);
        assert_eq!(cpus_in("4095").unwrap(), [4095]);
        assert_eq!((cpus_in(""), cpus_in("0-x"), cpus_in("ff,ff")), (None, None, None));
        assert!(!allowed_cpus().is_empty());
    }

    #[test]
    fn the_least_quota_of_both_versions_counts() {
        let file = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/pod/cpu.max" => Some("max 100000\n".into()),
            "/sys/fs/cgroup/cpu.max" => Some("250000 100000\n".to_string()),
            "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us" => Some("150000\n".into()),
            "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us" => Some("100000\n".into()),
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us" => Some("-1\n".into()),
            _ => None,
        };
        let quota = |groups| least_quota(groups, file).map(|quota| quota.cpus);
        assert_eq!(quota("0::/pod\n"), Some(2.5));
        assert_eq!(quota("3:cpu,cpuacct:/a\n0::/pod\n"), Some(1.5));
        assert_eq!(quota("3:cpu,cpuacct:/\n"), None);
    }

    #[test]
    fn the_bounds_of_memory_are_named_and_those_that_there_are_not_left_out() {
        let own = "Max data size             unlimited            unlimited            bytes     \n\
                   Max address space         400000000            unlimited            bytes     \n";
        let file = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/slurm/job_1/memory.max" => Some("max\n".into()),
            "/sys/fs/cgroup/slurm/memory.max" => Some("2147483648\n".into()),
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes" => Some("9223372036854771712\n".into()),
            _ => None,
        };
        assert_eq!(
            memory_bounds(own, "4:memory:/a\n0::/slurm/job_1\n", file),
            [
                "400000000 bytes of address space (ulimit -v)",
                "2147483648 bytes of this control group (/sys/fs/cgroup/slurm/memory.max)"
            ]
        );
        assert!(memory_bounds("", "nonsense", |_| None).is_empty());
    }

    #[test]
    fn the_bounds_of_threads_are_named_and_those_that_there_are_not_left_out() {
        let own = "Limit                     Soft Limit           Hard Limit           Units     \n\
                   Max processes             2                    92718                processes \n\
                   Max address space         unlimited            unlimited            bytes     \n";
        let file = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/slurm/job_1/pids.max" => Some("max\n".into()),
            "/sys/fs/cgroup/slurm/pids.max" => Some("512\n".into()),
            _ => None,
        };
        assert_eq!(
            thread_bounds(own, "0::/slurm/job_1\n", file),
            [
                "2 threads of this user (ulimit -u)",
                "512 threads of this control group (/sys/fs/cgroup/slurm/pids.max)"
            ]
        );
        assert!(thread_bounds("", "nonsense", |_| None).is_empty());
    }

    #[test]
    fn bounds_are_looked_for_in_every_group_around_this_process() {
        let files = |groups| {
            let files = control_files(groups, "memory", "memory.max", "memory.limit_in_bytes");
            files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>()
        };
        let v2 = ["slurm/job_1/memory.max", "slurm/memory.max", "memory.max"]
            .map(|f| format!("/sys/fs/cgroup/{f}"));
        assert_eq!(files("0::/slurm/job_1\n"), v2);
        let v1 = ["a/memory.limit_in_bytes", "memory.limit_in_bytes"]
            .map(|f| format!("/sys/fs/cgroup/memory/{f}"));
        assert_eq!(files("5:devices:/x\n4:cpu,memory:/a\n"), v1);
        assert!(files("nonsense").is_empty());
    }
}
