//! MPI from start to end: threads, panics, aborts, and a rank's share of its node.
//!
//! Apart from logging, the only place that sees the world rank.

use super::launch_checks::{self, Place};
use crate::backend::agree::all_or_none;
use crate::backend::cpu::instruction_set;
use crate::backend::mesh::{Dim, Mesh};
use crate::backend::mpi::{self, Group, Universe, library_version, processor_name};
use crate::batch::job_clock::job_id;
use crate::config::Deck;
use crate::data::mapped;
use crate::environment;
use crate::error::{Error, Exit, Result};
use crate::foreign;
use crate::limits::{allowed_cpus, cpu_quota};
use crate::liveness::start_watch;
use crate::liveness::{FlightRecorder, StartPlace};
use crate::test_hooks;
use crate::{human, say};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A process of a job under MPI. Dropping it finalizes MPI, which waits for all ranks.
pub struct Launch {
    universe: Universe,
}

/// Makes the C library's allocator retain freed memory. Matrix products allocate their packing buffers, up to
/// some MB, at each call; returning and requesting them again would cost a page fault per 4 KiB in every
/// step.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        /// The largest value the allocator accepts.
        const LARGEST: i32 = 32 << 20;
        // SAFETY: options of the allocator, set before other threads start.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
    }
}

impl Launch {
    /// Initializes MPI, monitored from here on; `timeout` determines `run.timeout`, and may hang. Retains
    /// freed memory, and turns every later panic into an abort of the whole job.
    pub fn start(timeout: impl FnOnce() -> Option<Duration> + Send + 'static) -> Result<Self> {
        // Variables of a Slurm step that this process is not a task of do not describe its start.
        let is_believed = |name: &str| name != "SLURM_STEP_NUM_TASKS" || environment::descends_from_slurm();
        let env = |name: &str| environment::variable(name).filter(|_| is_believed(name));
        if let Some(refusal) = launch_checks::refusal_before_mpi(&env, &library_version()) {
            return Err(Error::Input(refusal));
        }
        keep_freed_memory();
        start_watch::begin(timeout, start_watch::Ends { job: abort_job, process: end_process })?;
        let universe = Universe::start()?;
        start_watch::mpi_runs();
        start_watch::at(StartPlace::Connect);
        let world = universe.world();
        if let Some(refusal) = launch_checks::refusal_after_mpi(&env, world.size()) {
            return Err(Error::Input(refusal));
        }
        abort_on_panic(world.rank(), processor_name());
        mapped::end_job_by(format!("rank {} on {}: ", world.rank(), processor_name()), abort_job);
        test_hooks::set_world_rank(world.rank());
        universe.connect_all();
        universe.check_threading()?;
        Ok(Launch { universe })
    }

    /// World rank.
    pub fn rank(&self) -> usize {
        self.universe.world().rank()
    }

    /// The name of this rank's node.
    pub fn host(&self) -> String {
        processor_name()
    }

    /// The group of ranks that shard the parameters: today all of them. Collective over the job.
    pub fn shard_group(&self) -> Result<Group> {
        let world = self.universe.world();
        world.along(&Mesh::sharded(world.size()), Dim::Shard)
    }

    /// The ranks of one colour, ordered by key. Collective over the job.
    pub fn group(&self, color: usize, key: usize) -> Result<Group> {
        self.universe.world().split(color, key)
    }

    /// Properties of this rank, by name.
    pub fn facts(&self, threads: usize) -> BTreeMap<String, String> {
        let mut facts = self.versions();
        let cores = allowed_cpus();
        facts.insert("program".into(), format!("{:016x}", program_digest()));
        facts.insert("number of cores".into(), cores.len().to_string());
        facts.insert("threads".into(), threads.to_string());
        facts.insert("cores".into(), launch_checks::in_words(&cores));
        facts
    }

    /// Rejects ranks that would compute different bits: another program, deck or instruction set. Rank 0 logs
    /// the placement of the ranks, and warns of a slow configuration. Collective.
    pub fn check_agreement(&self, group: &Group, deck: &Deck, threads: usize) -> Result<()> {
        let own = Start {
            version: env!("CARGO_PKG_VERSION").into(),
            program: program_digest(),
            deck: deck.digest(),
            instructions: instruction_set().into(),
            place: Place { host: self.host(), cpus: allowed_cpus(), threads },
            hooks: test_hooks::active(),
        };
        let all = all_or_none(group, Ok(own))?;
        let first = &all[0];
        for (rank, start) in all.iter().enumerate() {
            let (h, host) = (&start.place.host, &first.place.host);
            if (&start.version, &start.instructions) != (&first.version, &first.instructions) {
                return Err(Error::Input(format!(
                    "rank {rank} on {h} runs zero3 {} with {} kernels, rank 0 on {host} runs zero3 {} with \
                     {}: their results would differ; start all ranks on nodes of one type",
                    start.version, start.instructions, first.version, first.instructions
                )));
            }
            if start.program != first.program {
                return Err(Error::Input(format!(
                    "rank {rank} on {h} runs another build of zero3 (digest {:016x}) than rank 0 on {host} \
                     ({:016x}): install the program on a file system shared by all nodes",
                    start.program, first.program
                )));
            }
            assert_eq!(start.deck, first.deck, "rank {rank} on {h} has a different deck than rank 0");
        }
        test_hooks::add_to_job(all.iter().flat_map(|start| start.hooks.clone()));
        if self.rank() == 0 {
            say_hooks();
            let places: Vec<Place> = all.iter().map(|start| start.place.clone()).collect();
            self.banner(first, &places);
            launch_checks::warnings(&places).iter().for_each(|line| log::warn!("{line}"));
        }
        Ok(())
    }

    /// Where this runs and on what, for the log.
    fn banner(&self, start: &Start, places: &[Place]) {
        let versions = self.versions();
        let version = |name: &str| versions.get(name).map_or("?", String::as_str);
        let job = job_id(&environment::variable);
        let job = job.map_or(String::new(), |id| {
            let again = environment::variable("SLURM_RESTART_COUNT")
                .map_or(String::new(), |n| format!(" (restart {n})"));
            format!("job {id}{again} on ")
        });
        log::info!(
            "zero3 {}, revision {}, program {:016x}, deck {:016x}",
            version("zero3"),
            version("revision"),
            start.program,
            start.deck
        );
        log::info!("{job}{}", launch_checks::layout(places));
        let threads = human::counted(start.place.threads, "thread");
        log::info!("{}, HDF5 {}, {threads} on rank 0", version("mpi"), version("hdf5"));
    }

    /// Compute threads of this rank: as set in the deck, or its share of the cores it may run on and of the
    /// processor time of its control group. Collective.
    pub fn threads(&self, from_deck: usize) -> Result<usize> {
        let cpus = allowed_cpus();
        let quota = cpu_quota();
        let node = self.universe.world().on_this_node()?;
        let sharing_cpus = of_all(&node, &cpus)?.iter().filter(|other| **other == cpus).count();
        let group: Vec<usize> =
            quota.iter().flat_map(|q| q.file.as_os_str().as_encoded_bytes()).map(|&b| b.into()).collect();
        let sharing_quota = of_all(&node, &group)?.iter().filter(|other| **other == group).count();
        let share =
            launch_checks::threads(cpus.len(), sharing_cpus, quota.as_ref().map(|q| q.cpus), sharing_quota);
        if from_deck > cpus.len() {
            log::warn!("run.threads_per_rank = {from_deck}, but this rank may use {} cores", cpus.len());
        }
        if let Some(quota) = quota.filter(|_| from_deck > share) {
            log::warn!(
                "run.threads_per_rank = {from_deck}, but {} grants {} processors' worth of time to {}: \
                 additional threads will be throttled",
                quota.file.display(),
                quota.cpus,
                human::counted(sharing_quota, "rank"),
            );
        }
        Ok(if from_deck == 0 { share } else { from_deck })
    }

    /// Cores of this node that its ranks together may run on. Collective.
    pub fn cores_of_node(&self) -> Result<usize> {
        let node = self.universe.world().on_this_node()?;
        Ok(of_all(&node, &allowed_cpus())?.into_iter().flatten().collect::<BTreeSet<_>>().len())
    }

    /// Versions, for the summary.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let (major, minor, micro) = hdf5::library_version();
        BTreeMap::from([
            ("zero3".into(), env!("CARGO_PKG_VERSION").into()),
            ("revision".into(), env!("ZERO3_REVISION").into()),
            ("mpi".into(), library_version()),
            ("hdf5".into(), format!("{major}.{minor}.{micro}")),
            ("instruction_set".into(), instruction_set().into()),
        ])
    }

    /// Ends MPI, which waits for all ranks; `flight` monitors that.
    pub fn leave(self, flight: Option<FlightRecorder>) {
        if let Some(flight) = &flight {
            test_hooks::fault_point("leave", self.rank(), 0);
            flight.leave();
        }
        drop(self);
    }

    /// Aborts the job on every rank. Finalizing would wait for ranks that wait for this one.
    pub fn abort(&self, exit: Exit) -> ! {
        mpi::abort_job(exit)
    }
}

/// The numbers of every rank of `group`, of any count each. Collective over it.
fn of_all(group: &Group, numbers: &[usize]) -> Result<Vec<Vec<usize>>> {
    let mut padded: Vec<u64> = numbers.iter().map(|&number| number as u64).collect();
    let mut counts = vec![0u64; group.size()];
    group.all_gather_into(&[padded.len() as u64], &mut counts)?;
    let longest = counts.iter().copied().max().unwrap_or(0) as usize;
    if longest == 0 {
        return Ok(vec![Vec::new(); counts.len()]);
    }
    padded.resize(longest, 0);
    let mut all = vec![0u64; longest * counts.len()];
    group.all_gather_into(&padded, &mut all)?;
    let rows = all.chunks_exact(longest).zip(&counts);
    Ok(rows
        .map(|(row, &count)| row[..count as usize].iter().map(|&number| number as usize).collect())
        .collect())
}

/// Ends the job on every rank, from any thread, with MPI running.
pub fn abort_job(exit: Exit) {
    mpi::abort_job(exit)
}

/// Ends only this process, from any thread, without MPI, and without waiting for a thread that hangs.
fn end_process(exit: Exit) {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(exit.code()) };
}

/// A panic is a broken invariant, or an error where none could be returned: no rank may continue, and none
/// may be left waiting.
fn abort_on_panic(rank: usize, host: String) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A third-party parser that panics on its input: the caller turns it into an error.
        if foreign::is_guarded() {
            return;
        }
        // Standard error may be closed, and a panic in here would leave the other ranks waiting.
        let exit = match info.payload().downcast_ref::<Error>() {
            Some(error) => {
                say::err(&format!("zero3: rank {rank} on {host}: {error}"));
                error.exit()
            }
            None => {
                say::err(&format!("zero3: rank {rank}: internal error:"));
                print(info);
                Exit::Internal
            }
        };
        abort_job(exit);
    }));
}

/// Logs active hooks, and variables that look like hooks but are ignored.
pub(super) fn say_hooks() {
    let (hooks, ignored) = (test_hooks::of_job(), test_hooks::ignored());
    if !hooks.is_empty() {
        log::warn!("test hooks active: {}: results are not those of the deck", hooks.join(", "));
    }
    if !ignored.is_empty() {
        log::warn!("{} set but ignored: hooks require {}", ignored.join(", "), test_hooks::FLAG);
    }
}

/// What ranks compare before they start.
#[derive(Serialize, Deserialize)]
struct Start {
    version: String,
    program: u64,
    deck: u64,
    instructions: String,
    place: Place,
    hooks: Vec<String>,
}

/// xxh3 of this program's file; 0 where the system does not show it.
fn program_digest() -> u64 {
    std::fs::read("/proc/self/exe").map_or(0, |bytes| xxhash_rust::xxh3::xxh3_64(&bytes))
}
