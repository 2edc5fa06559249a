//! Two shard groups in one world: what hybrid sharding will stand on. Communicators come from the mesh, and
//! nothing below `cli` knows the world.
//!
//! A process of this test is either the test or, started by it under mpirun, a rank; so there is a `main`,
//! which speaks the test harness's language as far as `cargo test` needs it.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Steps, assert_same_curve, summary};
use std::collections::BTreeMap;
use std::panic;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use zero3::backend::cpu::{Cpu, CpuComm, CpuDevice};
use zero3::backend::mesh::{Dim, Mesh};
use zero3::backend::mpi::{Universe, abort_job};
use zero3::config::Deck;
use zero3::error::Exit;
use zero3::train::state::Start;
use zero3::train::{self, Job};

/// Set for a rank: the directory of the case.
const CASE_DIR: &str = "ZERO3_TEST_SHARD_GROUPS";
/// Options of the harness that take a value in the next argument.
const WITH_VALUE: [&str; 6] = ["--skip", "--test-threads", "--format", "--color", "--logfile", "-Z"];

const NAME: &str = "two_shard_groups_in_one_world_train_like_one_rank";

fn main() -> ExitCode {
    if let Some(dir) = std::env::var_os(CASE_DIR) {
        rank(Path::new(&dir));
        return ExitCode::SUCCESS;
    }
    match Wanted::from_args() {
        Wanted::List => println!("{NAME}: test"),
        Wanted::Nothing => {
            println!(
                "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered \
                 out\n"
            );
        }
        Wanted::Run => {
            println!("\nrunning 1 test");
            let passed = panic::catch_unwind(two_shard_groups_in_one_world_train_like_one_rank).is_ok();
            let (word, result) =
                if passed { ("ok", "ok. 1 passed; 0") } else { ("FAILED", "FAILED. 0 passed; 1") };
            println!("test {NAME} ... {word}");
            println!("\ntest result: {result} failed; 0 ignored; 0 measured; 0 filtered out\n");
            return ExitCode::from(if passed { 0 } else { 101 });
        }
    }
    ExitCode::SUCCESS
}

/// What the arguments ask for.
enum Wanted {
    Run,
    List,
    Nothing,
}

impl Wanted {
    fn from_args() -> Self {
        let matches = |filter: &str, exact: bool| if exact { NAME == filter } else { NAME.contains(filter) };
        let all: Vec<String> = std::env::args().skip(1).collect();
        let exact = all.iter().any(|arg| arg == "--exact");
        let (mut filters, mut skipped) = (Vec::new(), false);
        let mut args = all.iter();
        while let Some(arg) = args.next() {
            if WITH_VALUE.contains(&arg.as_str()) {
                let value = args.next();
                skipped |= arg == "--skip" && value.is_some_and(|filter| matches(filter, exact));
            } else if !arg.starts_with('-') {
                filters.push(arg.as_str());
            }
        }
        let named = filters.is_empty() || filters.iter().any(|filter| matches(filter, exact));
        let ignored_only = all.iter().any(|arg| arg == "--ignored" || arg == "--bench");
        match (named && !skipped && !ignored_only, all.iter().any(|arg| arg == "--list")) {
            (false, _) => Wanted::Nothing,
            (true, true) => Wanted::List,
            (true, false) => Wanted::Run,
        }
    }
}

fn two_shard_groups_in_one_world_train_like_one_rank() {
    let case = Case::tiny();
    case.train(1, "alone", &[]).output().expect_success();
    let myself = std::env::current_exe().expect("a running program has a file");
    Run::new(4).program(myself).env(CASE_DIR, case.path("")).dir(&case.path("")).output().expect_success();

    let read = |run: &str| (Steps::read(&case.path(run)), State::read(&case.path(run), 4));
    let (curve, state) = read("alone");
    for group in ["group_0", "group_1"] {
        let (group_curve, group_state) = read(group);
        assert_eq!(group_state.manifest.world_size, 2, "{group} wrote with its own two ranks");
        assert_same_curve(&curve, &group_curve);
        assert_same_state(&state, &group_state);
        let summary = summary(&case.path(group));
        assert_eq!(summary["world_size"], 2);
        assert_eq!(summary["steps_off_plan"], 0, "{group} moved what two ranks move\n{summary:#}");
        assert_eq!(summary["resident"]["bytes"]["planned"], summary["resident"]["bytes"]["measured"]);
    }
}

/// One of four ranks: it trains with its shard group, into the group's own run directory.
fn rank(case_dir: &Path) {
    let universe = Universe::start().expect("MPI starts once");
    let world = universe.world();
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        // A rank that panics must not leave the others waiting.
        abort_job(Exit::Internal);
    }));
    universe.check_threading().expect("a library with threads");

    let mesh = Mesh::replicated(2, 2);
    let world_rank = world.rank();
    let group = world.along(&mesh, Dim::Shard).expect("a communicator");
    let comm = CpuComm::connect(group, false).expect("two more, and their threads");
    let run_dir = case_dir.join(format!("group_{}", mesh.coordinate(world_rank, Dim::Replicate)));
    let overrides = [("run.dir".to_string(), run_dir.display().to_string())];
    let job = Job {
        host: "one host".into(),
        deck: Deck::load(&case_dir.join("deck.toml"), &overrides).unwrap_or_else(|e| panic!("{e}")),
        start: Start::Auto,
        versions: BTreeMap::new(),
        relaunch: String::new(),
        launcher: String::new(),
        is_terminal: false,
        poison: true,
        started: Instant::now(),
        abort: |exit| abort_job(exit),
        quiet: false,
        on_step: None,
    };
    let device = CpuDevice::new(1).expect("one thread");
    let exit =
        train::run::<Cpu>(&device, &comm, &job).unwrap_or_else(|e| panic!("world rank {world_rank}: {e}"));
    assert_eq!(exit.0, Exit::Finished);
}
