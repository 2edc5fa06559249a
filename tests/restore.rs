//! A run that was interrupted goes on as if it had not been, on whatever number of ranks; what cannot go on
//! is refused, and nothing of an earlier run is lost.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Output, Steps, assert_same_curve, text};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use zero3::checkpoint::step_dir;

const RANK_COUNTS: [usize; 6] = [1, 2, 3, 4, 5, 8];

/// Every step of the tiny deck saved and kept.
const SAVE_ALL: [&str; 2] = ["checkpoint.every=1", "checkpoint.keep_last=0"];

#[track_caller]
fn train(case: &Case, n_ranks: usize, run: &str, words: &[&str]) -> Output {
    case.train(n_ranks, run, words).output().expect_success()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file that can be copied");
    }
}

/// The run as a machine that died after saving `step` left it: the newest checkpoint is of that step, the log
/// may be longer.
fn copy_as_of(case: &Case, from: &str, to: &str, step: u64) {
    let (from, to) = (case.path(from), case.path(to));
    copy_dir(&step_dir(&from, step), &step_dir(&to, step));
    for log in ["steps.csv", "steps.jsonl"] {
        fs::copy(from.join(log), to.join(log)).expect("a log");
    }
}

/// The steps of both logs: 1, 2, ... `last`, each once.
#[track_caller]
fn assert_rows(run_dir: &Path, last: u64) {
    let expected: Vec<u64> = (1..=last).collect();
    let csv: Vec<u64> = Steps::read(run_dir).numbers("step").iter().map(|&step| step as u64).collect();
    assert_eq!(csv, expected, "steps.csv");
    let json = fs::read_to_string(run_dir.join("steps.jsonl")).expect("a log");
    let row = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    };
    let json: Vec<u64> = json.lines().map(|line| row(line)["step"].as_u64().expect("a step")).collect();
    assert_eq!(json, expected, "steps.jsonl");
}

/// Every file under a directory: its bytes and when it was last written.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("an entry").path();
        // The link to the newest checkpoint holds nothing of its own.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            files.extend(snapshot(&path));
        } else {
            let modified = path.metadata().and_then(|m| m.modified()).expect("a file with a time");
            files.insert(path.clone(), (fs::read(&path).expect("a readable file"), modified));
        }
    }
    files
}

/// Panics unless the files are those of the snapshot, unwritten since.
#[track_caller]
fn assert_untouched(dir: &Path, before: &BTreeMap<PathBuf, (Vec<u8>, SystemTime)>) {
    let after = snapshot(dir);
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "other files");
    for (path, file) in before {
        assert!(after[path] == *file, "{} was written", path.display());
    }
}

/// Saved on `n_ranks` after step 3 of 4; on every rank count the fourth step ends as if nothing had happened.
fn saved_on(n_ranks: usize) {
    let case = Case::tiny();
    train(&case, 1, "one", &SAVE_ALL);
    train(&case, n_ranks, "whole", &SAVE_ALL);
    let one = case.path("one");
    let saved = State::read(&case.path("whole"), 3);
    assert_eq!(saved.manifest.world_size, n_ranks);
    assert_same_state(&saved, &State::read(&one, 3));
    let (curve, state) = (Steps::read(&one), State::read(&one, 4));
    assert_same_curve(&curve, &Steps::read(&case.path("whole")));
    assert_same_state(&state, &State::read(&case.path("whole"), 4));

    for m_ranks in RANK_COUNTS {
        let run = format!("on_{m_ranks}");
        copy_as_of(&case, "whole", &run, 3);
        let output = train(&case, m_ranks, &run, &SAVE_ALL);
        output.expect_text("restored step 3").expect_text(&format!("(written by {n_ranks} ranks; "));
        let resumed = State::read(&case.path(&run), 4);
        assert_eq!(resumed.manifest.world_size, m_ranks, "{n_ranks} -> {m_ranks}");
        assert_same_state(&state, &resumed);
        assert_same_curve(&curve, &Steps::read(&case.path(&run)));
        assert_rows(&case.path(&run), 4);
    }
}

#[test]
fn saved_on_one_rank_goes_on_on_any_number() {
    saved_on(1);
}

#[test]
fn saved_on_two_ranks_goes_on_on_any_number() {
    saved_on(2);
}

#[test]
fn saved_on_three_ranks_goes_on_on_any_number() {
    saved_on(3);
}

#[test]
fn saved_on_four_ranks_goes_on_on_any_number() {
    saved_on(4);
}

#[test]
fn saved_on_five_ranks_goes_on_on_any_number() {
    saved_on(5);
}

#[test]
fn saved_on_eight_ranks_goes_on_on_any_number() {
    saved_on(8);
}

/// DeepSpeed #2898, #3810: a checkpoint of one rank count is refused on another. torchtitan #811, #816: the
/// data position is lost.
#[test]
fn a_run_that_changes_its_rank_count_at_every_step_is_the_same_run() {
    let case = Case::tiny();
    train(&case, 2, "whole", &[]);
    for (step, n_ranks) in [(1, 3), (2, 5), (3, 1), (4, 4)] {
        let steps = format!("train.steps={step}");
        // What follows train.steps unless it is written.
        train(&case, n_ranks, "moved", &[&steps, "optim.decay_steps=4", "checkpoint.every=1"]);
    }
    let (whole, moved) = (case.path("whole"), case.path("moved"));
    assert_same_state(&State::read(&whole, 4), &State::read(&moved, 4));
    let losses = |run: &Path| Steps::read(run).column("loss").join(" ");
    assert_eq!(losses(&whole), losses(&moved));
    assert_rows(&moved, 4);
}

/// Every optimizer: the same bits on 1, 2, 3, 5 and 7 ranks and in every stage, over four restores; at rest
/// what its row of the table says; its checkpoints go through the tools, and another optimizer refuses them.
#[test]
fn runs_of_lion_and_sgd_change_ranks_and_stages_at_every_step_and_are_the_same_runs() {
    const BF16: &[&str] = &["zero.param_dtype=bf16", "zero.grad_dtype=bf16", "zero.reduce_dtype=bf16"];
    for (kind, more, dtypes, bytes_per_param) in [
        ("lion", "optim.beta2=0.98", &[][..], 12),
        ("sgd", "optim.nesterov=true", BF16, 2 + 2 + 4 + 4),
        ("sgd", "optim.momentum=0", &[], 8),
    ] {
        let case = Case::tiny();
        let of_kind = format!("optim.kind={kind}");
        let words = [&[of_kind.as_str(), more, "optim.lr=1e-3", "optim.decay_steps=4"], dtypes].concat();
        train(&case, 2, "whole", &words);
        for (step, n_ranks) in [(1, 3), (2, 5), (3, 1), (4, 7)] {
            let (steps, stage) = (format!("train.steps={step}"), format!("zero.stage={}", step - 1));
            train(&case, n_ranks, "moved", &[&words[..], &[&steps, &stage, "checkpoint.every=1"]].concat());
        }
        let (whole, moved) = (case.path("whole"), case.path("moved"));
        let state = State::read(&whole, 4);
        assert_eq!(state.manifest.optimizer.name, kind);
        assert_same_state(&state, &State::read(&moved, 4));
        let losses = |run: &Path| Steps::read(run).column("loss").join(" ");
        assert_eq!(losses(&whole), losses(&moved));
        let summary = common::summary(&whole);
        let slices: usize = state.manifest.params.iter().map(|param| param.numel.div_ceil(2)).sum();
        assert_eq!(summary["resident"]["bytes"]["measured"], bytes_per_param * slices, "{kind} {more}");
        assert_eq!(
            (&summary["steps_off_plan"], &summary["resident"]["bytes"]["planned"]),
            (&0.into(), &summary["resident"]["bytes"]["measured"]),
            "{kind} {more}"
        );

        let ckpt = |words: &[&Path]| {
            let words = words.iter().map(|word| word.display().to_string());
            common::Run::new(0).arg("ckpt").args(words).output()
        };
        let cut = case.path("cut");
        ckpt(&[Path::new("verify"), &moved]).expect_success();
        ckpt(&[Path::new("inspect"), &moved])
            .expect_success()
            .expect_text(&format!("{kind}, 4 updates, states: "));
        ckpt(&[Path::new("reshard"), &moved, &cut, Path::new("--ranks"), Path::new("3")]).expect_success();
        ckpt(&[Path::new("diff"), &whole, &cut]).expect_success().expect_text("equal: ");
        ckpt(&[Path::new("export"), &cut, &case.path("exported")]).expect_success();

        let other = case.train(2, "whole", &["optim.decay_steps=4", "train.steps=6"]).output().expect_code(2);
        other
            .expect_text(&format!(
                "optim.kind is adamw, but the checkpoint has the optimizer state of {kind}"
            ))
            .expect_text(&format!("set optim.kind={kind}"))
            .expect_text("model.init_from=");
    }
}

/// torchtitan #809: the loss jumps after a resume.
#[test]
fn twenty_steps_are_ten_and_ten() {
    let case = Case::tiny();
    let words = ["optim.decay_steps=20", "checkpoint.every=10"];
    train(&case, 2, "twenty", &[&words[..], &["train.steps=20"]].concat());
    train(&case, 2, "ten", &[&words[..], &["train.steps=10"]].concat());
    train(&case, 2, "ten", &[&words[..], &["train.steps=20"]].concat());
    assert_same_curve(&Steps::read(&case.path("twenty")), &Steps::read(&case.path("ten")));
    assert_same_state(&State::read(&case.path("twenty"), 20), &State::read(&case.path("ten"), 20));
}

/// DeepSpeed #3599: evaluation between training steps disturbs them.
#[test]
fn validation_does_not_disturb_training() {
    let case = Case::tiny();
    for eval_every in ["0", "1", "3"] {
        train(&case, 3, eval_every, &[&format!("train.eval_every={eval_every}")]);
    }
    let never = Steps::read(&case.path("0"));
    assert!(never.column("val_loss").iter().all(|cell| cell.is_empty()));
    for eval_every in ["1", "3"] {
        let often = Steps::read(&case.path(eval_every));
        assert!(often.column("val_loss").iter().any(|cell| !cell.is_empty()));
        for name in ["step", "loss", "grad_norm", "lr", "all_gather_bytes", "reduce_scatter_bytes"] {
            assert_eq!(never.column(name), often.column(name), "{name}, validating every {eval_every} steps");
        }
        assert_same_state(&State::read(&case.path("0"), 4), &State::read(&case.path(eval_every), 4));
    }
}

#[test]
fn a_resume_cuts_rows_later_than_its_checkpoint() {
    let case = Case::tiny();
    train(&case, 2, "whole", &[]);
    copy_as_of(&case, "whole", "cut", 2);
    let cut = case.path("cut");
    // A machine that went down in the middle of a row.
    for (log, torn) in [("steps.csv", "5,96,5.4"), ("steps.jsonl", "{\"step\":5,\"tok")] {
        let rows = fs::read_to_string(cut.join(log)).expect("a log");
        fs::write(cut.join(log), rows + torn).expect("a temporary file");
    }
    train(&case, 2, "cut", &[]);
    assert_rows(&cut, 4);
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&cut));
    // The rows before the checkpoint are the old ones to the byte, times included.
    let head = |run: &str| Steps::read(&case.path(run)).rows[..2].to_vec();
    assert_eq!(head("whole"), head("cut"));
}

#[test]
fn a_finished_run_says_so_and_touches_nothing() {
    let case = Case::tiny();
    train(&case, 2, "run", &[]);
    let before = snapshot(&case.path("run"));
    for n_ranks in [2, 3] {
        train(&case, n_ranks, "run", &[]).expect_text("finished");
        assert_untouched(&case.path("run"), &before);
    }
}

#[test]
fn resume_none_starts_anew_and_sets_the_old_run_aside() {
    let case = Case::tiny();
    let run = case.path("run");
    train(&case, 2, "run", &[]);
    let before = snapshot(&run);
    for k in ["previous_1", "previous_2"] {
        let output = train(&case, 3, "run", &["--resume", "none"]);
        output.expect_text(k);
        assert_rows(&run, 4);
    }
    // The first run is all there, one directory further down.
    let kept = snapshot(&run.join("previous_1"));
    let kept: Vec<_> =
        kept.iter().map(|(path, file)| (path.strip_prefix(run.join("previous_1")).unwrap(), file)).collect();
    let before: Vec<_> = before.iter().map(|(path, file)| (path.strip_prefix(&run).unwrap(), file)).collect();
    assert_eq!(kept.len(), before.len());
    assert!(kept == before, "files of the first run have changed");
    assert_same_state(&State::read(&run, 4), &State::read(&run.join("previous_1"), 4));
    assert_same_curve(&Steps::read(&run), &Steps::read(&run.join("previous_2")));
}

#[test]
fn resume_from_an_earlier_step_sets_later_ones_aside() {
    let case = Case::tiny();
    let run = case.path("run");
    train(&case, 2, "run", &SAVE_ALL);
    let (whole, state) = (Steps::read(&run), State::read(&run, 4));
    let earlier = step_dir(&run, 2).display().to_string();
    train(&case, 3, "run", &[&SAVE_ALL[..], &["--resume", &earlier]].concat()).expect_text("restored step 2");
    assert_rows(&run, 4);
    assert_same_curve(&whole, &Steps::read(&run));
    assert_same_state(&state, &State::read(&run, 4));
    for step in [3, 4] {
        assert_eq!(
            State::read(&run.join("previous_1"), step).manifest.world_size,
            2,
            "the old step {step} is kept"
        );
    }
}

#[test]
fn a_run_goes_on_from_another_run_directory() {
    let case = Case::tiny();
    let six = ["train.steps=6", "optim.decay_steps=6"];
    train(&case, 1, "whole", &six);
    train(&case, 2, "first", &["optim.decay_steps=6"]);
    let before = snapshot(&case.path("first"));
    let first = case.path("first").display().to_string();
    train(&case, 3, "second", &[&six[..], &["--resume", &first]].concat()).expect_text("restored step 4");
    assert_untouched(&case.path("first"), &before);
    assert_same_state(&State::read(&case.path("whole"), 6), &State::read(&case.path("second"), 6));
    let (whole, second) = (Steps::read(&case.path("whole")), Steps::read(&case.path("second")));
    assert_eq!(second.column("step"), ["5", "6"], "its log has its own steps");
    assert_eq!(second.column("loss"), whole.column("loss")[4..]);
}

#[test]
fn a_run_from_elsewhere_is_not_mixed_with_what_the_directory_held() {
    let case = Case::tiny();
    train(&case, 1, "first", &SAVE_ALL);
    train(&case, 2, "second", &[&SAVE_ALL[..], &["model.init_seed=2"]].concat());
    let of_second = Steps::read(&case.path("second"));
    let earlier = step_dir(&case.path("first"), 3).display().to_string();
    let words = ["--resume", &earlier, "checkpoint.every=0"];
    train(&case, 3, "second", &words).expect_text("previous_1");
    let second = Steps::read(&case.path("second"));
    assert_eq!(second.column("step"), ["4"], "rows of another run are not its own");
    assert_eq!(second.column("loss"), Steps::read(&case.path("first")).column("loss")[3..]);
    assert!(
        !step_dir(&case.path("second"), 3).exists(),
        "a later resume would take another run's checkpoint for its own"
    );
    let aside = case.path("second").join("previous_1");
    assert_eq!(Steps::read(&aside), of_second);
    assert_eq!(State::read(&aside, 3).manifest.seeds.init_seed, 2);
}

#[test]
fn a_run_without_checkpoints_is_known_when_finished_and_another_deck_keeps_its_log() {
    let case = Case::tiny();
    let run = case.path("run");
    train(&case, 2, "run", &["checkpoint.every=0"]);
    let before = Steps::read(&run);
    train(&case, 2, "run", &["checkpoint.every=0"]).expect_text("finished").expect_text("--resume none");
    assert_eq!(before, Steps::read(&run));
    train(&case, 2, "run", &["checkpoint.every=0", "optim.grad_clip=0.25"]).expect_text("previous_1");
    assert_eq!(before.rows.len(), Steps::read(&run).rows.len());
    assert_eq!(before, Steps::read(&run.join("previous_1")));
}

#[test]
fn a_skipped_step_stays_skipped_over_a_restore() {
    let case = Case::tiny();
    let spoilt = |n_ranks: usize, run: &str, words: &[&str]| {
        case.train(n_ranks, run, words).env("ZERO3_TEST_SPOIL", "0:1").output().expect_success();
    };
    spoilt(1, "whole", &SAVE_ALL);
    copy_as_of(&case, "whole", "resumed", 2);
    spoilt(3, "resumed", &SAVE_ALL);
    assert_same_curve(&Steps::read(&case.path("whole")), &Steps::read(&case.path("resumed")));
    let state = State::read(&case.path("resumed"), 4);
    assert_eq!((state.manifest.attempts, state.manifest.samples), (5, 5 * 6));
    assert_same_state(&State::read(&case.path("whole"), 4), &state);
}

/// A resume that must be refused: exit code 2, a message with these parts, nothing touched.
#[track_caller]
fn refused(case: &Case, n_ranks: usize, words: &[&str], parts: &[&str]) {
    let run = case.path("run");
    let before = snapshot(&run);
    let output = case.train(n_ranks, "run", words).output().expect_code(2);
    for part in parts {
        assert!(output.stderr.contains(part), "{part:?} is not in\n{output}");
    }
    assert_eq!(output.stderr.matches("does not fit").count(), 1, "one message for all ranks\n{output}");
    assert_untouched(&run, &before);
}

#[test]
fn changed_data_are_refused_unless_the_deck_allows_them() {
    let case = Case::tiny();
    train(&case, 2, "run", &[]);
    // One byte, the last: the digest covers all of them.
    let mut changed = text(20_000);
    changed.replace_range(19_999.., "#");
    fs::write(case.path("text.txt"), changed).expect("a temporary file");
    let on = ["train.steps=6", "optim.decay_steps=4"];
    refused(&case, 3, &on, &["the data differ", "data.allow_changed=true"]);
    train(&case, 3, "run", &[&on[..], &["data.allow_changed=true"]].concat())
        .expect_text("the data differ from those");
    assert_rows(&case.path("run"), 6);
}

#[test]
fn another_model_is_refused_by_the_names_of_its_parameters() {
    let case = Case::tiny();
    train(&case, 2, "run", &[]);
    let wider = ["train.steps=6", "model.d_model=24"];
    refused(
        &case,
        3,
        &wider,
        &["wte.weight is [256, 20] in the checkpoint and [256, 24] in the deck", "h.1.ln_2.bias"],
    );
    refused(
        &case,
        1,
        &["train.steps=6", "model.n_layer=3"],
        &["h.2.attn.c_attn.weight is not in the checkpoint"],
    );
    refused(
        &case,
        2,
        &["train.steps=6", "model.n_layer=1"],
        &["h.1.mlp.c_proj.bias is in the checkpoint but not"],
    );
}

#[test]
fn other_micro_batches_go_on_with_the_same_samples() {
    let case = Case::tiny();
    train(&case, 2, "whole", &SAVE_ALL);
    let whole = Steps::read(&case.path("whole"));
    assert_eq!(State::read(&case.path("whole"), 4).manifest.samples, 24, "4 steps of 6");
    for (n_ranks, micro_batch_size) in [(1, 6), (2, 3), (3, 2)] {
        let run = format!("micro_{micro_batch_size}");
        copy_as_of(&case, "whole", &run, 2);
        let size = format!("train.micro_batch_size={micro_batch_size}");
        train(&case, n_ranks, &run, &[&SAVE_ALL[..], &[&size, "train.eval_every=0"]].concat());
        assert_eq!(State::read(&case.path(&run), 4).manifest.samples, 24);
        // The same samples in other sums: rounding apart. Other samples would show in the second digit.
        for name in ["loss", "grad_norm"] {
            let (ours, theirs) = (Steps::read(&case.path(&run)).numbers(name), whole.numbers(name));
            for (i, (x, y)) in ours.iter().zip(&theirs).enumerate() {
                assert!((x - y).abs() <= 1e-4 * y.abs(), "{name} of step {}: {x} and {y}", i + 1);
            }
        }
    }
    // Another global batch: on from the sample that was reached.
    copy_as_of(&case, "whole", "half", 2);
    train(&case, 2, "half", &[&SAVE_ALL[..], &["train.global_batch_size=3"]].concat());
    assert_eq!(State::read(&case.path("half"), 4).manifest.samples, 2 * 6 + 2 * 3);
}
