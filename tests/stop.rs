//! Runs that are told to stop, run out of time, or hang: the right code, nothing lost, and the same bits in
//! the end.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Running, Steps, assert_same_curve, summary, until, until_row};
use std::path::Path;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(90);

fn timing(run_dir: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(run_dir.join("timing.json")).expect("timing.json");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_run_cut_three_times_by_signals_has_the_bits_of_the_uncut_one() {
    let case = Case::tiny();
    let words = ["train.steps=240", "log.every=0", "train.eval_every=60"];
    case.train(2, "whole", &words).output().expect_success();
    let run_dir = case.path("run");
    // No checkpoint is due: the stop alone saves.
    let cut = |n_ranks: usize, after: usize, saves: &[&str], interfere: &dyn Fn(&Running), said: &str| {
        let running = case.train(n_ranks, "run", &[&words[..], saves].concat()).start();
        until_row(&run_dir, after);
        interfere(&running);
        let output = running.output().expect_code(75).expect_text("stopped early").expect_text(said);
        let hint = output
            .text()
            .lines()
            .find(|line| line.contains("mpirun -n 3"))
            .expect("how to go on")
            .to_string();
        assert!(hint.ends_with("train.steps=240"), "to the steps of the deck: {hint}");
        let summary = summary(&run_dir);
        assert_eq!(summary["exit_code"], 75, "{output}");
        assert!(summary["last_checkpoint"].is_string(), "{summary:#}");
        let step = summary["step"].as_u64().expect("a step");
        assert!((after as u64..240).contains(&step), "stopped at {step}\n{output}");
    };
    // One rank, not the first; the other learns of it.
    cut(2, 20, &["checkpoint.every=0"], &|run| run.signal_rank(1, "USR1"), "SIGUSR1");
    // All of them, on another rank count.
    let beside = ["checkpoint.every=0", "checkpoint.async_save=true"];
    cut(3, 70, &beside, &|run| (0..3).for_each(|rank| run.signal_rank(rank, "TERM")), "SIGTERM");
    // Again and again until it is gone, which hits the save too.
    let storm = |run: &Running| {
        let pid = run.pid_of_rank(0).to_string();
        for _ in 0..200 {
            let sent = std::process::Command::new("sh")
                .args(["-c", "kill -USR1 \"$1\" 2>/dev/null", "sh", &pid])
                .status();
            if !sent.expect("there is a shell").success() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    cut(2, 120, &["checkpoint.every=25", "checkpoint.async_save=true"], &storm, "SIGUSR1");
    case.train(1, "run", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&run_dir));
    assert_same_state(&State::read(&case.path("whole"), 240), &State::read(&run_dir, 240));
    let timing = timing(&run_dir);
    assert_eq!(timing["step"], 240);
    let goodput = timing["goodput"].as_f64().expect("a number");
    assert!(goodput > 0.0 && goodput < 1.0, "{timing:#}");
    let restore = timing["lost_seconds"]["restore"].as_f64().expect("a number");
    assert!(restore > 0.0, "three restores took time: {timing:#}");
}

#[test]
fn a_signal_before_the_deck_is_read_is_not_lost() {
    let case = Case::tiny();
    // Rank 1 takes a second to come to the deck, and the signal comes to rank 0 meanwhile.
    let running = case.train(2, "run", &["train.steps=100000", "log.every=0"]);
    let running = running.env("ZERO3_TEST_FAULT", "slow@deck:1:0").start();
    let pid = running.pid_of_rank(0);
    let holds = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let blocked = status.lines().find_map(|l| l.strip_prefix("SigBlk:")).map(str::trim).unwrap_or("0");
        // Bit n-1 is signal n: SIGTERM is 15.
        u64::from_str_radix(blocked, 16).expect("hexadecimal") >> 14 & 1 == 1
    };
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < SOON, "SIGTERM is never held back");
        std::thread::sleep(Duration::from_millis(2));
    }
    running.signal_rank(0, "TERM");
    let output = running.output().expect_code(75).expect_text("a rank received SIGTERM");
    // On a machine so busy that the signal was not heard within some seconds nothing was started, and nothing
    // is lost.
    if !output.text().contains("nothing was started") {
        assert_eq!(summary(&case.path("run"))["step"], 1, "{output}");
    }
}

/// A start whose rank 0 gets no further than the deck, as on a file server that does not answer.
fn hangs_at_the_deck(case: &Case, n_ranks: usize, words: &[&str]) -> Run {
    case.train(n_ranks, "run", words).env("ZERO3_TEST_FAULT", "hang@deck:0:0")
}

#[test]
fn a_start_that_stands_still_names_who_has_not_come() {
    let case = Case::tiny();
    let running = case.train(3, "run", &["run.timeout=3", "train.steps=100000", "log.every=0"]).start();
    let pid = running.pid_of_rank(1);
    Running::signal_pid(pid, "STOP");
    // Wherever it was in its start, or in its first steps.
    let output = running.output().expect_code(5);
    let named = [format!("rank 1 (process {pid}) is not past"), "rank 1 on ".into()];
    assert!(named.iter().any(|words| output.text().contains(words)), "{output}");

    for n_ranks in [0, 2] {
        let output = hangs_at_the_deck(&case, n_ranks, &["run.timeout=2"])
            .output()
            .expect_code(5)
            .expect_text("at `read the deck` (run.timeout)");
        assert!(output.text().contains("rank 0 (process "), "{output}");
    }
}

#[test]
fn a_signal_ends_a_start_that_gets_nowhere() {
    let case = Case::tiny();
    let running = hangs_at_the_deck(&case, 1, &[]).start();
    let pid = running.pid_of_rank(0);
    let comm = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let watched = || {
        comm().any(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.starts_with("z3 2")))
    };
    until("the watch over the deck", watched);
    running.signal_rank(0, "TERM");
    running
        .output()
        .expect_code(75)
        .expect_text("a rank received SIGTERM")
        .expect_text("still at `read the deck`");
}

#[test]
fn test_hooks_act_with_the_flag_alone_and_are_said_everywhere() {
    let case = Case::tiny();
    // `env` sets the variable behind the harness, which would add the flag.
    let run_dir = format!("run.dir={}", case.path("plain").display());
    let plain = Run::new(1).program("env").arg("ZERO3_TEST_SPOIL=0:1").arg(env!("CARGO_BIN_EXE_zero3"));
    let plain = plain.arg("train").arg(case.deck()).arg(run_dir).output().expect_success();
    plain.expect_text("ZERO3_TEST_SPOIL set but ignored");
    assert!(summary(&case.path("plain")).get("test_hooks").is_none());

    let spoilt =
        case.train(1, "run", &["train.steps=2"]).env("ZERO3_TEST_SPOIL", "0:1").output().expect_success();
    spoilt.expect_text("test hooks active: ZERO3_TEST_SPOIL=0:1");
    // What goes on from its checkpoint says so too.
    case.train(1, "run", &[]).output().expect_success();
    let said = &summary(&case.path("run"))["test_hooks"];
    assert_eq!(said, &serde_json::json!(["ZERO3_TEST_SPOIL=0:1"]));
    for step in [2, 4] {
        let path = case.path(&format!("run/checkpoints/step_{step:08}/manifest.json"));
        let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(&manifest["test_hooks"], said);
    }
}

#[test]
fn a_signal_the_deck_does_not_name_still_ends_the_run() {
    let case = Case::tiny();
    let words = [
        "train.steps=100000",
        "train.eval_every=0",
        "checkpoint.every=0",
        "run.stop_signals=USR1",
        "log.every=0",
    ];
    let running = case.train(2, "run", &words).start();
    until_row(&case.path("run"), 5);
    running.signal_rank(1, "TERM");
    let output = running.output();
    assert!(![0, 75].contains(&output.code) && output.elapsed < SOON, "{output}");
}

#[test]
fn a_run_stops_in_time_to_save_and_goes_on_later() {
    let case = Case::tiny();
    let words = [
        "train.steps=1000000",
        "train.eval_every=0",
        "checkpoint.every=0",
        "log.every=0",
        "run.time_limit=12s",
    ];
    for n_restarts in 0..2 {
        let before = Steps::n_rows(&case.path("run"));
        let output =
            case.train(2, "run", &words).output().expect_code(75).expect_text("the time limit is near");
        assert!(output.elapsed < Duration::from_secs(14), "start {n_restarts}: {output}");
        assert!(Steps::read(&case.path("run")).rows.len() > before, "it gets on");
    }
    let timing = timing(&case.path("run"));
    assert_eq!(timing["job_ends_from"], "run.time_limit");
    for key in ["step_seconds_median", "save_seconds", "projected_end_unix", "startup_seconds"] {
        assert!(timing[key].as_f64().is_some_and(|n| n > 0.0), "{key}: {timing:#}");
    }
    assert!(timing["recommended_signal"].as_str().is_some_and(|s| s.starts_with("USR1@")), "{timing:#}");
}

/// Lost time by class, and all of it with the useful time over the wall time.
fn lost_and_sum(run_dir: &Path) -> (serde_json::Value, f64) {
    let timing = timing(run_dir);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let lost: f64 = timing["lost_seconds"].as_object().expect("classes").values().map(number).sum();
    let share = (lost + number(&timing["useful_step_seconds"])) / number(&timing["wall_seconds"]);
    (timing["lost_seconds"].clone(), share)
}

#[test]
fn useful_and_lost_time_add_up_to_wall_time_over_a_slow_rank_and_a_killed_job() {
    let case = Case::tiny();
    let words = ["train.steps=60", "checkpoint.every=20", "train.eval_every=10", "log.every=0"];
    let slow = case.train(2, "run", &["train.steps=30", "optim.decay_steps=60"]).args(&words[1..]);
    let slow_steps = [1, 2, 3, 5].map(|step| format!("slow@step:1:{step}")).join(",");
    let slow = slow.env("ZERO3_TEST_FAULT", slow_steps).output().expect_success();
    // Where mpirun gives a rank a second to end, as Open MPI does unless it is told otherwise.
    if slow.text().contains("Open MPI") {
        let warned = slow.text().matches("but mpirun kills its ranks 1 s after receiving SIGTERM").count();
        assert_eq!(warned, 1, "{slow}");
    }
    let run_dir = case.path("run");
    let (lost, share) = lost_and_sum(&run_dir);
    // Seconds that one of two ranks slept: the mean rank lost half of them.
    assert!(lost["stragglers"].as_f64().is_some_and(|s| s > 1.6), "{lost:#}");
    assert!((share - 1.0).abs() < 0.01, "{share}: {lost:#}");

    let killed = case.train(2, "run", &words).env("ZERO3_TEST_FAULT", "kill@step:0:48").output();
    assert_ne!(killed.code, 0, "{killed}");
    let before = lost["recomputed_steps"].as_f64().expect("a number");
    case.train(2, "run", &words).output().expect_success();
    let (lost, share) = lost_and_sum(&run_dir);
    assert!((share - 1.0).abs() < 0.01, "{share}: {lost:#}");
    assert!(lost["recomputed_steps"].as_f64().is_some_and(|s| s >= before), "{lost:#}");
    for class in ["restore", "startup", "evaluation", "checkpoint_stall", "queue"] {
        assert!(lost[class].as_f64().is_some_and(|s| s > 0.0), "{class}: {lost:#}");
    }
}

#[test]
fn a_rank_that_hangs_is_named_with_its_host_and_the_job_ends_with_code_5() {
    let case = Case::tiny();
    let words =
        ["train.steps=100000", "train.eval_every=0", "checkpoint.every=0", "log.every=0", "run.timeout=3"];
    for (rank, lowest_live) in [(2, 0), (0, 1)] {
        let run = format!("stopped_{rank}");
        let running = case.train(3, &run, &words).start();
        until_row(&case.path(&run), 10);
        running.signal_rank(rank, "STOP");
        let output = running.output().expect_code(5);
        assert!(output.elapsed < SOON, "{output}");
        let late = format!("rank {rank} on ");
        let line = output
            .text()
            .lines()
            .find(|l| l.contains(&late) && l.contains("has not arrived at"))
            .map(String::from);
        let line = line.unwrap_or_else(|| panic!("nobody says that rank {rank} is late\n{output}"));
        for part in [&format!("[rank {lowest_live}]")[..], "of step", "no heartbeat", "last seen at"] {
            assert!(line.contains(part), "{part:?} is not in {line}\n{output}");
        }
        for other in (0..3u64).filter(|r| *r != rank as u64) {
            let events = std::fs::read_to_string(case.path(&run).join(format!("flight/rank_{other}.jsonl")));
            let events = events.unwrap_or_else(|e| panic!("rank {other} left no events: {e}\n{output}"));
            let last: serde_json::Value =
                serde_json::from_str(events.lines().last().expect("an event")).expect("JSON");
            assert_eq!((&last["ended"], last["rank"].as_u64()), (&false.into(), Some(other)), "{last}");
        }
    }
    // Threads that live in a process whose main thread does not move.
    let running = case.train(2, "asleep", &words).env("ZERO3_TEST_FAULT", "hang@step:1:5");
    let output = running.output().expect_code(5).expect_text("rank 1 on ").expect_text("it is alive");
    assert!(output.elapsed < SOON, "{output}");
    // While the data are read, and when MPI ends.
    for (fault, operation) in [("hang@scan:0:0", "`verdict on the data`"), ("hang@leave:1:0", "`leave MPI`")]
    {
        let running = case.train(3, fault, &["run.timeout=3"]).env("ZERO3_TEST_FAULT", fault);
        let late = format!("rank {} on ", &fault[fault.len() - 3..fault.len() - 2]);
        let output = running
            .output()
            .expect_code(5)
            .expect_text(operation)
            .expect_text("it is alive")
            .expect_text(&late);
        assert!(output.elapsed < SOON, "{output}");
    }
    // And a run that ends well leaves nothing of this.
    case.train(2, "well", &["run.timeout=30"]).output().expect_success();
    assert!(!case.path("well/flight").exists());
}
