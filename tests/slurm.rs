//! slurm/zero3.sbatch on a real Slurm: slurmctld and several slurmd on this machine, brought up by tests/slurm/up.sh.

mod common;

use common::{Case, Steps, assert_same_curve, summary};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Under /tmp, because the paths of sockets must be short.
        let dir = tempfile::Builder::new().prefix("zero3-slurm-").tempdir_in("/tmp").expect("/tmp is writable").keep();
        let cluster = Cluster { dir, _one: one };
        let up = Command::new(script("tests/slurm/up.sh")).arg(&cluster.dir).arg(n_nodes.to_string()).output();
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

    /// Submits slurm/zero3.sbatch from the case's directory, waits, and returns its exit code and what it printed.
    fn train(&self, case: &Case, run: &str, words: &[&str]) -> (i32, String) {
        let printed = case.path(&format!("{run}.out"));
        let job = self
            .client("sbatch")
            .arg("--wait")
            .arg(format!("--output={}", printed.display()))
            .arg(script("slurm/zero3.sbatch"))
            .arg(case.deck())
            .arg(format!("run.dir={}", case.path(run).display()))
            .args(words)
            .env("ZERO3", env!("CARGO_BIN_EXE_zero3"))
            // The nodes claim more cores than the machine has: without it ranks spin on cores that others need.
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .current_dir(case.path(""))
            .output()
            .expect("coreutils has timeout");
        let log = std::fs::read_to_string(&printed).unwrap_or_default();
        let client = String::from_utf8_lossy(&job.stderr);
        assert_ne!(job.status.code(), Some(124), "the job did not end in time\n{client}\n{log}");
        (job.status.code().expect("sbatch exits"), format!("{client}{log}"))
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
fn a_bad_deck_fails_the_job_with_its_exit_code() {
    let cluster = Cluster::up(2);
    let case = Case::tiny();
    let (code, log) = cluster.train(&case, "run", &["optim.learning_rate=1"]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("optim.learning_rate"), "the log does not name the key\n{log}");
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
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"as a failing test does"), "{:?}", panic.downcast_ref::<String>());
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
