//! What went wrong for people who run other ZeRO-3 programs, and is right here: cases that no other test
//! shows by itself. docs/field_cases.md lists all of them with the tests that show them.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Steps, assert_same_curve};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zero3::checkpoint::Kind;
use zero3::optimizers::OptimState;

fn train(case: &Case, n_ranks: usize, words: &[&str]) -> Steps {
    let run = format!("run_{n_ranks} {}", words.join(" "));
    case.train(n_ranks, &run, words).output().expect_success();
    Steps::read(&case.path(&run))
}

/// PyTorch #88955: the gradient norm counts what is replicated once per rank.
#[test]
fn case_8_the_gradient_norm_is_the_same_on_any_ranks_with_any_persistence_threshold() {
    let case = Case::tiny();
    let plain = train(&case, 1, &[]);
    for n_ranks in [1, 2, 3, 5] {
        // Nothing, the small ones, and everything is kept whole.
        for threshold in ["0", "400", "1000000000"] {
            let kept = train(&case, n_ranks, &[&format!("zero.persistence_threshold_bytes={threshold}")]);
            assert_same_curve(&plain, &kept);
        }
    }
    assert!(plain.numbers("grad_norm").iter().all(|norm| *norm > 0.0));
}

/// DeepSpeed #8443, #1488: gradient accumulation changes the result.
#[test]
fn case_10_one_micro_batch_of_eight_is_four_of_two_and_the_loss_is_a_mean_over_tokens() {
    let case = Case::tiny();
    let with = |micro: &str, n_ranks| {
        train(&case, n_ranks, &["train.global_batch_size=8", "train.eval_every=0", micro])
    };
    let whole = with("train.micro_batch_size=8", 1);
    for (micro, n_ranks) in
        [("train.micro_batch_size=2", 1), ("train.micro_batch_size=2", 3), ("train.micro_batch_size=1", 5)]
    {
        let parts = with(micro, n_ranks);
        // Other shapes are other orders of f32 sums: 128 tokens of some 5 nats at 6e-8 each, and four updates
        // on top.
        for (name, tolerance) in [("loss", 1e-5), ("grad_norm", 1e-4)] {
            for (step, (a, b)) in whole.numbers(name).into_iter().zip(parts.numbers(name)).enumerate() {
                assert!(
                    (a - b).abs() <= tolerance * a.abs(),
                    "{name} of step {step}: {a} in one, {b} with {micro}"
                );
            }
        }
    }
    // On 4 ranks two of them have two of the six micro-batches and two have one: a mean of the ranks' means
    // would be another.
    assert_same_curve(&train(&case, 1, &[]), &train(&case, 4, &[]));
}

/// PyTorch #106395: sums of many ranks in bf16 are unstable. Gradients travel in f32 unless the deck says
/// otherwise, whatever the parameters are.
#[test]
fn case_12_gradients_travel_and_add_up_in_f32_by_default() {
    let case = Case::tiny();
    let words = ["zero.param_dtype=bf16", "optim.beta1=0", "optim.grad_clip=0", "train.eval_every=0"];
    let deck =
        Run::new(0).arg("train").arg(case.deck()).args(words).arg("--dry-run").output().expect_success();
    let line =
        deck.stdout.lines().find(|line| line.starts_with("reduce_dtype")).expect("the deck has every key");
    assert!(line.contains("\"f32\""), "{line}");

    let by_default = train(&case, 3, &words);
    let asked_for = train(&case, 3, &[&words[..], &["zero.reduce_dtype=f32"]].concat());
    assert_same_curve(&by_default, &asked_for);
    // With no first-moment decay the saved first moment is the gradient: a mean over 6 micro-batches that
    // bf16 could not hold.
    let state = State::read(&case.path(&format!("run_3 {}", words.join(" "))), 4);
    let gradient = state.get("wpe.weight", Kind::Optim(OptimState::ExpAvg));
    let finer = gradient.iter().filter(|g| g.to_bits() & 0xffff != 0).count();
    assert!(finer * 2 > gradient.len(), "{finer} of {} are finer than bf16", gradient.len());
}

/// DeepSpeed #3599: evaluation between training steps breaks the order of prefetches.
#[test]
fn case_14_train_evaluate_train_resume_keeps_the_order_of_prefetches() {
    let case = Case::tiny();
    let words = ["model.n_layer=3", "zero.prefetch_units=2", "train.eval_every=2", "optim.decay_steps=6"];
    // What each rank does in each traced step, in order.
    let orders = |words: &[&str]| -> Vec<Vec<String>> {
        case.train(3, "run", words).output().expect_success();
        let text = std::fs::read_to_string(case.path("run/trace.json")).expect("a trace");
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let events = || trace["traceEvents"].as_array().expect("a list").iter();
        let computes = |e: &Value| e["name"] == "thread_name" && e["args"]["name"] == "compute";
        let threads: Vec<&Value> = events().filter(|e| computes(e)).map(|e| &e["tid"]).collect();
        let spans = || events().filter(|e| e["ph"] == "X" && threads.contains(&&e["tid"]));
        let steps: std::collections::BTreeSet<u64> =
            spans().map(|e| e["args"]["step"].as_u64().unwrap()).collect();
        let of = |pid: u64, step: u64| {
            let own = spans().filter(|e| e["pid"] == pid && e["args"]["step"] == step);
            own.map(|e| e["name"].as_str().unwrap().to_string()).collect()
        };
        steps
            .iter()
            .flat_map(|&step| (0..3).map(move |pid| (pid, step)))
            .map(|(pid, step)| of(pid, step))
            .collect()
    };
    let before = orders(&[&words[..], &["train.steps=4", "log.trace=1..=4"]].concat());
    let after = orders(&[&words[..], &["train.steps=6", "log.trace=5..=6"]].concat());
    assert_eq!((before.len(), after.len()), (12, 6));
    let gathers = before[0].iter().filter(|name| name.starts_with("gather")).count();
    assert!(gathers > 5, "{:?}", before[0]);
    for order in before.iter().chain(&after) {
        assert_eq!(order, &before[0]);
    }
    // And the numbers are those of a run that was neither evaluated nor interrupted.
    let whole = [
        "model.n_layer=3",
        "zero.prefetch_units=2",
        "train.eval_every=0",
        "train.steps=6",
        "optim.decay_steps=6",
    ];
    let whole = train(&case, 2, &whole);
    for name in ["loss", "grad_norm"] {
        assert_eq!(Steps::read(&case.path("run")).column(name), whole.column(name));
    }
}

/// DeepSpeed #7998: ranks run out of data at different steps and hang.
#[test]
fn case_18_ranks_pass_from_one_epoch_to_the_next_together() {
    let case = Case::tiny();
    // 67 samples of 16 tokens, 6 a step: the epoch ends in the middle of step 12, in the middle of a
    // micro-step on 4 ranks.
    std::fs::write(case.path("text.txt"), common::text(1200)).unwrap();
    let words = ["train.steps=14", "checkpoint.every=14"];
    let alone = train(&case, 1, &words);
    for n_ranks in [2, 4, 5] {
        assert_same_curve(&alone, &train(&case, n_ranks, &words));
    }
    let state = |n: usize| State::read(&case.path(&format!("run_{n} {}", words.join(" "))), 14);
    assert_same_state(&state(1), &state(4));
}

/// Paths that are not UTF-8: as working directory, deck, argument, glob's find and destination of every
/// command that reads or writes files.
#[test]
fn paths_that_are_not_utf_8_are_paths_in_every_command() {
    let case = Case::tiny();
    let odd = |name: &[u8]| OsStr::from_bytes(name).to_os_string();
    let dir = case.path("").join(odd(b"nu_\xff"));
    std::fs::create_dir_all(dir.join(odd(b"texts\xfe"))).unwrap();
    std::fs::copy(case.path("text.txt"), dir.join(odd(b"texts\xfe")).join(odd(b"a\xfd.txt"))).unwrap();
    std::fs::copy(case.deck(), dir.join(odd(b"deck\xff.toml"))).unwrap();
    // Arguments by bytes, the working directory in the odd one.
    let words = |words: &[&[u8]]| words.iter().map(|word| odd(word)).collect::<Vec<_>>();
    let zero3 = |n_ranks: usize, line: &[&[u8]]| Run::new(n_ranks).dir(&dir).args(words(line)).output();
    let ok = |line: &[&[u8]]| zero3(0, line).expect_success();

    let train: [&[u8]; 6] =
        [b"train", b"deck\xff.toml", b"run.dir=run", b"data.train=*/*.txt", b"train.steps=2", b"log.trace=1"];
    zero3(2, &train).expect_success().expect_text("deck\u{fffd}.toml");
    std::fs::rename(dir.join("run"), dir.join(odd(b"run\xff"))).unwrap();
    let verified = ok(&[b"ckpt", b"verify", b"run\xff", b"--json"]);
    let verified: Value = serde_json::from_str(&verified.stdout).expect("JSON");
    assert_eq!(verified["path"], "run\u{fffd}/checkpoints/step_00000002");
    assert_eq!(verified["damage"], Value::Array(Vec::new()));
    ok(&[b"ckpt", b"inspect", b"run\xff", b"--json"]);
    ok(&[b"ckpt", b"reshard", b"run\xff", b"cut\xff", b"--ranks", b"3"]);
    ok(&[b"ckpt", b"diff", b"run\xff", b"cut\xff"]);
    ok(&[b"ckpt", b"export", b"run\xff", b"out\xff"]);
    ok(&[b"ckpt", b"import", b"out\xff", b"in\xff", b"--ranks", b"3"]).expect_text("in\u{fffd}");
    ok(&[b"report", b"run\xff", b"--html", b"--figures", b"figures\xff"]);
    assert!(dir.join(odd(b"run\xff")).join("report.html").exists());
    ok(&[b"watch", b"run\xff", b"--once"]);
    ok(&[b"data", b"tokenize", b"--tokenizer", b"bytes", b"t\xff.bin", b"texts\xfe/a\xfd.txt"])
        .expect_text("no deck can name these files");
    // Another file of a name that looks the same does not stand in the way, and the state speaks of this one.
    ok(&[b"data", b"tokenize", b"--tokenizer", b"bytes", b"t\xfe.bin", b"texts\xfe/a\xfd.txt"]);
    ok(&[b"data", b"tokenize", b"--tokenizer", b"bytes", b"t\xff.bin", b"texts\xfe/a\xfd.txt"])
        .expect_text("already complete");
    ok(&[b"data", b"info", b"t\xff.bin"]).expect_text("20000");
    std::fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/hardware/h100.toml"),
        dir.join(odd(b"h\xff.toml")),
    )
    .unwrap();
    ok(&[b"plan", b"deck\xff.toml", b"--ranks", b"3", b"--hardware", b"h\xff.toml"]);

    // A checkpoint that is named so travels to all ranks.
    let resume: [&[u8]; 7] = [
        b"train",
        b"deck\xff.toml",
        b"run.dir=on",
        b"data.train=*/*.txt",
        b"train.steps=3",
        b"--resume",
        b"run\xff",
    ];
    zero3(3, &resume).expect_success();
    zero3(2, &[b"eval", b"run\xff", b"deck\xff.toml", b"data.train=*/*.txt", b"--json"]).expect_success();
    // What cannot be said in a deck is refused as a word of the command line.
    zero3(0, &[b"train", b"deck\xff.toml", b"run.dir=x\xff"]).expect_code(2).expect_text("UTF-8");
    zero3(0, &[b"data", b"tokenize", b"--tokenizer", b"t\xff.json", b"o.bin", b"a"]).expect_code(2);
}
