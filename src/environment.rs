//! The environment of this process, read only here, and the evidence for it: variables outlive what set them,
//! in shells, containers and task farms, so no launcher's or scheduler's variable is trusted on its own.
//!
//! Must not know: MPI, what a rank does.

use crate::limits;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A variable; None if unset or not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A variable as an OS string.
pub fn variable_os(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Variables by which launchers set a process's rank, and the rank count.
const RANK_OF: [(&str, &[&str]); 4] = [
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"]),
    ("PMIX_RANK", &["PMIX_NAMESPACE"]),
    ("PMI_RANK", &["PMI_SIZE"]),
    ("SLURM_PROCID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
];

/// Variables that distinguish the processes of one start from those of another.
const START_OF: [&str; 5] =
    ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"];

/// Launcher information in the variables of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// The rank.
    pub rank: usize,
    /// The rank count, if set by the launcher.
    pub size: Option<usize>,
    /// Ranks of this node, if set by the launcher.
    pub local_size: Option<usize>,
    /// The same value for all processes of one start.
    start: Vec<Option<String>>,
}

impl Launched {
    fn of(env: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| env(name)?.trim().parse::<usize>().ok();
        let (rank, size) = RANK_OF.iter().find_map(|(rank, beside)| {
            let rank = number(rank)?;
            // A rank without information on the others is a leftover, as is one beyond their number.
            beside.iter().any(|name| env(name).is_some()).then_some(())?;
            let size = beside.iter().filter(|name| **name != "PMIX_NAMESPACE").find_map(|name| number(name));
            size.is_none_or(|size| rank < size).then_some((rank, size))
        })?;
        let size = size.or_else(|| number("OMPI_COMM_WORLD_SIZE"));
        let local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE");
        Some(Launched { rank, size, local_size, start: START_OF.map(&env).into() })
    }
}

/// The launcher information in this process's variables at the first call, which `main` makes: a library may
/// set some later. It may be that of another start: see [`siblings`].
pub fn launched() -> Option<Launched> {
    static LAUNCHED: OnceLock<Option<Launched>> = OnceLock::new();
    LAUNCHED.get_or_init(|| Launched::of(variable)).clone()
}

/// A process of this node that was started together with this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sibling {
    /// Its rank.
    pub rank: usize,
    /// Its process id.
    pub pid: u32,
    /// The state letter of `/proc/PID/stat`: R, S, D, T (stopped), Z and so on.
    pub state: char,
    /// Whether it runs the same program with the same arguments in the same directory.
    pub does_the_same: bool,
}

/// The processes of this user on this node that were started together with this one, including this one, by
/// rank.
pub fn siblings(own: &Launched) -> Vec<Sibling> {
    let task = |pid: &str| {
        let dir = PathBuf::from("/proc").join(pid);
        let link = |name: &str| fs::read_link(dir.join(name)).ok();
        Some((fs::read(dir.join("cmdline")).ok()?, link("exe")?, link("cwd")?))
    };
    let own_task = task("self");
    let mut found: Vec<Sibling> = processes()
        .filter_map(|pid| {
            let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let launched = Launched::of(|name| value_in(&bytes, name))?;
            if launched.start != own.start {
                return None;
            }
            let does_the_same = own_task.is_some() && task(&pid.to_string()) == own_task;
            Some(Sibling { rank: launched.rank, pid, state: state_of(pid)?, does_the_same })
        })
        .collect();
    // A rank may have child processes with its variables: the oldest process, which the launcher started,
    // counts.
    found.sort_by_key(|sibling| (sibling.rank, !sibling.does_the_same, sibling.pid));
    found.dedup_by_key(|sibling| sibling.rank);
    found
}

/// A lower rank that certainly does the same work: the launcher of both was given this command, or its
/// process is visible on this node. Tasks of a farm differ in their arguments or directories.
pub fn twin() -> Option<usize> {
    let own = launched().filter(|own| own.rank > 0)?;
    let parent = std::os::unix::process::parent_id();
    let is_launcher = |name: &str| LAUNCHERS.iter().any(|launcher| name.starts_with(launcher));
    let has_launcher = name_and_parent(parent).is_some_and(|(name, _)| is_launcher(&name));
    if has_launcher && is_told(&command_line(parent), &command_line(std::process::id())) {
        return Some(0);
    }
    siblings(&own)
        .iter()
        .find(|sibling| sibling.rank < own.rank && sibling.does_the_same)
        .map(|sibling| sibling.rank)
}

/// Names of programs that start ranks from their own command line; others, such as `timeout`, start one
/// process.
const LAUNCHERS: [&str; 5] = ["mpirun", "mpiexec", "orterun", "prterun", "prun"];

/// Whether a launcher's command line gives all its processes the command `own`.
fn is_told(launcher: &[Vec<u8>], own: &[Vec<u8>]) -> bool {
    let several_programs = launcher.iter().any(|word| word == b":");
    !own.is_empty() && launcher.len() > own.len() && launcher.ends_with(own) && !several_programs
}

fn command_line(pid: u32) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    words.split(|&b| b == 0).map(<[u8]>::to_vec).collect()
}

/// Seconds between mpirun's forwarding of SIGTERM to its ranks and SIGKILL; None if mpirun did not start this
/// process.
pub fn mpirun_grace_seconds() -> Option<f64> {
    // Open MPI's default. It sets the variable of ranks itself, before they start, if its parameter is given.
    const DEFAULT: f64 = 1.0;
    // Called after each step.
    static GRACE: OnceLock<Option<f64>> = OnceLock::new();
    *GRACE.get_or_init(|| {
        launched()?.local_size?;
        let given = variable("OMPI_MCA_odls_base_sigkill_timeout").and_then(|text| text.trim().parse().ok());
        Some(given.unwrap_or(DEFAULT))
    })
}

/// Whether Slurm started this process, or an ancestor: variables alone may be those of another job.
pub fn descends_from_slurm() -> bool {
    let mut pid = std::process::id();
    // The loop ends, whatever the system reports.
    for _ in 0..64 {
        let Some((name, parent)) = name_and_parent(pid) else { break };
        if ["slurmstepd", "salloc", "srun"].contains(&name.as_str()) {
            return true;
        }
        pid = parent;
    }
    let groups = limits::own_groups();
    variable("SLURM_JOB_ID").is_some_and(|id| groups.lines().any(|line| line.contains(&format!("/job_{id}"))))
}

/// Process ids of this node.
fn processes() -> impl Iterator<Item = u32> {
    let dir = fs::read_dir("/proc").into_iter().flatten().flatten();
    dir.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A variable in `/proc/PID/environ`.
fn value_in(environ: &[u8], name: &str) -> Option<String> {
    environ.split(|&b| b == 0).find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.into()).ok()
    })
}

/// The state letter of a process; None if it does not exist.
pub fn state_of(pid: u32) -> Option<char> {
    fields_of(pid)?.1.first()?.chars().next()
}

fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let (name, fields) = fields_of(pid)?;
    Some((name, fields.get(1)?.parse().ok()?))
}

/// `/proc/PID/stat`: the name, and the rest.
fn fields_of(pid: u32) -> Option<(String, Vec<String>)> {
    let text = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?).into_owned();
    // A name may contain brackets and spaces.
    let (head, tail) = text.rsplit_once(')')?;
    Some((head.split_once('(')?.1.into(), tail.split_whitespace().map(String::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(variables: &[(&str, &str)]) -> Option<(usize, Option<usize>)> {
        let env =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_string());
        Launched::of(env).map(|l| (l.rank, l.size))
    }

    #[test]
    fn a_rank_needs_a_size_beside_it_that_it_is_below() {
        assert_eq!(launched(&[("SLURM_PROCID", "3")]), None);
        assert_eq!(launched(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "3")]), None);
        assert_eq!(launched(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")]), Some((3, Some(4))));
        assert_eq!(launched(&[("PMI_RANK", "1")]), None);
        for namespace in ["x.1", "1769013249"] {
            assert_eq!(launched(&[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", namespace)]), Some((1, None)));
        }
        let mpirun = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "3"), ("SLURM_PROCID", "0")];
        assert_eq!(launched(&mpirun), Some((2, Some(3))));
        assert_eq!(launched(&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "3")]), None);
    }

    #[test]
    fn a_launcher_s_own_words_show_that_all_ranks_do_the_same() {
        let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let own = words("zero3 ckpt verify a");
        assert!(is_told(&words("mpirun -n 3 env X=1 zero3 ckpt verify a"), &own));
        // A shell between them, several programs, or the same process again.
        assert!(!is_told(&words("mpirun -n 3 sh -c zero3 ckpt verify $RANK"), &own));
        assert!(!is_told(&words("mpirun -n 1 zero3 ckpt verify b : -n 1 zero3 ckpt verify a"), &own));
        assert!(!is_told(&own, &own) && !is_told(&own, &[]));
    }

    #[test]
    fn variables_of_another_process_are_read_whole() {
        let environ = b"A=1\0SLURM_PROCID2=7\0SLURM_PROCID=3\0X=\xff\0";
        assert_eq!(value_in(environ, "SLURM_PROCID").as_deref(), Some("3"));
        assert_eq!((value_in(environ, "X"), value_in(environ, "B")), (None, None));
    }

    #[test]
    fn this_process_is_alive_and_has_a_parent() {
        assert!("RS".contains(state_of(std::process::id()).unwrap()));
        assert_eq!(state_of(u32::MAX), None);
        let (name, parent) = name_and_parent(std::process::id()).unwrap();
        assert!(!name.is_empty() && parent == std::os::unix::process::parent_id());
        assert!(processes().any(|pid| pid == std::process::id()));
    }
}
