//! One result, whatever the rank count, the threads, the knobs: the same bits in every logged number, weight
//! and moment. And each of these runs moves and holds exactly what its plan says.

mod common;
#[path = "common/covering.rs"]
mod covering;
#[path = "common/deck_space.rs"]
mod deck_space;

use common::state::{State, assert_same_state};
use common::{Case, Output, Run, Running, Steps, assert_same_curve, summary, until_row};
use covering::{Array, Space};
use deck_space::{DONOR, Drawn, TIGHTEST};
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use zero3::checkpoint;
use zero3::config::{BackendKind, Deck, ReduceWhen};
use zero3::error::{Error, Result};
use zero3::plan::{Knobs, Plan};
use zero3::train::for_kind;

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

/// Of the array that every run of the tests draws.
const FIXED_SEED: u64 = 26;
/// Its decks that are run there, the others being planned.
const N_RUN_OF_FIXED: usize = 3;
/// Every deck is planned on so many ranks.
const RANKS: [usize; 5] = [1, 2, 3, 5, 7];

fn array(space: &Space, seed: u64) -> Array {
    let array = covering::cover(space, seed);
    println!(
        "seed {seed}: {} keys and what is none, {} values; pairs: {}; triples of {}: {}; {} decks",
        space.factors.len(),
        space.factors.iter().map(|factor| factor.values.len()).sum::<usize>(),
        array.pairs,
        space.triples_of.len(),
        array.triples,
        array.rows.len()
    );
    for count in [array.pairs, array.triples] {
        assert!(count.met > 0 && count.met + count.impossible == count.wanted, "{count}");
    }
    array
}

fn parse(drawn: &Drawn) -> Result<Deck> {
    Deck::parse("", &drawn.keys, "a drawn deck")
}

/// Reads the deck and plans it on every number of ranks; sets the tightest cap that all of them accept.
fn plan(drawn: &mut Drawn) -> Deck {
    let is_tightest = drawn.value("zero.max_live_bytes") == Some(TIGHTEST);
    if is_tightest {
        drawn.set("zero.max_live_bytes", "1");
    }
    loop {
        let deck = parse(drawn).unwrap_or_else(|e| panic!("{e}\n{}", drawn.words().join("\n")));
        for printed in [deck.to_toml(), deck.to_commented_toml()] {
            let again = Deck::parse(&printed, &[], "printed").unwrap_or_else(|e| panic!("{e}\n{printed}"));
            assert_eq!((again.digest(), &again), (deck.digest(), &deck), "{printed}");
        }
        let refusal = RANKS.into_iter().find_map(|n_ranks| {
            let planned = for_kind::plan(deck.run.backend, &deck, n_ranks);
            let checked = planned.and_then(|(model, plan)| {
                // `eval` and `sample` of what it trains.
                Plan::new(&model.spec, n_ranks, &Knobs::of_inference(&deck))?;
                assert!(plan.resident_bytes() <= plan.arena_bytes as u64, "{n_ranks} ranks: {drawn:?}");
                for_kind::check_budget(deck.run.backend, &deck, &plan)
            });
            checked.err().map(|e| e.to_string())
        });
        let Some(refusal) = refusal else { return deck };
        // "... gathers 220320 bytes on 1 rank: at least that, or ..."
        let least = refusal.split_once(" bytes").and_then(|(before, _)| before.rsplit(' ').next());
        let least = least.filter(|n| is_tightest && n.parse::<u64>().is_ok());
        let least = least.unwrap_or_else(|| panic!("{refusal}\n{drawn:?}"));
        drawn.set("zero.max_live_bytes", least);
    }
}

#[test]
fn every_deck_of_a_covering_array_is_read_and_planned_and_every_broken_rule_is_refused_by_its_key() {
    let space = deck_space::space();
    let drawn = |row: &covering::Row| Drawn::new(&space, row, Path::new("files"), Path::new("runs"));
    for row in &array(&space, FIXED_SEED).rows {
        plan(&mut drawn(row));
    }
    for (rule, row) in covering::refused(&space, FIXED_SEED, 3) {
        let keys: Vec<&str> =
            space.rules[rule].factors.iter().map(|&f| space.factors[f].name.as_str()).collect();
        match parse(&drawn(&row)) {
            Err(Error::Deck(faults)) => {
                assert!(
                    faults.iter().any(|fault| keys.contains(&fault.key.as_str())),
                    "{keys:?}: {faults:?}"
                );
            }
            other => panic!("{keys:?} may not stand together so, and {other:?}\n{:?}", drawn(&row)),
        }
    }
}

/// What the decks of an array train on, and their runs.
struct Bench {
    case: Case,
    n_launches: AtomicUsize,
}

impl Bench {
    fn new() -> Self {
        let case = Case::tiny();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(case.path(name), bytes).expect("a temporary file");
        let text = common::text(20_000);
        let (train, val) = (&text.as_bytes()[..6000], &text.as_bytes()[17_000..17_700]);
        write("empty.toml", b"");
        write("part_1.txt", &train[..2501]);
        write("part_2.txt", &train[2501..]);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizer.json");
        std::fs::copy(golden, case.path("tokenizer.json")).expect("a temporary file");
        for (name, bytes) in [("tokens", train), ("val", val)] {
            if name == "val" {
                write("val.txt", bytes);
            }
            let u16s: Vec<u8> = bytes.iter().flat_map(|&b| u16::from(b).to_le_bytes()).collect();
            let u32s: Vec<u8> = bytes.iter().flat_map(|&b| u32::from(b).to_le_bytes()).collect();
            let mut header = vec![0; 1024];
            for (place, word) in header.chunks_mut(4).zip([20_240_520, 1, bytes.len() as u32]) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            write(&format!("{name}.llmc"), &[header, u16s.clone()].concat());
            write(&format!("{name}.bin"), &u16s);
            write(&format!("{name}.u32"), &u32s);
        }
        Bench { case, n_launches: AtomicUsize::new(0) }
    }

    /// `zero3 COMMAND`, with the keys of a deck. No device is seen, so that `auto` is the CPU.
    fn launch(&self, n_ranks: usize, command: &[&str], drawn: &Drawn) -> Run {
        self.n_launches.fetch_add(1, Ordering::Relaxed);
        let run = Run::new(n_ranks).dir(&self.case.path("")).env("CUDA_VISIBLE_DEVICES", "");
        run.args(command).arg(self.case.path("empty.toml")).args(drawn.words())
    }
}

/// The run ended as the documents say, with nothing that only its authors understand.
#[track_caller]
fn ended(output: Output, codes: &[i32]) -> Output {
    assert!(codes.contains(&output.code), "exit code is none of {codes:?}\n{output}");
    for part in ["panicked", "internal error", "RUST_BACKTRACE"] {
        assert!(!output.text().contains(part), "{part:?}\n{output}");
    }
    output
}

/// The keys that, by the documents, decide the bits; all others are left out, on one rank.
fn reference(drawn: &Drawn, run_dir: &Path) -> Drawn {
    let mut reference = drawn.clone();
    reference.keys.retain(|(key, _)| {
        ["model.", "data.", "train.", "optim."].iter().any(|section| key.starts_with(section))
            || ["zero.param_dtype", "zero.grad_dtype", "zero.reduce_dtype"].contains(&key.as_str())
    });
    reference.keys.retain(|(key, _)| !key.starts_with("train.sample_") && key != "data.allow_changed");
    reference.set("run.dir", &run_dir.display().to_string());
    reference.set("run.threads_per_rank", "1");
    reference
}

/// A deck from its reference run on one rank to the report on its own: trained, interrupted, resumed on
/// another number of ranks, evaluated.
fn run_deck(bench: &Bench, mut drawn: Drawn, dir: &Path) {
    let deck = plan(&mut drawn);
    let (n_ranks, n_resumed) = (drawn.n_ranks, drawn.n_ranks_of_resume);
    if deck.run.backend == BackendKind::Cuda {
        // There is none: refused, or told apart from a deck that names devices.
        ended(bench.launch(n_ranks, &["train"], &drawn).output(), &[2, 5]);
        return;
    }
    if drawn.value("model.init_from") == Some(DONOR) {
        let donor = dir.join("donor");
        let mut of_donor = reference(&drawn, &donor);
        of_donor.set("model.init_from", "");
        of_donor.set("model.init_seed", "77");
        of_donor.set("train.steps", "1");
        of_donor.set("train.eval_every", "0");
        ended(bench.launch(0, &["train"], &of_donor).output(), &[0]);
        drawn.set("model.init_from", &donor.display().to_string());
    }
    let whole = dir.join("whole");
    ended(bench.launch(0, &["train"], &reference(&drawn, &whole)).output(), &[0]);

    let run_dir = Path::new(&deck.run.dir);
    let train = |n_ranks: usize, fault: Option<String>| {
        let mut run = bench.launch(n_ranks, &["train"], &drawn);
        if let Some(per_node) = drawn.per_node.filter(|&per_node| per_node < n_ranks) {
            run = run.env("ZERO3_TEST_RANKS_PER_NODE", per_node.to_string());
        }
        fault.into_iter().fold(run, |run, fault| run.env("ZERO3_TEST_FAULT", fault))
    };
    let last = deck.train.steps;
    let stop_signal = deck.run.stop_signals.text().split(',').next().unwrap_or("").trim_start_matches("SIG");
    let output = match drawn.interruption.as_str() {
        "kill" => ended(train(n_ranks, Some(format!("kill@step:{}:{last}", n_ranks - 1))).output(), &[137]),
        "stop" if !stop_signal.is_empty() => {
            let running = train(n_ranks, Some(format!("slow@step:*:{last}"))).start();
            let pid = running.pid_of_rank(n_ranks - 1);
            until_row(run_dir, last as usize - 1);
            Running::signal_pid(pid, stop_signal);
            // On a slow machine the signal comes after the last step.
            ended(running.output(), &[75, 0])
        }
        _ => ended(train(n_ranks, None).output(), &[0]),
    };
    let saved_at =
        || checkpoint::newest(run_dir).expect("a readable run").map_or(0, |(step, _)| step as usize);
    // Rows up to the step that it started from are of an earlier process, on other ranks.
    let check = |started_at: usize| {
        let steps = Steps::read(run_dir);
        let own = Steps { header: steps.header.clone(), rows: steps.rows[started_at..].to_vec() };
        measured_is_planned(&summary(run_dir), &own);
        let n_micro = deck.train.n_micro();
        let in_order = |n: usize| n == 1 || n >= n_micro;
        if deck.zero.reduce == ReduceWhen::EveryMicroStep || (in_order(n_ranks) && in_order(n_resumed)) {
            assert_same_curve(&Steps::read(&whole), &steps);
            if saved_at() > 0 {
                let diff = checkpoint::diff(run_dir, &whole).expect("two checkpoints");
                assert!(diff.is_equal(), "{diff}");
            }
        }
    };
    if output.code == 0 {
        check(0);
    }
    let started_at = saved_at();
    // A run that is finished already says so.
    ended(train(n_resumed, None).output(), &[0]);
    if output.code != 0 {
        check(started_at);
    }

    let saved = saved_at() > 0;
    assert!(saved || deck.checkpoint.every == 0, "no checkpoint");
    let mut evaluated = drawn.clone();
    let train_files = drawn.value("data.train").expect("it is required");
    let val = format!("val.{}", train_files.rsplit_once('.').expect("an ending").1);
    evaluated.set("data.val", &bench.case.path(&val).display().to_string());
    let run = run_dir.display().to_string();
    let eval = bench.launch(n_resumed, &["eval", "--json", &run], &evaluated).output();
    let eval = ended(eval, &[if saved { 0 } else { 2 }]);
    if saved {
        let said: Value = serde_json::from_str(&eval.stdout).unwrap_or_else(|e| panic!("{e}\n{eval}"));
        assert!(said["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{eval}");
    }
    bench.n_launches.fetch_add(1, Ordering::Relaxed);
    ended(Run::new(0).arg("report").arg(run_dir).output(), &[0]);
}

/// Runs decks on two threads; panics with all that went wrong, deck by deck.
fn run_decks(seed: u64, which: impl Fn(usize) -> bool + Sync) {
    let (space, started) = (deck_space::space(), Instant::now());
    let array = array(&space, seed);
    let bench = Bench::new();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(row) = array.rows.get(i) else { break };
            if !which(i) {
                continue;
            }
            let dir = bench.case.path(&format!("deck_{i}"));
            let drawn = Drawn::new(&space, row, &bench.case.path(""), &dir);
            let run = || run_deck(&bench, drawn.clone(), &dir);
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                let said = panic.downcast::<String>().map_or_else(|_| "a panic".into(), |said| *said);
                let again = format!("ZERO3_ARRAY_SEED={seed} ZERO3_ARRAY_ONLY={i}");
                wrong
                    .lock()
                    .expect("no holder panics")
                    .push(format!("deck {i} ({again}): {said}\n{drawn:?}"));
            }
            std::fs::remove_dir_all(&dir).ok();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let (n_launches, seconds) = (bench.n_launches.load(Ordering::Relaxed), started.elapsed().as_secs_f64());
    println!("{n_launches} runs in {seconds:.0} s");
    let wrong = wrong.into_inner().expect("no holder panics");
    assert!(wrong.is_empty(), "{} decks went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn some_decks_of_the_array_end_as_documented_with_the_bits_of_one_rank_and_the_planned_bytes() {
    run_decks(FIXED_SEED, |i| i < N_RUN_OF_FIXED);
}

/// Another array each day; `ZERO3_ARRAY_SEED` chooses one, and `ZERO3_ARRAY_ONLY` a deck of it.
#[test]
#[ignore = "minutes: make test-slow"]
fn all_decks_of_the_array_of_the_day_end_as_documented_with_the_bits_of_one_rank_and_the_planned_bytes() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: a whole number")))
    };
    let today = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() / 86_400;
    let seed = number("ZERO3_ARRAY_SEED").unwrap_or_else(today);
    let only = number("ZERO3_ARRAY_ONLY");
    run_decks(seed, |i| only.is_none_or(|only| only == i as u64));
}
