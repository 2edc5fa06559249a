//! Whether the launcher started the intended job: a group of connected ranks, evenly distributed, each on
//! separate cores.
//!
//! Pure functions of an environment and of properties of the ranks, tested on recorded ones. Must not know:
//! MPI.

use crate::backend::mesh::ranks_by_host;
use crate::human;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Looks up a variable of the environment.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why ranks started like this would not connect, each running alone; to be checked before MPI starts,
/// because MPI may end the process with its own message. `mpi_library` is the library's name for itself.
pub fn refusal_before_mpi(env: Env<'_>, mpi_library: &str) -> Option<String> {
    let n_tasks = srun_tasks(env)?;
    let task = step_task(env);
    let needs_pmix = mpi_library.contains("Open MPI");
    (needs_pmix && env("PMIX_NAMESPACE").is_none()).then(|| {
        let how = match env("SLURM_MPI_TYPE").filter(|kind| kind != "none") {
            Some(kind) => format!(
                "srun --mpi={kind} does not provide PMIx, which {mpi_library} requires to \
                                   connect ranks"
            ),
            None => "srun was started without an MPI plugin".into(),
        };
        refusal(task, n_tasks, &how)
    })
}

/// The same check, once MPI has counted the ranks.
pub fn refusal_after_mpi(env: Env<'_>, world_size: usize) -> Option<String> {
    let n_tasks = srun_tasks(env)?;
    (world_size == 1).then(|| refusal(step_task(env), n_tasks, "each of them runs alone"))
}

/// Tasks of the Slurm step of this process, if there are several and mpirun is not involved.
fn srun_tasks(env: Env<'_>) -> Option<usize> {
    step_tasks(env).filter(|&n_tasks| n_tasks > 1)
}

/// Also for a single task.
fn step_tasks(env: Env<'_>) -> Option<usize> {
    let by_mpirun = ["OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"].iter().any(|name| env(name).is_some());
    let n_tasks = env("SLURM_STEP_NUM_TASKS")?.parse().ok()?;
    (!by_mpirun).then_some(n_tasks)
}

/// The number of this task in its Slurm step.
fn step_task(env: Env<'_>) -> usize {
    env("SLURM_PROCID").and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The command that starts `n_ranks` ranks in the way this process was started: srun, or mpirun, with
/// `--oversubscribe` if Open MPI requires it or had it.
pub fn launcher(env: Env<'_>, n_ranks: usize) -> String {
    if step_tasks(env).is_some() {
        let kind = env("SLURM_MPI_TYPE").filter(|kind| kind != "none");
        return format!("srun{} -n {n_ranks}", kind.map_or(String::new(), |kind| format!(" --mpi={kind}")));
    }
    let n_slots = env("OMPI_UNIVERSE_SIZE").and_then(|n| n.parse::<usize>().ok());
    let is_more = n_slots.is_some_and(|n| n < n_ranks) || env("OMPI_MCA_rmaps_base_oversubscribe").is_some();
    format!("mpirun -n {n_ranks}{}", if is_more { " --oversubscribe" } else { "" })
}

/// Task 0 prints the full advice. Another task that prints, because it sees no lower one on its node, is
/// brief.
fn refusal(task: usize, n_tasks: usize, how: &str) -> String {
    if task > 0 {
        return format!("task {task} of {n_tasks} not started: {how} (see the message of task 0)");
    }
    format!(
        "Slurm started {n_tasks} tasks, but {how}: they would train the same run {n_tasks} times. Start them \
         with\n  srun --mpi=pmix --kill-on-bad-exit=1 -n {n_tasks} zero3 train ...\nor, if `srun --mpi=list` \
         does not list pmix, with\n  mpirun -n {n_tasks} zero3 train ..."
    )
}

/// Compute threads of a rank that shares `n_cpus` processors with this many ranks, itself included, and
/// `quota` processors' worth of time with the same or other ranks. More threads than the quota allows only
/// wait for each other.
pub fn threads(n_cpus: usize, sharing_cpus: usize, quota: Option<f64>, sharing_quota: usize) -> usize {
    let of_quota = quota.map_or(usize::MAX, |cpus| (cpus / sharing_quota.max(1) as f64).ceil() as usize);
    (n_cpus / sharing_cpus.max(1)).min(of_quota).max(1)
}

/// Placement of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank's node.
    pub host: String,
    /// Processors it may run on.
    pub cpus: Vec<usize>,
    /// Compute threads it will use.
    pub threads: usize,
}

/// `0-3, 8`: ascending numbers as ranges.
pub(super) fn in_words(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let words = runs.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    words.collect::<Vec<_>>().join(", ")
}

/// `rank 2` or `ranks 0-3, 8`.
pub(super) fn ranks_in_words(ranks: &[usize]) -> String {
    format!("{} {}", human::of_number(ranks.len(), "rank"), in_words(ranks))
}

/// Placement of all ranks: `2 nodes: n1 (ranks 0-1), n2 (ranks 2-3)`.
pub fn layout(places: &[Place]) -> String {
    let hosts = ranks_by_host(places.iter().map(|place| place.host.as_str()));
    let list: Vec<String> =
        hosts.iter().map(|(host, ranks)| format!("{host} ({})", ranks_in_words(ranks))).collect();
    format!("{}: {}", human::counted(hosts.len(), "node"), list.join(", "))
}

/// Warnings about slow configurations, one line each.
pub fn warnings(places: &[Place]) -> Vec<String> {
    let hosts = ranks_by_host(places.iter().map(|place| place.host.as_str()));
    let mut lines = Vec::new();
    let counts: BTreeSet<usize> = hosts.iter().map(|(_, ranks)| ranks.len()).collect();
    if counts.len() > 1 {
        lines.push(format!(
            "ranks are distributed unevenly over {}; the nodes with more ranks limit the speed: use \
             --ntasks-per-node",
            layout(places)
        ));
    }
    let mut bound: BTreeMap<(&str, usize), Vec<usize>> = BTreeMap::new();
    for (rank, place) in places.iter().enumerate() {
        if let &[core] = place.cpus.as_slice() {
            bound.entry((&place.host, core)).or_default().push(rank);
        }
    }
    if let Some(((host, core), ranks)) = bound.iter().find(|(_, ranks)| ranks.len() > 1) {
        lines.push(format!(
            "{} are bound to the same core, {core} of {host}: let the launcher bind each to a separate one \
             (srun --cpus-per-task, mpirun --map-by), or disable binding (mpirun --bind-to none)",
            ranks_in_words(ranks)
        ));
    }
    let short = hosts.iter().find_map(|(host, ranks)| {
        let cores: BTreeSet<usize> = ranks.iter().flat_map(|&r| places[r].cpus.iter().copied()).collect();
        let threads: usize = ranks.iter().map(|&r| places[r].threads).sum();
        (cores.len() < threads).then_some((host, cores.len(), threads, ranks.len()))
    });
    if let Some((host, n_cores, n_threads, n_ranks)) = short {
        lines.push(format!(
            "{host} has {} for {n_threads} compute threads of {}: start fewer ranks there, request more \
             cores (--cpus-per-task), or lower run.threads_per_rank",
            human::counted(n_cores, "core"),
            human::counted(n_ranks, "rank"),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str = "Open MPI v4.1.4";

    /// Recorded under Slurm 22.05 with Open MPI 4.1.4: one task of `srun -N2 -n4 --mpi=KIND`.
    const SRUN_NONE: &[(&str, &str)] = &[
        ("SLURM_NTASKS", "4"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
    ];
    const SRUN_PMI2: &[(&str, &str)] = &[
        ("PMI_FD", "13"),
        ("PMI_JOBID", "3.0"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("SLURM_MPI_TYPE", "pmi2"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "4"),
    ];
    const SRUN_PMIX: &[(&str, &str)] = &[
        ("PMIX_NAMESPACE", "slurm.pmix.2.0"),
        ("PMIX_RANK", "1"),
        ("SLURM_MPI_TYPE", "pmix"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "4"),
    ];
    /// `mpirun -n 1` in a batch script of an allocation of four tasks.
    const MPIRUN_IN_BATCH: &[(&str, &str)] = &[
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "1"),
        ("PMIX_NAMESPACE", "1241317377"),
        ("PMIX_RANK", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_NTASKS_PER_NODE", "2"),
        ("SLURM_PROCID", "0"),
    ];
    /// The same on another node, where mpirun's daemons are tasks of a Slurm step (of two, had there been a
    /// third node).
    const MPIRUN_ELSEWHERE: &[(&str, &str)] = &[
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "1"),
        ("PMIX_NAMESPACE", "1207959553"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ];

    #[test]
    fn a_hint_names_the_launcher_that_was_used() {
        let of = |vars: &[(&str, &str)]| {
            let vars: BTreeMap<String, String> =
                vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            launcher(&|name: &str| vars.get(name).cloned(), 3)
        };
        assert_eq!(of(&[]), "mpirun -n 3");
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_MPI_TYPE", "pmix")]), "srun --mpi=pmix -n 3");
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "1")]), "srun -n 3");
        // mpirun within a Slurm job starts its daemons by srun.
        let within =
            [("SLURM_STEP_NUM_TASKS", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_UNIVERSE_SIZE", "8")];
        assert_eq!(of(&within), "mpirun -n 3");
        assert_eq!(of(&[("OMPI_UNIVERSE_SIZE", "2")]), "mpirun -n 3 --oversubscribe");
        let told = [("OMPI_UNIVERSE_SIZE", "8"), ("OMPI_MCA_rmaps_base_oversubscribe", "1")];
        assert_eq!(of(&told), "mpirun -n 3 --oversubscribe");
    }

    /// A batch script that starts the program without any launcher.
    const BATCH: &[(&str, &str)] =
        &[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0"), ("SLURM_TASKS_PER_NODE", "2(x2)")];

    fn lookup(recorded: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| recorded.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn tasks_that_cannot_meet_are_refused_with_the_line_that_works() {
        for (recorded, why) in
            [(SRUN_NONE, "without an MPI plugin"), (SRUN_PMI2, "--mpi=pmi2 does not provide PMIx")]
        {
            let refusal_of = |task: &str| {
                let env = |name: &str| match name {
                    "SLURM_PROCID" => Some(task.to_string()),
                    _ => lookup(recorded)(name),
                };
                refusal_before_mpi(&env, OPEN_MPI).expect("refused")
            };
            let advice = refusal_of("0");
            for part in [why, "4 tasks", "srun --mpi=pmix --kill-on-bad-exit=1 -n 4", "mpirun -n 4"] {
                assert!(advice.contains(part), "{part}: {advice}");
            }
            let brief = refusal_of("3");
            assert!(brief.starts_with("task 3 of 4 not started: ") && brief.contains(why), "{brief}");
            assert!(!brief.contains('\n'), "the advice is given once: {brief}");
        }
        // MPICH meets through pmi2; what it then counts decides.
        assert_eq!(refusal_before_mpi(&lookup(SRUN_PMI2), "MPICH Version: 4.0.2"), None);
        assert_eq!(refusal_after_mpi(&lookup(SRUN_PMI2), 4), None);
        assert!(refusal_after_mpi(&lookup(SRUN_PMI2), 1).expect("refused").contains("runs alone"));
    }

    #[test]
    fn ranks_that_meet_and_legitimate_single_ranks_are_not() {
        for (recorded, world_size) in
            [(SRUN_PMIX, 4), (MPIRUN_IN_BATCH, 1), (MPIRUN_ELSEWHERE, 1), (BATCH, 1), (&[][..], 1)]
        {
            assert_eq!(refusal_before_mpi(&lookup(recorded), OPEN_MPI), None, "{recorded:?}");
            assert_eq!(refusal_after_mpi(&lookup(recorded), world_size), None, "{recorded:?}");
        }
    }

    #[test]
    fn threads_are_a_rank_s_share_of_processors_and_of_processor_time() {
        assert_eq!(threads(8, 2, None, 1), 4);
        assert_eq!(threads(1536, 1, None, 1), 1536);
        assert_eq!(threads(64, 1, Some(2.5), 1), 3, "half a processor is not left idle");
        assert_eq!(threads(64, 4, Some(8.0), 4), 2);
        assert_eq!(threads(2, 2, Some(8.0), 2), 1, "processors bind first");
        assert_eq!([threads(2, 5, None, 1), threads(4, 1, Some(0.1), 4)], [1, 1], "never none");
    }

    fn place(host: &str, cpus: &[usize], threads: usize) -> Place {
        Place { host: host.into(), cpus: cpus.into(), threads }
    }

    #[test]
    fn each_slow_start_is_one_warning() {
        let even = [
            place("n1", &[0, 1], 2),
            place("n1", &[2, 3], 2),
            place("n2", &[0, 1], 2),
            place("n2", &[2, 3], 2),
        ];
        assert_eq!(warnings(&even), Vec::<String>::new());
        assert_eq!(layout(&even), "2 nodes: n1 (ranks 0-1), n2 (ranks 2-3)");

        let uneven = warnings(&even[..3]);
        assert_eq!(uneven.len(), 1, "{uneven:?}");
        assert!(uneven[0].contains("n1 (ranks 0-1), n2 (rank 2)"), "{uneven:?}");

        let one_core = warnings(&[place("n1", &[3], 1), place("n1", &[4], 1), place("n1", &[3], 1)]);
        assert!(one_core[0].contains("ranks 0, 2 are bound to the same core, 3 of n1"), "{one_core:?}");
        // They are too few as well.
        assert!(
            one_core.len() == 2 && one_core[1].contains("2 cores for 3 compute threads of 3 ranks"),
            "{one_core:?}"
        );

        let few = warnings(&[place("n1", &[0, 1], 4), place("n2", &[0, 1, 2, 3], 4)]);
        assert!(
            few.len() == 1 && few[0].contains("n1 has 2 cores for 4 compute threads of 1 rank:"),
            "{few:?}"
        );
    }
}
