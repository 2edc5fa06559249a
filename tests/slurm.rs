//! The scripts of slurm/ on a real Slurm: slurmctld and several slurmd on this machine, brought up by
//! tests/slurm/up.sh.

mod common;

use common::{Case, Steps, assert_same_curve, summary, until_row};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zero3::test_hooks::FLAG;

/// One cluster at a time: the machine is small, and a job that waits for cores proves nothing.
static ONE: Mutex<()> = Mutex::new(());

/// A cluster, taken down when dropped, after a failure too.
struct Cluster {
    dir: PathBuf,
    _one: MutexGuard<'static, ()>,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

impl Cluster {
    fn up(n_nodes: usize) -> Self {
        Self::up_with_gpus(n_nodes, 0)
    }

    /// The same with so many GPUs on each node, as far as Slurm knows.
    fn up_with_gpus(n_nodes: usize, n_gpus: usize) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Under /tmp, because the paths of sockets must be short.
        let dir = tempfile::Builder::new()
            .prefix("zero3-slurm-")
            .tempdir_in("/tmp")
            .expect("/tmp is writable")
            .keep();
        let cluster = Cluster { dir, _one: one };
        let sizes = [n_nodes, n_gpus].map(|n| n.to_string());
        let up = Command::new(script("tests/slurm/up.sh")).arg(&cluster.dir).args(sizes).output();
        let up = up.expect("bash runs tests/slurm/up.sh");
        assert!(up.status.success(), "no cluster: {}", String::from_utf8_lossy(&up.stderr));
        cluster
    }

    /// A client program of this cluster, ended after four minutes.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["240", program]).env("SLURM_CONF", self.dir.join("slurm.conf"));
        command
    }

    /// sbatch of one of slurm/*.sbatch from the case's directory, its output to `RUN.out`.
    fn sbatch(&self, case: &Case, script_name: &str, run: &str, options: &[&str]) -> Command {
        let mut command = self.client("sbatch");
        command
            .args(["--parsable", &format!("--output={}", case.path(&format!("{run}.out")).display())])
            .args(options)
            .arg(script(script_name))
            .current_dir(case.path(""));
        Self::environment(&mut command);
        command
    }

    /// What jobs find in their environment.
    fn environment(command: &mut Command) -> &mut Command {
        command
            .env("ZERO3", env!("CARGO_BIN_EXE_zero3"))
            .env("ZERO3_SBATCH", script("slurm/zero3.sbatch"))
            // The nodes claim more cores than the machine has: without it ranks spin on cores that others
            // need.
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    }

    /// The words that make the case's deck train into `run`.
    fn words(case: &Case, run: &str, words: &[&str]) -> Vec<String> {
        let own = [case.deck().display().to_string(), format!("run.dir={}", case.path(run).display())];
        let flag = [zero3::test_hooks::FLAG.to_string()];
        own.into_iter().chain(words.iter().map(|word| word.to_string())).chain(flag).collect()
    }

    /// Submits, waits for the job (of an array: for each), and returns its worst exit code and what it
    /// printed. Not by `sbatch --wait`, which looks after 2, 10, 42, 74 s: a job of 11 s would seem to take
    /// 42.
    fn ended(&self, sbatch: Command, case: &Case, run: &str) -> (i32, String) {
        let job = Self::job_id(sbatch);
        let code = self.exit_code(&job, case, run);
        (code, Self::output(case, run))
    }

    /// Submits; returns the job's id.
    fn job_id(mut sbatch: impl std::borrow::BorrowMut<Command>) -> String {
        let out = sbatch.borrow_mut().output().expect("coreutils has timeout");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_string()
    }

    fn output(case: &Case, run: &str) -> String {
        std::fs::read_to_string(case.path(&format!("{run}.out"))).unwrap_or_default()
    }

    /// What a client program of this cluster says.
    #[track_caller]
    fn ask(&self, program: &str, words: &[&str]) -> String {
        let out = self.client(program).args(words).output().expect("coreutils has timeout");
        assert!(out.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Waits for the end of a job, or of each task of an array: the worst exit code.
    fn exit_code(&self, job: &str, case: &Case, run: &str) -> i32 {
        let started = Instant::now();
        while !self.ask("squeue", &["--noheader", "--jobs", job]).trim().is_empty() {
            let log = || Self::output(case, run);
            assert!(started.elapsed() < Duration::from_secs(240), "job {job} did not end in time\n{}", log());
            std::thread::sleep(Duration::from_millis(200));
        }
        let shown = self.ask("scontrol", &["--oneliner", "show", "job", job]);
        let codes = shown.split_whitespace().filter_map(|word| word.strip_prefix("ExitCode="));
        let codes =
            codes.map(|code| code.split(':').next().and_then(|n| n.parse().ok()).expect("CODE:SIGNAL"));
        codes.max().unwrap_or_else(|| panic!("no exit code in {shown}"))
    }

    /// Trains with slurm/zero3.sbatch, waits, and returns its exit code and what it printed.
    fn train(&self, case: &Case, run: &str, words: &[&str]) -> (i32, String) {
        let job = self.submit(case, run, words);
        (self.exit_code(&job, case, run), Self::output(case, run))
    }

    /// Submits without waiting; returns the job's id.
    fn submit(&self, case: &Case, run: &str, words: &[&str]) -> String {
        let mut sbatch = self.sbatch(case, "slurm/zero3.sbatch", run, &[]);
        sbatch.args(Self::words(case, run, words));
        Self::job_id(sbatch)
    }

    /// The same with steps that take long enough to be interrupted.
    fn submit_slow(&self, case: &Case, run: &str, words: &[&str]) -> String {
        let mut sbatch = self.sbatch(case, "slurm/zero3.sbatch", run, &[]);
        sbatch.args(Self::words(case, run, words)).arg(FLAG).env("ZERO3_TEST_COLLECTIVE_DELAY_US", "2000");
        Self::job_id(sbatch)
    }

    /// A field of `scontrol show job`.
    fn field(&self, job: &str, name: &str) -> String {
        let text = self.ask("scontrol", &["--oneliner", "show", "job", job]);
        let found =
            text.split_whitespace().filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name);
        found.unwrap_or_else(|| panic!("no {name} of job {job} in {text}")).1.to_string()
    }

    /// Waits until a field of a job has one of the values.
    #[track_caller]
    fn until(&self, case: &Case, run: &str, job: &str, name: &str, values: &[&str]) -> String {
        let started = Instant::now();
        loop {
            let value = self.field(job, name);
            if values.contains(&value.as_str()) {
                return value;
            }
            if started.elapsed() > Duration::from_secs(200) {
                panic!("{name} of job {job} is {value}, not {values:?}\n{}", Self::output(case, run));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = Command::new(script("tests/slurm/down.sh")).arg(&self.dir).status();
        if !std::thread::panicking() {
            assert!(down.expect("bash runs tests/slurm/down.sh").success(), "the cluster did not go down");
        }
    }
}

#[test]
fn two_nodes_train_checkpoint_and_resume_with_the_bits_of_one_machine() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let (code, log) = cluster.train(&case, "slurm", &["train.steps=2", "optim.decay_steps=4"]);
    assert_eq!(code, 0, "{log}");
    let checkpoint = case.path("slurm/checkpoints/step_00000002");
    for rank in 0..4 {
        let file = checkpoint.join(format!("rank_{rank:04}_of_0004.h5"));
        assert!(file.is_file(), "no {}\n{log}", file.display());
    }

    // The same line again goes on from there.
    let (code, log) = cluster.train(&case, "slurm", &["optim.decay_steps=4"]);
    assert_eq!(code, 0, "{log}");
    assert_eq!(summary(&case.path("slurm"))["start_step"], 2, "{log}");

    case.train(2, "local", &["optim.decay_steps=4"]).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("slurm")), &Steps::read(&case.path("local")));
}

#[test]
fn the_acceptance_benchmark_sees_two_nodes_and_its_verdict_is_the_exit_code() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let deck = script("inputs/acceptance_quick.toml").display().to_string();
    let words = |run: &str| {
        [
            deck.clone(),
            format!("run.dir={}", case.path(run).display()),
            // The nodes claim more cores than the machine has: no rank or node may stand out by that.
            "device.slow_rank=0.99".into(),
            "device.gemm_n=128".into(),
            "device.memory_bytes=1048576".into(),
            "device.seconds=0.02".into(),
            "collectives.max_bytes=4096".into(),
            "collectives.slow_link=0.9999".into(),
            "storage.bytes_per_rank=100000".into(),
            "elasticity.soak_minutes=0".into(),
        ]
    };
    let mut sbatch = cluster.sbatch(&case, "slurm/acceptance.sbatch", "good", &[]);
    sbatch.args(words("good"));
    let (code, log) = cluster.ended(sbatch, &case, "good");
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("VALID  ACCEPTED"), "{log}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(case.path("good/report.json")).expect("a report"))
            .expect("JSON");
    let metrics: Vec<&serde_json::Value> = report["sections"]
        .as_array()
        .expect("sections")
        .iter()
        .flat_map(|s| s["metrics"].as_array().expect("metrics"))
        .collect();
    let metric = |name: &str| {
        *metrics.iter().find(|m| m["name"] == name).unwrap_or_else(|| panic!("no {name}\n{log}"))
    };
    assert_eq!(metric("inventory.n_hosts")["value"], 2.0);
    assert_eq!(metric("collectives.slow_nodes")["status"], "PASS");
    // The first ranks of two nodes make one link.
    assert_eq!(report["collectives"]["links"].as_array().expect("links").len(), 1);

    let mut sbatch = cluster.sbatch(&case, "slurm/acceptance.sbatch", "bad", &[]);
    sbatch.args(words("bad")).args(["run.sections=inventory,device", "limits.gemm_f32_gflops=1e9 -10%"]);
    let (code, log) = cluster.ended(sbatch, &case, "bad");
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("VALID  NOT ACCEPTED"), "{log}");
}

#[test]
fn a_bad_deck_fails_the_job_with_its_exit_code() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let (code, log) = cluster.train(&case, "run", &["optim.learning_rate=1"]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("optim.learning_rate"), "the log does not name the key\n{log}");
}

#[test]
fn a_signalled_job_goes_back_into_the_queue_and_ends_with_the_bits_of_an_uncut_run() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let words = ["train.steps=120", "train.eval_every=0", "log.every=20", "checkpoint.every=0"];
    let job = cluster.submit_slow(&case, "run", &words);
    until_row(&case.path("run"), 10);
    // As --signal=USR1@T does: to the tasks, not to the batch shell.
    let signalled = cluster.client("scancel").args(["--signal=USR1", &job]).status();
    assert!(signalled.expect("coreutils has timeout").success());
    let state =
        cluster.until(&case, "run", &job, "JobState", &["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"]);
    let log = std::fs::read_to_string(case.path("run.out")).expect("the output");
    assert_eq!((state.as_str(), cluster.field(&job, "Restarts").as_str()), ("COMPLETED", "1"), "{log}");
    // Both lives are in the one output.
    for part in [
        "stopped early: a rank received SIGUSR1",
        "back into the queue (restart 1)",
        "restored step",
        "finished: all 120",
    ] {
        assert!(log.contains(part), "{part:?} is not in\n{log}");
    }
    assert!(summary(&case.path("run"))["start_step"].as_u64().is_some_and(|s| s >= 10), "{log}");
    case.train(2, "local", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("run")), &Steps::read(&case.path("local")));
    let text = std::fs::read_to_string(case.path("run/timing.json")).expect("timing.json");
    let timing: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&timing["job_id"], &timing["n_restarts"]), (&job.as_str().into(), &1.into()), "{timing:#}");
    assert_eq!(timing["job_ends_from"], "scontrol show job");
    assert!(timing["lost_seconds"]["queue"].as_f64().is_some_and(|s| s > 0.0), "{timing:#}");
}

#[test]
fn a_cancelled_job_saves_and_does_not_come_back_and_a_word_too_many_is_a_code_of_its_own() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let job = cluster.submit(&case, "run", &["train.steps=100000", "log.every=0", "checkpoint.every=0"]);
    until_row(&case.path("run"), 5);
    cluster.ask("scancel", &[&job]);
    let code = cluster.exit_code(&job, &case, "run");
    let log = Cluster::output(&case, "run");
    assert_eq!((code, cluster.field(&job, "JobState").as_str()), (75, "CANCELLED"), "{log}");
    assert!(
        log.contains("cancelled, so it does not go back") && case.path("run/checkpoints/latest").exists(),
        "{log}"
    );

    // One rank complains; the others must not be ended by Slurm with a code of theirs meanwhile.
    let (code, log) = cluster.train(&case, "word", &["another.toml"]);
    assert_eq!(code, 2, "{log}");
}

#[test]
fn a_job_whose_node_goes_down_is_put_back_and_ends_on_the_node_that_is_left_with_the_same_bits() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let words = ["train.steps=100", "train.eval_every=0", "log.every=0", "checkpoint.every=10"];
    let job = cluster.submit_slow(&case, "run", &words);
    until_row(&case.path("run"), 20);
    cluster.ask("scontrol", &["update", "nodename=n2", "state=down", "reason=test"]);
    cluster.until(&case, "run", &job, "Restarts", &["1"]);
    // Its daemon lives, so it would come back by itself.
    cluster.ask("scontrol", &["update", "nodename=n2", "state=drain", "reason=test"]);
    cluster.until(&case, "run", &job, "JobState", &["PENDING"]);
    cluster.ask("scontrol", &["update", &format!("jobid={job}"), "NumNodes=1", "NumTasks=2"]);
    let state =
        cluster.until(&case, "run", &job, "JobState", &["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"]);
    let log = std::fs::read_to_string(case.path("run.out")).expect("the output");
    assert_eq!(state, "COMPLETED", "{log}");
    for part in
        ["Slurm has put it back", "on 1 node: n1 (ranks 0-1)", "(written by 4 ranks; ", "finished: all 100"]
    {
        assert!(log.contains(part), "{part:?} is not in\n{log}");
    }
    case.train(2, "local", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("run")), &Steps::read(&case.path("local")));
}

#[test]
fn a_killed_rank_fails_the_job_at_once() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let mut sbatch = cluster.sbatch(&case, "slurm/zero3.sbatch", "run", &[]);
    sbatch
        .args(Cluster::words(&case, "run", &["train.steps=100000"]))
        .arg(FLAG)
        .env("ZERO3_TEST_FAULT", "kill@step:3:3");
    let started = Instant::now();
    let (code, log) = cluster.ended(sbatch, &case, "run");
    assert!(code != 0 && code != 75, "{code}\n{log}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}\n{log}", started.elapsed());
}

#[test]
fn checkpoints_go_from_four_ranks_to_three_to_six_across_jobs() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let schedule = "optim.decay_steps=6";
    let (code, log) = cluster.train(&case, "four", &["train.steps=2", schedule]);
    assert_eq!(code, 0, "{log}");
    let restore = |from: &str, run: &str, options: &[&str], steps: &str| {
        let mut sbatch = cluster.sbatch(&case, "slurm/restore.sbatch", run, options);
        sbatch.arg(case.path(from)).args(Cluster::words(&case, run, &[steps, schedule]));
        let (code, log) = cluster.ended(sbatch, &case, run);
        assert_eq!(code, 0, "{log}");
        assert!(log.contains("restored step"), "{log}");
    };
    restore("four", "three", &["--nodes=1", "--ntasks-per-node=3"], "train.steps=4");
    restore("three", "six", &["--nodes=2", "--ntasks-per-node=3"], "train.steps=6");
    case.train(1, "local", &["train.steps=6"]).output().expect_success();
    let newest = |run: &str| case.path(run).join("checkpoints/step_00000006");
    let diff = zero3::checkpoint::diff(&newest("six"), &newest("local")).unwrap_or_else(|e| panic!("{e}"));
    assert!(diff.is_equal(), "{diff}");
    let rank_file = newest("six").join("rank_0005_of_0006.h5");
    assert!(rank_file.is_file(), "six ranks wrote it");
}

#[test]
fn an_array_trains_each_line_into_a_directory_of_its_own() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    std::fs::copy(case.path("text.txt"), case.path("a b.txt")).expect("a temporary file");
    std::fs::write(case.path("sweep.txt"), "optim.lr=1e-3\n'data.train=a b.txt' \"train.steps=3\"\n")
        .expect("a temporary file");
    let mut sbatch = cluster.sbatch(&case, "slurm/array_sweep.sbatch", "sweep_%a", &["--array=1-2"]);
    sbatch.arg(case.path("sweep.txt")).arg(case.path("runs")).arg(case.deck());
    let (code, log) = cluster.ended(sbatch, &case, "sweep_1");
    assert_eq!(code, 0, "{log}");
    assert_eq!([1, 2].map(|i| summary(&case.path(&format!("runs/{i}")))["step"].clone()), [4, 3]);
}

#[test]
fn tasks_that_cannot_meet_are_refused_and_mpirun_is_a_way() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    for kind in ["none", "pmi2"] {
        let mut srun = cluster.client("srun");
        srun.args(["-N2", "-n4", &format!("--mpi={kind}"), env!("CARGO_BIN_EXE_zero3"), "train"]);
        let out = srun.args(Cluster::words(&case, "never", &[])).output().expect("coreutils has timeout");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert_eq!(
            said.matches("srun --mpi=pmix --kill-on-bad-exit=1 -n 4").count(),
            1,
            "task 0 gives the advice\n{said}"
        );
    }
    assert!(!case.path("never").exists(), "nothing was started");

    let mut sbatch = cluster.sbatch(&case, "slurm/zero3.sbatch", "run", &[]);
    sbatch.args(Cluster::words(&case, "run", &[])).env("ZERO3_LAUNCHER", "mpirun");
    let (code, log) = cluster.ended(sbatch, &case, "run");
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("2 nodes: n1 (ranks 0-1), n2 (ranks 2-3)"), "{log}");
}

#[test]
fn an_mpirun_job_saves_when_slurm_signals_its_batch_shell() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let words = ["train.steps=100000", "train.eval_every=0", "log.every=0", "checkpoint.every=0"];
    for signal in ["USR1", "TERM"] {
        let mut sbatch = cluster.sbatch(&case, "slurm/zero3.sbatch", signal, &[]);
        sbatch.args(Cluster::words(&case, signal, &words));
        let job = Cluster::job_id(sbatch.env("ZERO3_LAUNCHER", "mpirun").env("ZERO3_MAX_RESTARTS", "0"));
        until_row(&case.path(signal), 5);
        let sent = cluster.client("scancel").args(["--batch", &format!("--signal={signal}"), &job]).status();
        assert!(sent.expect("coreutils has timeout").success());
        let code = cluster.exit_code(&job, &case, signal);
        assert_eq!(code, 75, "{}", Cluster::output(&case, signal));
        assert!(case.path(signal).join("checkpoints/latest").exists(), "{signal} saves");
    }
}

#[test]
fn a_chain_of_jobs_goes_on_until_the_run_is_done_with_the_bits_of_an_uncut_one() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    // Without a checkpoint at its end a finished run is known by its summary.
    let words = ["train.steps=150", "train.eval_every=0", "log.every=0", "checkpoint.every=0"];
    // chain.sh names no output file, so sbatch takes this one; %j is the job.
    let mut chain = cluster.client(script("slurm/chain.sh").to_str().expect("a path in UTF-8"));
    chain.arg("4").args(Cluster::words(&case, "run", &words)).arg(FLAG).current_dir(case.path(""));
    chain.env("SBATCH_OUTPUT", case.path("%j.out")).env("SBATCH_TIMELIMIT", "5");
    // Steps that take long enough to be interrupted.
    chain.env("ZERO3_TEST_COLLECTIVE_DELAY_US", "500");
    let chain = Cluster::environment(&mut chain).output().expect("coreutils has timeout");
    assert!(chain.status.success(), "{}", String::from_utf8_lossy(&chain.stderr));
    let text = String::from_utf8_lossy(&chain.stdout).into_owned();
    let jobs: Vec<&str> = text.lines().collect();
    assert_eq!(jobs.len(), 4, "{text}");
    // Two jobs are told to stop, the third comes to the end, the fourth has nothing to do.
    for job in &jobs[..2] {
        until_row(&case.path("run"), Steps::n_rows(&case.path("run")) + 10);
        let signalled = cluster.client("scancel").args(["--signal=USR1", job]).status();
        assert!(signalled.expect("coreutils has timeout").success());
        assert_eq!(cluster.exit_code(job, &case, job), 0, "{}", Cluster::output(&case, job));
    }
    for (job, said) in jobs.iter().zip([
        "stopped early",
        "stopped early",
        "finished: all 150",
        "summary.json holds step 150",
    ]) {
        assert_eq!(cluster.exit_code(job, &case, job), 0, "{}", Cluster::output(&case, job));
        assert!(Cluster::output(&case, job).contains(said), "{said}: {}", Cluster::output(&case, job));
    }
    case.train(2, "local", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("run")), &Steps::read(&case.path("local")));
}

/// Slurm's shortest limit is a minute, and Slurm looks for limits every half a minute: three jobs at once.
#[test]
#[ignore = "a minute of waiting for Slurm's clock: make test-slurm runs it"]
fn slurms_own_signal_the_limit_it_tells_and_the_limit_that_fires_each_leave_a_checkpoint() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let ranks_ask_in_vain = case.path("no_scontrol.sh");
    std::fs::create_dir(case.path("fake")).expect("a temporary directory");
    for (path, text) in [
        (case.path("fake/scontrol"), "#!/bin/sh\nexit 1\n".to_string()),
        (
            ranks_ask_in_vain.clone(),
            format!(
                "#!/bin/sh\nunset SLURM_JOB_END_TIME\nPATH={}:$PATH exec {} \"$@\"\n",
                case.path("fake").display(),
                env!("CARGO_BIN_EXE_zero3")
            ),
        ),
    ] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&path, text).expect("a temporary file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a temporary file");
    }
    let words = [
        "train.steps=1000000",
        "train.eval_every=0",
        "log.every=0",
        "checkpoint.every=0",
        "run.job_comment=true",
    ];
    // USR2 asks for a report, no more.
    let submit = |run: &str, signal: &str, program: Option<&Path>| {
        let options = ["--nodes=1", "--ntasks-per-node=2", "--time=1", signal];
        let mut sbatch = cluster.sbatch(&case, "slurm/zero3.sbatch", run, &options);
        sbatch.args(Cluster::words(&case, run, &words)).arg(FLAG).env("ZERO3_MAX_RESTARTS", "0");
        sbatch.env("ZERO3_TEST_COLLECTIVE_DELAY_US", "2000");
        program.map(|program| sbatch.env("ZERO3", program));
        Cluster::job_id(sbatch)
    };
    let jobs = [
        ("signal", submit("signal", "--signal=USR1@30", None), "a rank received SIGUSR1"),
        ("told", submit("told", "--signal=USR2@1", None), "the time limit is near"),
        ("fires", submit("fires", "--signal=USR2@1", Some(&ranks_ask_in_vain)), "a rank received SIGTERM"),
    ];
    // A limit that has passed, instead of another minute.
    until_row(&case.path("fires"), 5);
    cluster.ask("scontrol", &["update", &format!("jobid={}", jobs[2].1), "EndTime=now+1seconds"]);
    for (run, job, why) in &jobs {
        cluster.exit_code(job, &case, run);
        let log = Cluster::output(&case, run);
        assert!(log.contains(why) && log.contains("zero3 ended with exit code 75"), "{run}: {why}\n{log}");
        assert!(case.path(run).join("checkpoints/latest").exists(), "{run}\n{log}");
    }
    assert_eq!(cluster.field(&jobs[2].1, "JobState"), "TIMEOUT", "Slurm's limit has fired");
    let shown = cluster.ask("scontrol", &["show", "job", &jobs[0].1]);
    assert!(
        shown.contains("Comment=zero3: step ")
            && shown.contains("of 1000000, stopped early, checkpoint saved"),
        "{shown}"
    );
    // No scontrol, no comment: one line, and nothing else.
    let log = Cluster::output(&case, "fires");
    assert_eq!(log.matches("run.job_comment: the comment of job").count(), 1, "{log}");
}

#[test]
fn gpus_that_slurm_hands_out_are_left_alone_by_a_deck_that_does_not_ask_for_them() {
    let cluster = Cluster::up_with_gpus(2, 2);
    let case = Case::tiny();
    let run = |run: &str, gpus: &str, words: &[&str]| {
        let mut sbatch = cluster.sbatch(&case, "slurm/zero3.sbatch", run, &[gpus]);
        sbatch.args(Cluster::words(&case, run, words));
        cluster.ended(sbatch, &case, run)
    };
    for (name, gpus) in [("node", "--gpus-per-node=2"), ("task", "--gpus-per-task=1")] {
        let (code, log) = run(name, gpus, &["run.backend=auto"]);
        assert_eq!(code, 0, "{log}");
        assert_eq!(Steps::n_rows(&case.path(name)), 4, "{log}");
    }
    // There is no driver behind these GPUs.
    let (code, log) = run("cuda", "--gpus-per-node=2", &["run.backend=cuda"]);
    assert_eq!(code, 5, "{log}");
    assert!(log.contains("the NVIDIA driver cannot be loaded"), "{log}");
    assert!(!case.path("cuda/steps.csv").exists(), "nothing is trained on another backend instead\n{log}");
}

#[test]
fn a_cluster_goes_down_without_a_trace_when_its_test_fails() {
    let mut dir = PathBuf::new();
    let failing = std::panic::AssertUnwindSafe(|| {
        let cluster = Cluster::up(2);
        dir.clone_from(&cluster.dir);
        let job = "srun --mpi=none sleep 600";
        let submitted = cluster.client("sbatch").args(["-N2", "--output=/dev/null", "--wrap", job]).status();
        assert!(submitted.expect("coreutils has timeout").success());
        let mut steps = Vec::new();
        for _ in 0..100 {
            steps = processes_of(&cluster.dir, "sleep");
            if steps.len() >= 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(steps.len(), 2, "one task on each node");
        panic!("as a failing test does");
    });
    let panic = std::panic::catch_unwind(failing).expect_err("it panics");
    assert_eq!(
        panic.downcast_ref::<&str>(),
        Some(&"as a failing test does"),
        "{:?}",
        panic.downcast_ref::<String>()
    );
    assert!(!dir.exists(), "{} is left", dir.display());
    assert_eq!(processes_of(&dir, ""), Vec::<String>::new(), "processes are left");
}

/// Command lines that contain `part`, of live processes with the cluster's SLURM_CONF or directory in sight.
fn processes_of(dir: &Path, part: &str) -> Vec<String> {
    let mark = dir.to_str().expect("made here").to_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("a Linux machine").flatten() {
        let read = |name: &str| {
            let bytes = std::fs::read(entry.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let command_line = read("cmdline");
        let starts_with_part = command_line.split(' ').next().is_some_and(|program| program.contains(part));
        if starts_with_part && (command_line.contains(&mark) || read("environ").contains(&mark)) {
            found.push(command_line);
        }
    }
    found
}
