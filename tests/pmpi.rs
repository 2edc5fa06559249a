//! The bytes that zero3 says it received are the bytes it asked MPI or its neighbours' memory for, counted by
//! a library in between.

mod common;

use common::{Case, Run, Steps, summary};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds tests/pmpi/count.c once and says where the library is.
fn counting_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pmpi/count.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libzero3_pmpi_count.so");
        let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
        let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        let built = Command::new(&mpicc).args(flags).arg(&library).arg(&source).output();
        let built = built.unwrap_or_else(|e| panic!("the test needs {mpicc}: {e}. `make setup` installs it"));
        assert!(built.status.success(), "{mpicc}: {}", String::from_utf8_lossy(&built.stderr));
        library
    })
}

/// What the library counted on one rank.
struct Counted(serde_json::Value);

impl Counted {
    fn bytes(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// Helper threads, and communicators beside those of groups.
    fn data_queues(&self) -> (u64, u64) {
        (self.bytes("queue_threads"), self.calls("MPI_Comm_dup"))
    }

    fn calls(&self, name: &str) -> u64 {
        self.0["calls"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// Trains the tiny deck under the library; the case holds the run directory `run`.
fn train_counted(n_ranks: usize, words: &[&str], env: &[(&str, &str)]) -> (Case, Vec<Counted>) {
    train_counted_as(n_ranks, words, |run| env.iter().fold(run, |run, (name, value)| run.env(name, value)))
}

/// The same for a run that is told where, on what or how.
fn train_counted_as(n_ranks: usize, words: &[&str], told: impl FnOnce(Run) -> Run) -> (Case, Vec<Counted>) {
    let case = Case::tiny();
    let run = told(case.train(n_ranks, "run", words));
    run.env("LD_PRELOAD", counting_library()).env("ZERO3_PMPI_DIR", case.path("")).output().expect_success();
    let read = |rank: usize| {
        let path = case.path(&format!("rank_{rank}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Counted(serde_json::from_str(&text).expect("the library writes JSON"))
    };
    let counted = (0..n_ranks).map(read).collect();
    (case, counted)
}

/// How slices travel.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Messages,
    Reading,
}

/// Returns how many messages the first rank received.
fn counters_agree(n_ranks: usize, way: Way, env: &[(&str, &str)]) -> u64 {
    let single_copy = format!("run.single_copy={}", way == Way::Reading);
    let (case, counted) = train_counted(n_ranks, &[&single_copy], env);
    let summary = summary(&case.path("run"));
    let mut gradients = 0;
    for (rank, counted) in counted.iter().enumerate() {
        let reported = |name: &str| {
            let bytes = &summary["received_bytes"][rank][name];
            bytes.as_u64().unwrap_or_else(|| panic!("received_bytes[{rank}].{name} is {bytes}"))
        };
        let gathered = reported("train_all_gather") + reported("eval_all_gather");
        let reduced = reported("train_reduce_scatter");
        let by_messages = (counted.bytes("iallgather_bytes"), counted.bytes("irecv_bytes"));
        let by_reading = (counted.bytes("gather_read_bytes"), counted.bytes("reduce_read_bytes"));
        let (used, unused) = match way {
            Way::Messages => (by_messages, by_reading),
            Way::Reading => (by_reading, by_messages),
        };
        assert_eq!((gathered, reduced), used, "rank {rank} of {n_ranks}: zero3 left, calls right");
        assert_eq!(
            counted.data_queues(),
            (2, 2),
            "rank {rank} of {n_ranks}: threads and communicators of its queues"
        );
        assert_eq!(
            unused,
            (0, 0),
            "rank {rank} of {n_ranks}: bytes that travelled another way than asked for"
        );
        for other in
            ["MPI_Ireduce_scatter", "MPI_Ireduce_scatter_block", "MPI_Reduce_scatter_block", "MPI_Allgatherv"]
        {
            assert_eq!(counted.calls(other), 0, "{other} moves bytes that nobody counts");
        }
        assert_eq!(gathered > 0, n_ranks > 1, "rank {rank} of {n_ranks} gathered {gathered} bytes");
        gradients += reduced;
    }
    assert_eq!(gradients > 0, n_ranks > 1, "{n_ranks} ranks reduced {gradients} bytes");
    // The rows of the step log add up to the totals.
    let steps = Steps::read(&case.path("run"));
    let from_rows = steps.numbers("reduce_scatter_bytes").iter().sum::<f64>() * n_ranks as f64;
    assert_eq!(from_rows.round() as u64, gradients, "steps.csv left, calls right");
    counted[0].calls("MPI_Iallgather") + counted[0].calls("MPI_Irecv")
}

#[test]
fn counters_agree_on_two_ranks() {
    counters_agree(2, Way::Messages, &[]);
    counters_agree(2, Way::Reading, &[]);
}

#[test]
fn counters_agree_on_four_ranks_with_an_uneven_last_micro_step() {
    counters_agree(4, Way::Messages, &[]);
    counters_agree(4, Way::Reading, &[]);
}

#[test]
fn counters_agree_on_one_rank_which_receives_nothing() {
    counters_agree(1, Way::Reading, &[]);
}

#[test]
fn counters_agree_when_long_messages_are_cut() {
    let whole = counters_agree(3, Way::Messages, &[]);
    // Shorter than every matrix of the tiny model, and a divisor of none.
    let cut = counters_agree(3, Way::Messages, &[("ZERO3_TEST_MAX_MESSAGE_NUMEL", "37")]);
    assert!(cut > 2 * whole, "{cut} messages instead of {whole}: they were not cut");
}

#[test]
fn a_group_that_is_control_for_nccl_has_no_helper_threads_and_no_data_communicators() {
    let words = ["run.backend=cuda", "train.steps=1", "train.eval_every=0", "checkpoint.every=0"];
    let (_, counted) = train_counted_as(2, &words, |run| run.on_doubles(2, "demand"));
    for (rank, counted) in counted.iter().enumerate() {
        assert_eq!(counted.data_queues(), (0, 0), "rank {rank}");
    }
}

#[test]
fn no_training_step_broadcasts() {
    let calls = |steps: &str| {
        let (_, counted) = train_counted(2, &[steps, "train.eval_every=0", "checkpoint.every=0"], &[]);
        ["MPI_Bcast", "MPI_Ibcast"].map(|name| counted[0].calls(name))
    };
    assert_eq!(calls("train.steps=2"), calls("train.steps=5"), "broadcasts grew with the steps");
}
