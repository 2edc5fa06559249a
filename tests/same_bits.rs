//! One result, whatever the rank count, the threads, the knobs: the same bits in every logged number, weight
//! and moment. And each of these runs moves and holds exactly what its plan says.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Steps, assert_same_curve, summary};
use serde_json::Value;

/// A deck and what is varied of it.
struct Model {
    case: Case,
    words: Vec<String>,
    last_step: u64,
}

/// What a run leaves.
struct Trained {
    steps: Steps,
    state: State,
}

impl Model {
    /// The tiny deck of the harness: 6 micro-batches, slices that cut rows.
    fn tiny() -> Self {
        Model { case: Case::tiny(), words: Vec::new(), last_step: 4 }
    }

    /// 11 tokens, 5 positions, 5 micro-batches, one head of any width: odd everywhere.
    fn odd(d_model: usize) -> Self {
        let case = Case::tiny();
        let tokens = common::text(3000).bytes().map(|byte| u16::from(byte % 11)).collect::<Vec<_>>();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        std::fs::write(case.path("tokens.bin"), bytes).expect("a temporary file");
        let mut words = vec![
            format!("data.train={}", case.path("tokens.bin").display()),
            format!("model.d_model={d_model}"),
        ];
        let sizes = "data.format=raw_u16 model.vocab_size=11 model.n_head=1 model.seq_len=5 \
                     train.global_batch_size=5";
        words.extend(sizes.split(' ').map(String::from));
        Model { case, words, last_step: 4 }
    }

    /// Large enough that every kernel has several tasks for several threads.
    fn wide() -> Self {
        let sizes = "model.d_model=72 model.n_head=3 model.seq_len=96 model.n_layer=1 \
                     train.micro_batch_size=2 train.steps=2 optim.grad_clip=0.5";
        Model {
            case: Case::tiny(),
            words: sizes.split_whitespace().map(String::from).collect(),
            last_step: 2,
        }
    }

    fn words<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.words.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    fn train(&self, n_ranks: usize, more: &[&str]) -> Trained {
        self.train_with(n_ranks, more, |run| run)
    }

    /// Trains into a run directory of its own, and holds the counters against the plan.
    #[track_caller]
    fn train_with(&self, n_ranks: usize, more: &[&str], extra: impl FnOnce(Run) -> Run) -> Trained {
        let run = format!("run_{n_ranks} {}", more.join(" ")).replace('/', "_");
        extra(self.case.train(n_ranks, &run, &self.words(more))).output().expect_success();
        let run_dir = self.case.path(&run);
        let steps = Steps::read(&run_dir);
        let state = State::read(&run_dir, self.last_step);
        measured_is_planned(&summary(&run_dir), &steps);
        // 16 bytes per element of a slice, from nothing but the shapes.
        let slices: usize = state.manifest.params.iter().map(|param| param.numel.div_ceil(n_ranks)).sum();
        assert_eq!(
            summary(&run_dir)["resident"]["bytes"]["measured"],
            16 * slices,
            "at rest on {n_ranks} ranks"
        );
        Trained { steps, state }
    }

    /// The plan on paper.
    fn plan(&self, n_ranks: usize, more: &[&str]) -> Value {
        let run = Run::new(0).arg("plan").arg(self.case.deck()).args(self.words(more));
        let output = run.args(["--ranks", &n_ranks.to_string(), "--json"]).output().expect_success();
        serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e} in\n{output}"))
    }
}

#[track_caller]
fn assert_same(one: &Trained, other: &Trained) {
    assert!(!one.steps.rows.is_empty(), "a run without steps proves nothing");
    assert_same_curve(&one.steps, &other.steps);
    assert_same_state(&one.state, &other.state);
}

/// Counters and ledger agree with the plan to the byte, at every step.
#[track_caller]
fn measured_is_planned(summary: &Value, steps: &Steps) {
    assert_eq!(summary["steps_off_plan"], 0, "{summary:#}");
    let equal = |what: &str, pair: &Value| {
        assert!(pair["planned"].is_u64(), "{what}: {summary:#}");
        assert_eq!(pair["planned"], pair["measured"], "{what}: planned and measured of\n{summary:#}");
    };
    equal("all-gather", &summary["all_gather_bytes_per_step"]);
    equal("reduce-scatter", &summary["reduce_scatter_bytes_per_step"]);
    equal("at rest", &summary["resident"]["bytes"]);
    equal("peak", &summary["peak_bytes"]);
    for kind in summary["peak_bytes_by_kind"].as_array().expect("a list") {
        equal(&kind["kind"].to_string(), kind);
    }
    // On every rank, not on the reporting one alone.
    let peak = summary["peak_bytes"]["planned"].as_f64().expect("a number");
    for column in ["live_peak_bytes_min", "live_peak_bytes_max"] {
        assert_eq!(steps.numbers(column).into_iter().fold(0.0, f64::max), peak, "{column}");
    }
    // Between any two steps: nothing but the slices is held.
    let resident = summary["resident"]["bytes"]["planned"].as_f64().expect("a number");
    for column in ["resident_bytes", "resident_bytes_min", "resident_bytes_max"] {
        assert!(
            steps.numbers(column).iter().all(|&bytes| bytes == resident),
            "{column} is not {resident} at every step"
        );
    }
}

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    let model = Model::tiny();
    let one = model.train(1, &[]);
    for n_ranks in [2, 3, 4, 5, 7] {
        assert_same(&one, &model.train(n_ranks, &[]));
    }
}

#[test]
fn any_number_of_ranks_gives_the_same_bits_with_prime_sizes() {
    // Biases and layer norms have 7 elements: one each on 7 ranks, and an empty slice on 5.
    let model = Model::odd(7);
    let one = model.train(1, &[]);
    for n_ranks in [2, 3, 4, 5, 7] {
        assert_same(&one, &model.train(n_ranks, &[]));
    }
}

#[test]
fn parameters_with_fewer_elements_than_ranks_give_the_same_bits() {
    // Layer norms have 2 elements: on 7 ranks five slices are empty.
    let model = Model::odd(2);
    let one = model.train(1, &[]);
    for n_ranks in [3, 5, 7] {
        let empty = &model.plan(n_ranks, &[])["params"][2]["empty_slices"];
        assert_eq!(*empty, n_ranks - 2, "the case is not the one it is meant to be");
        assert_same(&one, &model.train(n_ranks, &[]));
    }
}

#[test]
fn fewer_micro_batches_than_ranks_give_the_same_bits() {
    let model = Model::tiny();
    // Three, because two numbers add up to the same in either order.
    let few = &["train.global_batch_size=3", "train.eval_batches=1"];
    assert_same(&model.train(1, few), &model.train(5, few));
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let model = Model::wide();
    let one = model.train(1, &["run.threads_per_rank=1"]);
    for n_ranks in [1, 2] {
        for threads in ["run.threads_per_rank=2", "run.threads_per_rank=3"] {
            assert_same(&one, &model.train(n_ranks, &[threads]));
        }
    }
}

/// DeepSpeed #5545, #8061: overlap on and off give different losses.
#[test]
fn overlap_and_prefetch_give_the_same_bits() {
    let model = Model::tiny();
    let one = model.train(1, &[]);
    for knobs in [
        &["zero.overlap=false"][..],
        &["zero.prefetch_units=0"],
        &["zero.prefetch_units=3"],
        &["zero.prefetch_units=3", "zero.prefetch_max_bytes=21000"],
        &["zero.prefetch_units=3", "zero.overlap=false"],
    ] {
        assert_same(&one, &model.train(3, knobs));
    }
    assert_same(&one, &model.train(1, &["zero.prefetch_units=3"]));
}

/// The least `zero.max_live_bytes` that a plan accepts, asked from its refusals.
fn least_live_bytes(model: &Model, n_ranks: usize) -> u64 {
    let mut cap = 1;
    loop {
        let run = Run::new(0).arg("plan").arg(model.case.deck()).args(model.words(&[]));
        let word = format!("zero.max_live_bytes={cap}");
        let output = run.arg(word).args(["--ranks", &n_ranks.to_string()]).output();
        if output.code == 0 {
            return cap;
        }
        let output = output.expect_code(2);
        let (_, after) = output.stderr.split_once("alone gathers ").unwrap_or_else(|| panic!("{output}"));
        let needed = after.split(' ').next().and_then(|number| number.parse().ok());
        let needed: u64 = needed.unwrap_or_else(|| panic!("{output}"));
        assert!(needed > cap, "{output}");
        cap = needed;
    }
}

/// DeepSpeed #7670, #3025: parameters stay gathered after their use.
#[test]
fn the_tightest_cap_on_gathered_bytes_gives_the_same_bits_and_holds() {
    let model = Model::tiny();
    let one = model.train(1, &[]);
    for n_ranks in [2, 3] {
        let cap = least_live_bytes(&model, n_ranks);
        let tight = format!("zero.max_live_bytes={cap}");
        assert_same(&one, &model.train(n_ranks, &[&tight, "zero.prefetch_units=3"]));
        let summary = summary(&model.case.path(&format!("run_{n_ranks} {tight} zero.prefetch_units=3")));
        let kinds = summary["peak_bytes_by_kind"].as_array().expect("a list").iter();
        let gathered =
            kinds.filter(|kind| ["gathered", "prefetched"].contains(&kind["kind"].as_str().unwrap_or("")));
        for kind in gathered {
            assert!(kind["measured"].as_u64().is_some_and(|bytes| bytes <= cap), "cap {cap}: {kind}");
        }
    }
}

#[test]
fn small_buckets_and_cut_messages_give_the_same_bits() {
    let model = Model::tiny();
    let one = model.train(1, &[]);
    let small = &["zero.reduce_bucket_bytes=4096"];
    for n_ranks in [3, 4] {
        assert_same(&one, &model.train(n_ranks, small));
    }
    // 7 elements a message: hundreds of messages for each parameter.
    let cut = |run: Run| run.env("ZERO3_TEST_MAX_MESSAGE_NUMEL", "7");
    assert_same(&one, &model.train_with(3, &["run.single_copy=false", "run.threads_per_rank=1"], cut));
    assert_same(&one, &model.train_with(5, &["run.single_copy=false", "zero.reduce_bucket_bytes=4097"], cut));
}

#[test]
fn reading_each_other_and_messages_give_the_same_bits_alone_and_together() {
    for model in [Model::tiny(), Model::odd(2)] {
        let one = model.train(1, &[]);
        assert_same(&one, &model.train(3, &["run.single_copy=false"]));
        // Nodes of two ranks, and one of one: gathers by messages, gradients by both.
        let on_nodes = |run: Run| run.env("ZERO3_TEST_RANKS_PER_NODE", "2");
        assert_same(&one, &model.train_with(5, &["zero.reduce_bucket_bytes=4096"], on_nodes));
        assert_same(&one, &model.train_with(4, &["zero.overlap=false"], on_nodes));
    }
}

#[test]
fn a_skipped_step_is_skipped_alike_on_any_number_of_ranks() {
    let model = Model::tiny();
    // Rank and attempt, both from 0: the second step is tried twice, the second time with the next samples.
    let spoil = |n_ranks: usize, whom: &str| {
        let trained = model.train_with(n_ranks, &[], |run| run.env("ZERO3_TEST_SPOIL", whom));
        assert_eq!((trained.state.manifest.attempts, trained.state.manifest.samples), (5, 5 * 6));
        trained
    };
    let one = spoil(1, "0:1");
    assert_same(&one, &spoil(3, "2:1"));
    assert_same(&one, &spoil(4, "1:1"));
}

#[test]
fn another_seed_gives_other_bits() {
    // What all the others compare can differ.
    let model = Model::tiny();
    let (one, other) = (model.train(1, &[]), model.train(1, &["model.init_seed=2"]));
    assert_ne!(one.steps.column("loss"), other.steps.column("loss"));
    assert!(std::panic::catch_unwind(|| assert_same_state(&one.state, &other.state)).is_err());
}

#[test]
fn the_plan_on_paper_is_what_the_ranks_measure() {
    for (model, n_ranks) in [(Model::tiny(), 1), (Model::tiny(), 4), (Model::tiny(), 5), (Model::odd(2), 3)] {
        let words = ["train.eval_every=0"]; // the paper is about training
        let paper = model.plan(n_ranks, &words);
        model.train(n_ranks, &words);
        let summary = summary(&model.case.path(&format!("run_{n_ranks} train.eval_every=0")));
        let context = format!("paper\n{paper:#}\nrun\n{summary:#}");

        assert_eq!(paper["world_size"], summary["world_size"]);
        assert_eq!(paper["n_params"], summary["resident"]["n_params"], "{context}");
        assert_eq!(paper["resident_bytes"], summary["resident"]["bytes"]["measured"], "{context}");
        assert_eq!(paper["formula_bytes"], summary["resident"]["formula_bytes"], "{context}");
        assert_eq!(paper["peak_bytes"], summary["peak_bytes"]["measured"], "{context}");

        // The same kinds in the same order; the file names them as identifiers, the paper in words.
        let list = |rows: &Value, bytes: &str| -> Vec<u64> {
            let all = rows["peak_bytes_by_kind"].as_array().expect("a list").iter();
            all.filter_map(|row| row[bytes].as_u64()).filter(|&bytes| bytes > 0).collect()
        };
        assert!(list(&paper, "bytes").len() >= 8, "{context}");
        assert_eq!(list(&paper, "bytes"), list(&summary, "measured"), "{context}");

        // At most two gathers and one reduction of everything (padded) per micro-step.
        let numels =
            paper["params"].as_array().expect("a list").iter().map(|param| param["numel"].as_u64().unwrap());
        let slices: u64 = numels.map(|numel| numel.div_ceil(n_ranks as u64)).sum();
        let micro_steps = paper["n_micro"].as_u64().unwrap().div_ceil(n_ranks as u64);
        let bound = micro_steps * 3 * 4 * slices * (n_ranks as u64 - 1);
        assert_eq!(paper["upper_bound"]["bytes"], bound, "{context}");
        let per_step = |name: &str| summary[name]["measured"].as_u64().expect("bytes");
        let moved = per_step("all_gather_bytes_per_step") + per_step("reduce_scatter_bytes_per_step");
        assert!(moved <= bound && (n_ranks == 1 || 2 * moved > bound), "{moved} of at most {bound}");

        let received = summary["received_bytes"].as_array().expect("a list");
        assert_eq!(received.len(), n_ranks);
        for rows in paper["step_volume"].as_array().expect("a list") {
            let (first, last) = (rows["first_rank"].as_u64().unwrap(), rows["last_rank"].as_u64().unwrap());
            for rank in first..=last {
                let of_run = |name: &str| received[rank as usize][name].as_u64();
                let of_paper = |name: &str| rows[name].as_u64().map(|bytes| bytes * model.last_step);
                assert_eq!(
                    of_run("train_all_gather"),
                    of_paper("all_gather_bytes"),
                    "rank {rank}, {context}"
                );
                assert_eq!(
                    of_run("train_reduce_scatter"),
                    of_paper("reduce_scatter_bytes"),
                    "rank {rank}, {context}"
                );
            }
        }
    }
}
