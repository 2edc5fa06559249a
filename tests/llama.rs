//! A Llama under the runtime: the same bits on every number of ranks and with every knob, and what moves and
//! is held is what the plan says.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Steps, assert_same_curve, summary};

/// Three query heads on each of two key/value heads, a hidden layer that no number of ranks divides, an
/// untied head.
const SIZES: [&str; 6] = [
    "model.family=llama",
    "model.d_model=24",
    "model.n_head=6",
    "model.n_kv_head=2",
    "model.d_ff=37",
    "model.rope_theta=500",
];

const BF16: [&str; 3] = ["zero.param_dtype=bf16", "zero.grad_dtype=bf16", "zero.reduce_dtype=bf16"];

struct Trained {
    steps: Steps,
    state: State,
}

/// Trains, and holds the counters against the plan.
#[track_caller]
fn train(case: &Case, n_ranks: usize, words: &[&str]) -> Trained {
    let run = format!("run_{n_ranks} {}", words.join(" "));
    case.train(n_ranks, &run, &[&SIZES[..], words].concat()).output().expect_success();
    let run_dir = case.path(&run);
    let summary = summary(&run_dir);
    assert_eq!(summary["steps_off_plan"], 0, "{words:?}: {summary:#}");
    for pair in
        summary["peak_bytes_by_kind"].as_array().expect("a list").iter().chain([&summary["peak_bytes"]])
    {
        assert_eq!(pair["planned"], pair["measured"], "{words:?}: {pair} of {summary:#}");
    }
    Trained { steps: Steps::read(&run_dir), state: State::read(&run_dir, 4) }
}

#[track_caller]
fn assert_same(one: &Trained, other: &Trained) {
    assert!(!one.steps.rows.is_empty(), "a run without steps proves nothing");
    assert_same_curve(&one.steps, &other.steps);
    assert_same_state(&one.state, &other.state);
}

#[test]
fn any_number_of_ranks_gives_the_same_bits_and_the_model_learns() {
    let case = Case::tiny();
    let one = train(&case, 1, &[]);
    let loss = one.steps.numbers("loss");
    assert!(loss[3] < loss[0] - 0.1, "{loss:?}");
    for n_ranks in [2, 3, 5, 7] {
        assert_same(&one, &train(&case, n_ranks, &[]));
    }
    let tied = train(&case, 1, &["model.tied=true"]);
    assert_same(&tied, &train(&case, 3, &["model.tied=true"]));
}

/// Heads that are wider than d_model / n_head and normed: the sizes that are not Llama's win.
const QWEN3: [&str; 2] = ["model.family=qwen3", "model.head_dim=6"];

#[test]
fn a_qwen3_has_the_same_bits_on_any_number_of_ranks_whatever_is_recomputed() {
    let case = Case::tiny();
    let one = train(&case, 1, &QWEN3);
    let loss = one.steps.numbers("loss");
    assert!(loss[3] < loss[0] - 0.1, "{loss:?}");
    assert_same(&one, &train(&case, 2, &QWEN3));
    assert_same(&one, &train(&case, 3, &[&QWEN3[..], &["zero.activation_checkpointing=all"]].concat()));
    assert_same(&one, &train(&case, 5, &[&QWEN3[..], &["zero.stage=1", "zero.overlap=false"]].concat()));
    let narrow = [&QWEN3[..], &BF16].concat();
    assert_same(&train(&case, 1, &narrow), &train(&case, 3, &narrow));
}

#[test]
fn no_knob_changes_a_bit() {
    let case = Case::tiny();
    let base = train(&case, 1, &[]);
    for knobs in [
        &["zero.stage=0"][..],
        &["zero.stage=1", "run.threads_per_rank=2"],
        &["zero.stage=2"],
        &["zero.activation_checkpointing=all", "zero.overlap=false"],
        &["zero.activation_checkpointing=every:2", "zero.prefetch_units=3"],
        &["zero.reduce_bucket_bytes=4096", "zero.gather_bucket_bytes=4096", "zero.prefetch_units=0"],
        &["zero.persistence_threshold_bytes=1000", "zero.release_after_forward=false"],
        &["zero.prefetch_max_bytes=9000", "zero.max_live_bytes=60000"],
    ] {
        assert_same(&base, &train(&case, 3, knobs));
    }
}

#[test]
fn mixed_precision_gives_the_same_bits_on_any_number_of_ranks_and_stays_near_f32() {
    let case = Case::tiny();
    let exact = train(&case, 1, &[]);
    for (words, others) in [
        (
            &BF16[..],
            [&["zero.stage=1"][..], &["zero.activation_checkpointing=all", "run.threads_per_rank=2"]],
        ),
        (&["zero.reduce_dtype=bf16"], [&["zero.stage=0"], &["zero.overlap=false"]]),
    ] {
        let one = train(&case, 1, words);
        for (n_ranks, other) in [2, 5].into_iter().zip(others) {
            assert_same(&one, &train(&case, n_ranks, &[words, other].concat()));
        }
        // Weights of 2^-9 relative rounding move a loss of 5.5 nats by a hundredth at the most.
        for (a, b) in one.steps.numbers("loss").into_iter().zip(exact.steps.numbers("loss")) {
            assert!((a - b).abs() < 0.02, "{a} in bf16, {b} in f32");
        }
    }
}

#[test]
fn held_gradients_give_the_same_bits_at_every_stage() {
    let case = Case::tiny();
    let held = ["zero.reduce=last_micro_step"];
    let three = train(&case, 3, &held);
    assert_same(&three, &train(&case, 3, &[&held[..], &["zero.stage=2"]].concat()));
}

#[test]
fn a_llama_goes_on_from_its_checkpoint_on_other_ranks() {
    let case = Case::tiny();
    let whole = train(&case, 2, &[]);
    case.train(5, "halves", &[&SIZES[..], &["train.steps=2", "optim.decay_steps=4"]].concat())
        .output()
        .expect_success();
    case.train(3, "halves", &SIZES).output().expect_success();
    assert_same_state(&whole.state, &State::read(&case.path("halves"), 4));
    // The other family, and other heads, are another model.
    let other = case.train(1, "halves", &["train.steps=5"]).output().expect_code(2);
    other.expect_text("model.family: \"llama\" -> \"gpt2\"");
    let heads = case.train(1, "halves", &[&SIZES[..], &["model.n_kv_head=6", "train.steps=5"]].concat());
    heads.output().expect_code(2).expect_text("model.n_kv_head: 2 -> 6");
}

#[test]
fn eight_billion_parameters_are_planned_without_mpi() {
    let case = Case::tiny();
    let data = format!("data.train={}", case.path("none.u32").display());
    let words = ["plan", &case.deck().display().to_string()].map(String::from);
    let plan = Run::new(0).args(words).args(["--ranks", "64", "model.preset=llama3-8b", &data]).args(FREED);
    plan.output().expect_success().expect_text("8030261248 parameters");
}

/// The sizes of the tiny deck give way to the preset's.
const FREED: [&str; 4] = ["model.n_layer=32", "model.n_head=32", "model.d_model=4096", "model.seq_len=8192"];
