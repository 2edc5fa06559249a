//! The bytes that zero3 says it received are the bytes it asked MPI for, counted by a library between the two.

mod common;

use common::{Case, Steps, summary};
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

    fn calls(&self, name: &str) -> u64 {
        self.0["calls"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// Trains the tiny deck under the library; the case holds the run directory `run`.
fn train_counted(n_ranks: usize, words: &[&str]) -> (Case, Vec<Counted>) {
    let case = Case::tiny();
    let run = case.train(n_ranks, "run", words);
    run.env("LD_PRELOAD", counting_library()).env("ZERO3_PMPI_DIR", case.path("")).output().expect_success();
    let read = |rank: usize| {
        let path = case.path(&format!("rank_{rank}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Counted(serde_json::from_str(&text).expect("the library writes JSON"))
    };
    let counted = (0..n_ranks).map(read).collect();
    (case, counted)
}

/// Sum of a column of whole numbers.
fn total(steps: &Steps, column: &str) -> u64 {
    steps.numbers(column).iter().sum::<f64>() as u64
}

fn counters_agree(n_ranks: usize, words: &[&str]) {
    let (case, counted) = train_counted(n_ranks, words);
    let steps = Steps::read(&case.path("run"));
    let summary = summary(&case.path("run"));
    let evaluation_bytes = summary["evaluation_bytes"].as_u64().expect("a whole number");

    // Every rank gathers the same slices as often as any other.
    let all_gather_bytes = total(&steps, "all_gather_bytes");
    assert_eq!(all_gather_bytes, total(&steps, "all_gather_bytes_max"), "ranks gathered differently");
    for (rank, counted) in counted.iter().enumerate() {
        let expected = all_gather_bytes + evaluation_bytes;
        assert_eq!(counted.bytes("iallgather_bytes"), expected, "training + evaluation, rank {rank} of {n_ranks}");
    }
    // In an uneven last micro-step a rank with a micro-batch receives one contribution less, so compare the sum.
    let mean_times_ranks = steps.numbers("reduce_scatter_bytes").iter().sum::<f64>() * n_ranks as f64;
    let received: u64 = counted.iter().map(|c| c.bytes("irecv_bytes")).sum();
    assert_eq!(received, mean_times_ranks.round() as u64, "gradients, all {n_ranks} ranks");
    assert!(n_ranks == 1 || received > 0, "nothing was reduced");
}

#[test]
fn counters_agree_on_two_ranks() {
    counters_agree(2, &[]);
}

#[test]
fn counters_agree_on_four_ranks_with_an_uneven_last_micro_step() {
    counters_agree(4, &[]);
}

#[test]
fn counters_agree_on_one_rank_which_receives_nothing() {
    counters_agree(1, &[]);
}

#[test]
fn no_training_step_broadcasts() {
    let calls = |steps: &str| {
        let (_, counted) = train_counted(2, &[steps, "train.eval_every=0", "checkpoint.every=0"]);
        ["MPI_Bcast", "MPI_Ibcast"].map(|name| counted[0].calls(name))
    };
    assert_eq!(calls("train.steps=2"), calls("train.steps=5"), "broadcasts grew with the steps");
}
