//! Claims about the harness itself: a test that cannot fail proves nothing.

mod common;

use common::{Case, Run, text};
use std::time::Duration;

#[test]
fn a_run_past_its_time_is_a_failure_that_says_so() {
    let late = || Run::new(2).program("sleep").args(["60"]).timeout(Duration::from_millis(1500)).output();
    let panic = std::panic::catch_unwind(late).expect_err("two ranks slept for a minute");
    let words = panic.downcast_ref::<String>().expect("a panic with values");
    assert!(words.contains("ran past its 1.5s"), "{words}");
}

#[test]
fn a_killed_rank_is_told_from_a_timeout() {
    let run = Run::new(2).program("sleep").args(["60"]).timeout(Duration::from_secs(30)).start();
    run.signal_rank(1, "KILL");
    let output = run.output();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.elapsed < Duration::from_secs(20), "{output}");
}

#[test]
fn variables_reach_the_ranks_and_codes_come_back() {
    let script = "echo \"value $ZERO3_PROBE\"; exit 7";
    let output = Run::new(2).program("sh").args(["-c", script]).env("ZERO3_PROBE", "a b").output();
    let output = output.expect_code(7);
    assert_eq!(output.stdout.lines().filter(|line| *line == "value a b").count(), 2, "{output}");
}

#[test]
fn made_up_text_is_the_same_every_time() {
    assert_eq!(text(4096), text(4096));
    assert_eq!(text(4096).len(), 4096);
    assert!(text(4096).is_ascii(), "cut anywhere, it stays text");
}

#[test]
fn the_tiny_deck_is_one_that_the_program_takes() {
    let case = Case::tiny();
    let run_dir = format!("run.dir={}", case.path("run").display());
    Run::new(0).arg("train").arg(case.deck()).arg(run_dir).arg("--dry-run").output().expect_success();
}
