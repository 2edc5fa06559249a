//! Ranks that die, disks that fill and numbers that blow up: the job ends soon with the right code, and
//! nothing that was saved is lost.

mod common;

use common::{Case, Output, Run, Steps, assert_same_curve, summary, until, until_row};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use zero3::checkpoint::{self, Manifest};

/// A dead rank ends its job in a second; a hang lasts for ever. The limit is for a machine on which much else
/// runs.
const SOON: Duration = Duration::from_secs(90);

#[track_caller]
fn expect_failure_soon(output: &Output) {
    assert_ne!(output.code, 0, "{output}");
    assert!(output.elapsed < SOON, "{output}");
}

/// Weights and both moments of two runs' newest checkpoints have the same bits.
#[track_caller]
fn assert_same_state(a: &Path, b: &Path) {
    let diff = checkpoint::diff(a, b).unwrap_or_else(|e| panic!("{e}"));
    assert!(diff.is_equal(), "{} and {} differ:\n{diff}", a.display(), b.display());
}

fn newest_manifest(run_dir: &Path) -> Manifest {
    let (_, dir) = checkpoint::newest(run_dir).unwrap_or_else(|e| panic!("{e}")).expect("a checkpoint");
    checkpoint::find::read_manifest(&dir).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn one_rank_that_dies_ends_the_job_within_seconds() {
    let case = Case::tiny();
    for (fault, code) in [("panic", Some(70)), ("exit", None), ("kill", None)] {
        for rank in [0, 2] {
            let fault = format!("{fault}@step:{rank}:2");
            let output = case.train(3, &fault, &[]).env("ZERO3_TEST_FAULT", &fault).output();
            expect_failure_soon(&output);
            if let Some(code) = code {
                let words = format!("rank {rank}: internal error");
                output.expect_code(code).expect_text(&words);
            }
        }
    }
}

#[test]
fn a_rank_killed_at_any_point_of_a_save_costs_nothing_but_the_time_since_the_last_one() {
    let case = Case::tiny();
    case.train(2, "whole", &[]).output().expect_success();
    let whole = Steps::read(&case.path("whole"));
    let faults = ["save.begin", "save.written", "save.commit", "save.done"]
        .into_iter()
        .flat_map(|point| [0, 1].map(|rank| format!("kill@{point}:{rank}:4")))
        // The first save of a run, with nothing to fall back on.
        .chain(["kill@save.written:1:2".to_string()]);
    for fault in faults {
        let run = case.path(&fault);
        let output = case.train(2, &fault, &[]).env("ZERO3_TEST_FAULT", &fault).output();
        expect_failure_soon(&output);
        // Whatever is left restores, or is nothing.
        let left = checkpoint::newest(&run).unwrap_or_else(|e| panic!("{fault}: {e}")).map(|(step, _)| step);
        match fault.as_str() {
            "kill@save.written:1:2" => assert_eq!(left, None, "{fault}"),
            // Rank 0 may have committed before the death of the other one reached it.
            "kill@save.commit:1:4" => assert!(left == Some(2) || left == Some(4), "{fault}: {left:?}"),
            _ if fault.contains("done") => assert_eq!(left, Some(4), "{fault}"),
            _ => assert_eq!(left, Some(2), "{fault}"),
        }
        case.train(2, &fault, &[]).output().expect_success();
        assert_same_curve(&whole, &Steps::read(&run));
        assert_same_state(&case.path("whole"), &run);
        let names = fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().file_name());
        for name in names.map(|n| n.into_string().unwrap()) {
            assert!(!name.contains('.'), "{fault} left {name}");
        }
    }
}

#[test]
fn killed_again_and_again_a_run_still_ends_with_the_same_bits() {
    let case = Case::tiny();
    // A save at every step and one kept: most of the time is spent where it hurts.
    let words = ["train.steps=25", "checkpoint.every=1", "checkpoint.keep_last=1", "train.eval_every=5"];
    case.train(2, "whole", &words).output().expect_success();
    let mut n_killed = 0;
    for (i, delay_ms) in [350, 270, 420, 310, 380].into_iter().enumerate() {
        let running = case.train(2, "run", &words).start();
        let pid = running.pid_of_rank(i % 2);
        std::thread::sleep(Duration::from_millis(delay_ms));
        // It may be gone already, the run at its end.
        let killed =
            Command::new("sh").args(["-c", "kill -9 \"$1\" 2>/dev/null", "sh", &pid.to_string()]).status();
        n_killed += usize::from(killed.unwrap().success());
        let output = running.output();
        assert!(output.elapsed < SOON, "{output}");
        // 137: the kill reached it; 0: it came too late. Nothing else happens, whatever the moment.
        assert!([0, 137].contains(&output.code), "{output}");
    }
    assert!(n_killed > 0, "no kill came in time: nothing was tested");
    case.train(2, "run", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&case.path("run")));
    assert_same_state(&case.path("whole"), &case.path("run"));
}

/// Text that repeats after a sequence: every sample is the same, so that which ones a run has seen does not
/// matter.
fn every_sample_the_same(case: &Case) {
    fs::write(case.path("text.txt"), "sixteen letters.".repeat(1000)).unwrap();
}

/// DeepSpeed #8415, #8432: an overflow on one rank poisons the moments, or the schedule moves on while all is
/// skipped.
#[test]
fn a_skipped_step_leaves_state_and_schedule_untouched_and_moves_on_in_the_data() {
    let case = Case::tiny();
    every_sample_the_same(&case);
    case.train(3, "calm", &[]).output().expect_success();
    let calm = Steps::read(&case.path("calm"));
    // One rank each time, the last one and the first, two attempts in a row: attempts 1 and 2 (from 0) of
    // six.
    let spoilt = case.train(3, "spoilt", &[]).env("ZERO3_TEST_SPOIL", "2:1,0:2").output().expect_success();
    assert!(
        spoilt.text().contains("attempt 2 skipped") && spoilt.text().contains("attempt 3 skipped"),
        "{spoilt}"
    );
    assert!(spoilt.text().contains("the state is that of step 1, 2 skipped in a row"), "{spoilt}");

    // On data that are the same everywhere the run with skips must go exactly as the one without: had a skip
    // touched a weight, a moment, the step or the learning rate, it would show.
    assert_same_curve(&calm, &Steps::read(&case.path("spoilt")));
    assert_same_state(&case.path("calm"), &case.path("spoilt"));
    let (before, after) = (newest_manifest(&case.path("calm")), newest_manifest(&case.path("spoilt")));
    assert_eq!((before.step, before.attempts, before.samples, before.tokens), (4, 4, 24, 384));
    assert_eq!((after.step, after.attempts, after.samples, after.tokens), (4, 6, 36, 576));
    assert_eq!(after.optimizer.step, 4, "bias correction counts updates");
}

#[test]
fn the_data_position_after_a_skip_survives_a_resume_on_another_rank_count() {
    let case = Case::tiny();
    case.train(2, "whole", &[]).env("ZERO3_TEST_SPOIL", "1:1").output().expect_success();
    // The same skip, then a death after the save of step 2, which is attempt 3.
    let dies =
        case.train(2, "run", &[]).env("ZERO3_TEST_SPOIL", "1:1").env("ZERO3_TEST_FAULT", "kill@step:0:4");
    expect_failure_soon(&dies.output());
    assert_eq!(
        (newest_manifest(&case.path("run")).attempts, newest_manifest(&case.path("run")).samples),
        (3, 18)
    );
    case.train(3, "run", &[]).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&case.path("run")));
    assert_same_state(&case.path("whole"), &case.path("run"));
}

/// DeepSpeed #8432: all steps are skipped in silence.
#[test]
fn too_many_skips_in_a_row_end_the_run_with_code_4() {
    let case = Case::tiny();
    let words = ["train.max_skipped_steps=2", "train.steps=6"];
    // Skips of attempts 1, 3, 4: the update in between starts the count anew.
    let output = case.train(3, "run", &words).env("ZERO3_TEST_SPOIL", "1:1,1:3,0:4").output().expect_code(4);
    let words_said = ["2 steps in a row were not finite", "weights are those of step 2", "lower optim.lr"];
    for part in words_said {
        assert!(output.text().contains(part), "{part:?}\n{output}");
    }
    assert!(output.elapsed < SOON, "{output}");
    let summary = summary(&case.path("run"));
    assert_eq!(summary["exit_code"], 4);
    assert_eq!(summary["step"], 2);
    assert_eq!(Steps::read(&case.path("run")).column("step"), ["1", "2"], "a skipped step is no row");

    // The checkpoint is good, and the run goes on from it.
    case.train(2, "run", &words).output().expect_success();
    case.train(3, "whole", &["train.steps=6"]).env("ZERO3_TEST_SPOIL", "1:1").output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&case.path("run")));
}

#[test]
fn a_learning_rate_that_blows_up_ends_with_code_4_not_with_nan_weights() {
    let case = Case::tiny();
    let words = [
        "optim.lr=1000",
        "optim.weight_decay=1000",
        "optim.grad_clip=0",
        "train.steps=60",
        "train.eval_every=0",
    ];
    let output =
        case.train(2, "run", &[&words[..], &["train.max_skipped_steps=3", "log.every=0"]].concat()).output();
    let output = output.expect_code(4).expect_text("3 steps in a row were not finite");
    assert!(output.elapsed < SOON, "{output}");
    let (_, dir) = checkpoint::newest(&case.path("run")).unwrap().expect("a checkpoint from before");
    let mut reader = checkpoint::Reader::open(&dir).unwrap();
    let mut weights = vec![0.0; 5120];
    reader.read("wte.weight", checkpoint::Kind::Weight, 0..5120, &mut weights).unwrap();
    assert!(!weights.iter().any(|w| w.is_nan()), "no update was made from gradients that are not finite");
}

/// A file system of its own, gone at the end.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&dir).output();
        let said = match mount {
            Ok(out) if out.status.success() => return Tmpfs(dir),
            Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
            Err(e) => e.to_string(),
        };
        panic!(
            "the tests of full and read-only disks mount a tmpfs, which takes root (or `unshare -rm`): {said}"
        );
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_with_code_5_and_the_earlier_checkpoints_restore() {
    let case = Case::tiny();
    let words = ["train.steps=12", "checkpoint.keep_last=0"];
    case.train(2, "whole", &words).output().expect_success();
    // A checkpoint takes about 280 KiB: room for three or four of six.
    let disk = Tmpfs::mount(case.path("disk"), "size=1400k");
    let output = case.train(2, "disk/run", &words).output().expect_code(5);
    let said = output.text();
    for part in [
        "a checkpoint requires",
        "free on the file system; free some space, lower \
                                           checkpoint.keep_last, or set run.dir",
    ] {
        assert_eq!(said.matches(part).count(), 1, "{part:?} is not said once\n{output}");
    }
    assert!(output.elapsed < SOON, "{output}");
    let run = case.path("disk/run");
    let (step, dir) = checkpoint::newest(&run).unwrap().expect("the checkpoints that had room");
    assert!((6..12).contains(&step), "step {step}");
    assert_same_state(&case.path("whole").join(format!("checkpoints/step_{step:08}")), &dir);
    let partial = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .find(|e| e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".partial"));
    assert!(partial.is_none(), "a save that failed gives its room back: {partial:?}");

    // Not one byte left: even the log cannot be cut. Still a message, still nothing lost.
    fs::write(case.path("disk/hog"), vec![1; 2 << 20]).unwrap_err();
    case.train(2, "disk/run", &words).output().expect_code(5).expect_text("No space left on device");
    fs::remove_file(case.path("disk/hog")).unwrap();
    for old in ["step_00000002", "step_00000004"] {
        fs::remove_dir_all(run.join("checkpoints").join(old)).unwrap();
    }

    // With room again, and old checkpoints going, the same run ends with the same bits, on another rank
    // count.
    case.train(3, "disk/run", &["train.steps=12", "checkpoint.keep_last=1"]).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&run));
    assert_same_state(&case.path("whole"), &run);
    drop(disk);
}

#[test]
fn a_run_directory_has_one_job_at_a_time_and_a_killed_one_leaves_no_lock() {
    let case = Case::tiny();
    let long = ["train.steps=100000", "checkpoint.every=100000", "train.eval_every=0", "log.every=0"];
    let running = case.train(2, "run", &long).env("SLURM_JOB_ID", "41").start();
    let pid = running.pid_of_rank(0);
    until("the first step", || case.path("run/steps.csv").exists());
    let refused = case.train(3, "run", &[]).env("SLURM_JOB_ID", "42").output().expect_code(2);
    let who = format!("is in use by process {pid} on ");
    for part in [&who, " (job 41): wait for it to end, stop it, or set a different run.dir"] {
        assert_eq!(refused.text().matches(part).count(), 1, "{part:?} is not said once\n{refused}");
    }
    // So are commands that would write a checkpoint there.
    case.train(1, "other", &["train.steps=2"]).output().expect_success();
    let args = ["ckpt".into(), "reshard".into(), case.path("other"), case.path("run")];
    let refused = Run::new(0).args(args).args(["--ranks", "2"]).output().expect_code(2);
    refused
        .expect_text(&format!("run is in use by process {pid} on "))
        .expect_text("name a different directory");
    std::fs::remove_dir_all(case.path("other")).unwrap();
    // Where the deck says so there is no lock to be refused by; that two jobs then share a directory is its
    // author's affair.
    case.train(1, "other", &["run.locking=off"]).output().expect_success();
    assert!(!case.path("other/job.lock").exists());

    common::Running::signal_pid(pid, "KILL");
    expect_failure_soon(&running.output());
    assert!(case.path("run/job.lock").exists(), "nobody could clear it away");
    case.train(2, "run", &["train.steps=3"]).output().expect_success();
    assert!(!case.path("run/job.lock").exists(), "an orderly end does");
}

#[test]
fn a_read_only_run_directory_is_refused_at_once() {
    let case = Case::tiny();
    let disk = Tmpfs::mount(case.path("disk"), "ro");
    let output = case.train(3, "disk/run", &[]).output().expect_code(5);
    let said = output.text();
    for part in ["Read-only file system", "set run.dir to a writable directory"] {
        assert_eq!(said.matches(part).count(), 1, "{part:?} is not said once\n{output}");
    }
    drop(disk);
}

#[test]
fn a_rank_whose_write_fails_ends_the_job_and_loses_no_checkpoint() {
    let case = Case::tiny();
    let words = ["train.steps=300", "checkpoint.every=150", "train.eval_every=0", "log.every=0"];
    case.train(2, "whole", &words).output().expect_success();
    // Without the signal of a file that is too large, the write fails instead.
    let script = "trap '' XFSZ; exec \"$@\"";
    let train = Run::new(2).program("sh").args(["-c", script, "sh", env!("CARGO_BIN_EXE_zero3"), "train"]);
    let run_dir = format!("run.dir={}", case.path("run").display());
    let running = train.dir(&case.path("")).arg(case.deck()).arg(run_dir).args(words).start();
    let pid = running.pid_of_rank(1).to_string();
    until("the first checkpoint", || case.path("run/checkpoints/step_00000150").exists());
    let limited = Command::new("prlimit").args(["--pid", &pid, "--fsize=32768"]).status();
    assert!(limited.expect("prlimit of util-linux").success(), "rank 1 may write no file larger than 32 KiB");
    let output = running.output().expect_code(5);
    assert!(output.text().contains("zero3: rank 1 on "), "the rank that met it says so\n{output}");
    for part in ["step_00000300.partial/rank_0001_of_0002.h5", "File too large"] {
        assert_eq!(output.text().matches(part).count(), 1, "{part:?} is not said once\n{output}");
    }
    assert_eq!(newest_manifest(&case.path("run")).step, 150);
    case.train(2, "run", &words).output().expect_success();
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&case.path("run")));
    assert_same_state(&case.path("whole"), &case.path("run"));
}

#[test]
fn a_job_that_asks_for_more_memory_than_there_is_says_so_once() {
    let case = Case::tiny();
    let words = ["model.d_model=60000", "model.n_layer=10", "model.n_head=1", "checkpoint.every=0"];
    let output = case.train(2, "run", &words).output().expect_code(2);
    assert_eq!(output.text().matches("for model and activations").count(), 1, "{output}");
    assert!(output.text().contains("for the 2 ranks of this node, which has "), "{output}");
    assert!(output.text().contains("zero3 plan"), "what would do is said\n{output}");
    assert!(output.elapsed < SOON, "{output}");
}

#[test]
fn a_data_file_that_is_written_to_is_warned_of_and_one_that_is_cut_short_ends_the_job_by_name() {
    use std::io::Write;

    let case = Case::tiny();
    let words = ["train.steps=1000000", "train.eval_every=0", "checkpoint.keep_last=1", "log.every=0"];
    let running = case.train(3, "run", &words).start();
    until_row(&case.path("run"), 1);
    let path = case.path("text.txt");
    let bytes = std::fs::read(&path).unwrap();
    // In place: neither the length nor the inode is another.
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&bytes).unwrap();
    // Every second step saves.
    until_row(&case.path("run"), Steps::n_rows(&case.path("run")) + 4);
    file.set_len(0).unwrap();
    let ended = running.output().expect_code(5);
    let ended = ended.expect_text("text.txt was cut short while it was being read: it had 20000 bytes");
    assert_eq!(ended.text().matches("text.txt was written to while this run reads it").count(), 1, "{ended}");
}
