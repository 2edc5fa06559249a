//! A trained model at work: the same text and the same loss on every number of ranks.

mod common;

use common::{Case, Run, Steps, assert_same_curve, summary};
use std::path::Path;

const LLAMA: [&str; 5] =
    ["model.family=llama", "model.d_model=24", "model.n_head=6", "model.n_kv_head=2", "model.d_ff=40"];

const QWEN3: [&str; 6] = [
    "model.family=qwen3",
    "model.d_model=24",
    "model.n_head=3",
    "model.n_kv_head=1",
    "model.head_dim=10",
    "model.d_ff=40",
];

/// A model that has learnt a little, in `run` of the case.
fn trained(case: &Case, run: &str, words: &[&str]) {
    case.train(
        2,
        run,
        &[&["train.steps=30", "train.eval_every=0", "checkpoint.every=30"][..], words].concat(),
    )
    .output()
    .expect_success();
}

fn sample(n_ranks: usize, run: &Path, words: &[&str]) -> String {
    let run = Run::new(n_ranks).arg("sample").arg(run).args(["--prompt", "the rank "]).args(words);
    run.arg("run.threads_per_rank=1").output().expect_success().stdout
}

#[test]
fn the_same_seed_gives_the_same_text_on_any_number_of_ranks() {
    let case = Case::tiny();
    for (run, words) in [("gpt2", &[][..]), ("llama", &LLAMA), ("qwen3", &QWEN3)] {
        trained(&case, run, words);
        let run = case.path(run);
        // Several times the context of 16 tokens: it is begun anew now and then.
        let words = ["--max-tokens", "60", "--seed", "3"];
        let one = sample(1, &run, &words);
        assert!(one.starts_with("the rank ") && one.trim_end().chars().count() > 30, "{one:?}");
        for n_ranks in [2, 3, 5] {
            assert_eq!(sample(n_ranks, &run, &words), one, "{n_ranks} ranks");
        }
        assert_eq!(sample(0, &run, &words), one, "without a launcher");
        assert_ne!(sample(1, &run, &["--max-tokens", "60", "--seed", "4"]), one);
        let greedy = sample(1, &run, &["--temperature", "0", "--max-tokens", "20"]);
        assert_eq!(sample(2, &run, &["--top-k", "1", "--max-tokens", "20", "--seed", "9"]), greedy);
        let narrow = ["--max-tokens", "20", "zero.param_dtype=bf16"];
        assert_eq!(sample(3, &run, &narrow), sample(1, &run, &narrow));
    }
}

#[test]
fn what_cannot_be_sampled_is_said() {
    let case = Case::tiny();
    trained(&case, "run", &[]);
    let run = case.path("run");
    let refused = |words: &[&str]| Run::new(0).arg("sample").arg(&run).args(words).output().expect_code(2);
    refused(&["--prompt", ""]).expect_text("the prompt is empty");
    refused(&["--prompt", "a", "data.tokenizer=gpt2"]).expect_text("data.tokenizer");
    refused(&["--prompt", "a", "train.stepz=3"]).expect_text("train.steps");
    refused(&["--prompt", "a", "deck.toml"]).expect_text("is not KEY=VALUE");
    refused(&["--prompt", "a", "--temperature=-1"]).expect_text("a number from 0 to 100");
    let none = Run::new(0).arg("sample").arg(case.path("nowhere")).args(["--prompt", "a"]);
    none.output().expect_code(2).expect_text("nowhere");
}

fn eval(case: &Case, n_ranks: usize, run: &str, words: &[&str]) -> serde_json::Value {
    let run = Run::new(n_ranks).arg("eval").arg(case.path(run)).arg(case.deck()).args(words).arg("--json");
    let said = run.output().expect_success();
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e} in\n{said}"))
}

#[test]
fn a_file_s_loss_is_the_same_on_any_number_of_ranks_and_that_of_validation() {
    let case = Case::tiny();
    // Twelve windows of 16, each with the token after it, end with the file.
    let text = common::text(40_000);
    std::fs::write(case.path("val.txt"), &text[30_000..30_000 + 12 * 16 + 1]).expect("a temporary file");
    let val = format!("data.val={}", case.path("val.txt").display());
    for (run, family) in [("gpt2", &[][..]), ("llama", &LLAMA)] {
        let words =
            ["train.steps=30", "train.eval_every=30", "train.eval_batches=12", "checkpoint.every=30", &val];
        case.train(2, run, &[&words[..], family].concat()).output().expect_success();
        // The model is the checkpoint's: the deck has another one.
        let whole = eval(&case, 1, run, &[&val, "--stride", "16"]);
        let loss = whole["loss"].as_f64().expect("a number");
        let steps = Steps::read(&case.path(run));
        let validated: f64 = steps.column("val_loss").last().expect("a row").parse().expect("a number");
        assert!((loss - validated).abs() < 1e-9 * loss, "{loss} of the file, {validated} in training");
        assert_eq!(
            (&whole["n_tokens"], &whole["n_windows"], &whole["n_bytes"]),
            (&192.into(), &12.into(), &192.into())
        );
        let close = |name: &str, want: f64| {
            let got = whole[name].as_f64().expect("a number");
            assert!((got - want).abs() < 1e-12 * want, "{name} is {got}, not {want}");
        };
        close("perplexity", loss.exp());
        close("bits_per_byte", loss / std::f64::consts::LN_2);

        let sliding = [&val, "--stride", "5", "train.micro_batch_size=3"];
        let one = eval(&case, 1, run, &sliding);
        // 176 more targets, five a window.
        assert_eq!((&one["n_tokens"], &one["n_windows"]), (&192.into(), &37.into()));
        assert_ne!(one["loss"], whole["loss"]);
        for n_ranks in [2, 3, 5] {
            assert_eq!(eval(&case, n_ranks, run, &sliding), one, "{n_ranks} ranks");
        }
    }
    // Without validation data it is the training data, whatever the deck says of validating.
    let train = format!("data.train={}", case.path("val.txt").display());
    let all = eval(&case, 2, "gpt2", &[&train, "data.val_fraction=0", "--stride", "16"]);
    assert_eq!((all["data"].as_str(), &all["n_tokens"]), (Some("data.train"), &192.into()));
    let refused = |words: &[&str]| {
        Run::new(0).arg("eval").arg(case.path("gpt2")).arg(case.deck()).args(words).output().expect_code(2)
    };
    refused(&["--stride", "17"]).expect_text("at most model.seq_len = 16");
    refused(&["model.n_layer=3"]).expect_text("is of a different model");
    refused(&["data.val=nowhere.txt"]).expect_text("nowhere.txt");
}

#[test]
fn a_run_prints_texts_of_its_model_and_is_the_same_run() {
    let case = Case::tiny();
    for family in [&[][..], &LLAMA] {
        let silent = format!("silent{}", family.len());
        case.train(2, &silent, family).output().expect_success();
        let curve = Steps::read(&case.path(&silent));
        for (n_ranks, stage, tokens) in [(1, "3", "9"), (3, "0", "40"), (2, "2", "5")] {
            let run = format!("run {n_ranks} {}", family.len());
            let stage = format!("zero.stage={stage}");
            let tokens = format!("train.sample_tokens={tokens}");
            let words = ["train.sample_every=2", "train.sample_prompt=what it needs ", &tokens, &stage];
            let said = case.train(n_ranks, &run, &[&words[..], family].concat()).output().expect_success();
            let text = said.text();
            assert_eq!(text.matches("sample at step").count(), 2, "{said}");
            assert!(text.contains("sample at step 4: what it needs "), "{said}");
            assert_same_curve(&curve, &Steps::read(&case.path(&run)));
            let summary = summary(&case.path(&run));
            assert_eq!(summary["steps_off_plan"], 0, "{summary:#}");
            for pair in summary["peak_bytes_by_kind"]
                .as_array()
                .expect("a list")
                .iter()
                .chain([&summary["peak_bytes"]])
            {
                assert_eq!(pair["planned"], pair["measured"], "{pair} of {summary:#}");
            }
        }
    }
    let bin = ["data.format=raw_u16", "model.vocab_size=300", "train.sample_every=1"];
    case.train(1, "no", &bin).output().expect_code(2).expect_text("data.tokenizer = \"none\"");
}
