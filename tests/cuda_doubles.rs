//! The real binary on doubles of NVIDIA's libraries (tests/cuda/doubles): what runs on CUDA streams and NCCL
//! communicators, on a machine that has neither.
//!
//! This proves orchestration: which operation waits for which, what is sent to whom, what is said when
//! something fails. It proves nothing about speed, about NCCL and cuBLASLt themselves, or about a GPU's
//! memory.

mod common;

use common::state::{State, assert_same_state};
use common::{Case, Run, Steps, assert_same_curve, cuda, summary};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};
use zero3::checkpoint::step_dir;

/// Runs one case of the doubles' own test.
fn self_test(case: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(cuda::doubles().join("self_test")).arg(case).envs(env.iter().copied());
    command.output().expect("coreutils has timeout")
}

#[test]
fn the_doubles_do_what_the_tests_rely_on() {
    let cases = [
        "memory_is_apart",
        "host_memory_is_no_argument",
        "copies_happen_in_their_time",
        "events_tell_the_time_of_execution",
        "kernels_run",
        "sources_are_known",
        "products_are_right",
        "careless_products_are_refused",
        "collectives_give_the_right_numbers",
        "two_communicators_move_apart",
        "differing_calls_are_named",
        "a_missing_call_is_named",
        "a_dead_rank_is_an_error",
        "an_aborted_communicator_lets_go",
        "one_device_for_two_ranks_is_refused",
    ];
    for case in cases {
        let output = self_test(case, &[]);
        assert!(
            output.status.success(),
            "{case}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_host_that_touches_device_memory_dies() {
    let output = self_test("host_touches_device_memory", &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("host code touched device memory"), "{text}");
}

#[test]
fn a_missing_wait_is_a_wrong_number_in_some_order_and_a_wait_a_right_one_in_every() {
    // 0 where the number is right, 3 where it is wrong.
    let outcomes = |case: &str| {
        let run = |order: String| self_test(case, &[("CUDA_DOUBLE_ORDER", &order)]).status.code();
        cuda::orders(20).into_iter().map(run).collect::<Vec<_>>()
    };
    for case in ["reader_waits", "writer_waits"] {
        assert_eq!(outcomes(case), vec![Some(0); 22], "{case}");
    }
    for case in ["reader_does_not_wait", "writer_does_not_wait", "a_collective_reads_late"] {
        let outcomes = outcomes(case);
        assert!(outcomes.iter().all(|code| matches!(code, Some(0 | 3))), "{case}: {outcomes:?}");
        // One of the two extremes, and seeds of both kinds.
        assert_ne!(outcomes[0], outcomes[1], "{case}: {outcomes:?}");
        assert!(outcomes[2..].contains(&Some(0)) && outcomes[2..].contains(&Some(3)), "{case}: {outcomes:?}");
    }
}

/// Of every run on CUDA here: shorter than the tiny deck, gradients added in one order.
const CUDA: [&str; 4] =
    ["run.backend=cuda", "zero.deterministic=true", "train.steps=3", "train.eval_every=3"];

/// What a run left.
struct Trained {
    steps: Steps,
    state: State,
}

impl Trained {
    #[track_caller]
    fn read(case: &Case, run: &str) -> Self {
        let dir = case.path(run);
        // Bytes of the real calls, and peaks of memory, against the plan; on every rank and at every step.
        assert_eq!(summary(&dir)["steps_off_plan"], 0, "{run}: {:#}", summary(&dir));
        let steps = Steps::read(&dir);
        let last = *steps.numbers("step").last().expect("a step") as u64;
        Trained { steps, state: State::read(&dir, last) }
    }
}

/// Trains on doubles into a run directory named after the run.
#[track_caller]
fn train(case: &Case, n_ranks: usize, order: &str, words: &[&str]) -> Trained {
    let run = format!("cuda_{n_ranks}_{order} {}", words.join(" ")).replace('/', "_");
    let all: Vec<&str> = CUDA.iter().chain(words).copied().collect();
    case.train(n_ranks, &run, &all).on_doubles(n_ranks, order).output().expect_success();
    Trained::read(case, &run)
}

/// The same deck on the CPU.
#[track_caller]
fn train_on_cpu(case: &Case, words: &[&str]) -> Trained {
    let run = format!("cpu {}", words.join(" ")).replace('/', "_");
    let cpu = CUDA.iter().map(|&word| if word == "run.backend=cuda" { "run.backend=cpu" } else { word });
    let all: Vec<&str> = cpu.chain(words.iter().copied()).collect();
    case.train(1, &run, &all).output().expect_success();
    Trained::read(case, &run)
}

#[track_caller]
fn assert_same(one: &Trained, other: &Trained) {
    assert_same_curve(&one.steps, &other.steps);
    assert_same_state(&one.state, &other.state);
}

/// Losses and norms of two runs differ by no more than `tolerance`, relatively.
#[track_caller]
fn assert_near(one: &Trained, other: &Trained, tolerance: f64) {
    for column in ["loss", "grad_norm"] {
        let pairs = one.steps.numbers(column).into_iter().zip(other.steps.numbers(column));
        let worst = pairs.map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance, "{column}: worst relative difference {worst:e}, allowed {tolerance:e}");
    }
}

/// The same numbers in another order of sums: a few units in the last place of f32 in the first loss. Steps
/// make more of it: where a gradient is almost nothing, AdamW divides noise by noise.
const F32_TOLERANCE: f64 = 1e-4;
/// bf16 has 8 bits, and kernels round at other places than the CPU's.
const BF16_TOLERANCE: f64 = 2e-2;

/// Both extreme orders of streams and some drawn ones; `make test-cuda-orders` tries more, on more ranks.
#[test]
fn one_two_and_four_ranks_give_the_same_bits_whatever_the_order_of_streams() {
    let case = Case::tiny();
    let first = train(&case, 1, "demand", &[]);
    assert_near(&first, &train_on_cpu(&case, &[]), F32_TOLERANCE);
    for n_ranks in [1, 2, 4] {
        for order in cuda::orders(6) {
            assert_same(&first, &train(&case, n_ranks, &order, &[]));
        }
    }
}

#[test]
#[ignore = "minutes: uneven rank counts and bf16 in every order (make test-cuda-orders)"]
fn every_rank_count_in_every_order_of_streams_gives_the_same_bits() {
    let case = Case::tiny();
    for words in [&[][..], &["zero.param_dtype=bf16"]] {
        let first = train(&case, 1, "demand", words);
        for n_ranks in [1, 2, 3, 4, 5] {
            for order in cuda::orders(20) {
                assert_same(&first, &train(&case, n_ranks, &order, words));
            }
        }
    }
}

#[test]
fn bf16_has_the_same_bits_on_one_two_and_four_ranks_and_is_near_the_cpu() {
    let case = Case::tiny();
    let bf16 = ["zero.param_dtype=bf16", "zero.grad_dtype=bf16", "zero.reduce_dtype=bf16"];
    let first = train(&case, 1, "demand", &bf16);
    assert_near(&first, &train_on_cpu(&case, &bf16), BF16_TOLERANCE);
    for (n_ranks, order) in [(1, "1"), (2, "others"), (2, "2"), (4, "demand"), (4, "3")] {
        assert_same(&first, &train(&case, n_ranks, order, &bf16));
    }
    // Wide enough for what only multiples of 8 have: GELU with the product, whole vectors.
    let wide = [&bf16[..], &["model.d_model=32"]].concat();
    let first = train(&case, 1, "others", &wide);
    assert_near(&first, &train_on_cpu(&case, &wide), BF16_TOLERANCE);
    assert_same(&first, &train(&case, 2, "4", &wide));
}

#[test]
fn a_llama_has_the_same_bits_on_one_and_three_ranks_is_near_the_cpu_and_writes_the_same_text() {
    let case = Case::tiny();
    let f32 =
        ["model.family=llama", "model.d_model=24", "model.n_head=6", "model.n_kv_head=2", "model.d_ff=40"];
    let bf16 =
        [&f32[..], &["zero.param_dtype=bf16", "zero.grad_dtype=bf16", "zero.reduce_dtype=bf16"]].concat();
    for (words, tolerance) in [(&f32[..], F32_TOLERANCE), (&bf16, BF16_TOLERANCE)] {
        let first = train(&case, 1, "demand", words);
        assert_near(&first, &train_on_cpu(&case, words), tolerance);
        assert_same(&first, &train(&case, 3, "2", words));
        // Longer than a context: kept rows are begun anew.
        let texts: Vec<String> = [1, 2]
            .map(|n_ranks| {
                let sampling = ["train.sample_every=3", "train.sample_tokens=30"];
                let words = [&CUDA[..], words, &sampling].concat();
                let run = format!("text {n_ranks} {}", words.len());
                let said =
                    case.train(n_ranks, &run, &words).on_doubles(n_ranks, "1").output().expect_success();
                let text = said.text();
                let from = text.find("sample at step 3: The").unwrap_or_else(|| panic!("no text in {said}"));
                text[from..].lines().next().expect("a line").to_string()
            })
            .into();
        assert_eq!(texts[0], texts[1]);
    }
}

#[test]
fn heads_of_every_width_train_on_devices_of_little_shared_memory() {
    let case = Case::tiny();
    for d_head in [64, 80, 96, 128] {
        for (dtype, tolerance) in [("f32", F32_TOLERANCE), ("bf16", BF16_TOLERANCE)] {
            let (width, dtype) = (format!("model.d_model={d_head}"), format!("zero.param_dtype={dtype}"));
            // Several tiles of keys, however small.
            let words = ["model.n_head=1", "model.n_layer=1", "model.seq_len=40", &width, &dtype];
            let cpu = train_on_cpu(&case, &words);
            for (compute, kib) in [("80", 163), ("86", 99), ("120", 99)] {
                let run = format!("{d_head} {dtype} on {compute}");
                let all: Vec<&str> = CUDA.iter().copied().chain(words).collect();
                let log = case.path("log");
                let run_on = case.train(1, &run, &all).on_doubles(1, "1").env("CUDA_DOUBLE_LOG", &log);
                let output = run_on.env("CUDA_DOUBLE_COMPUTE", compute).output().expect_success();
                output.expect_text(&format!("sm_{compute}"));
                assert_near(&Trained::read(&case, &run), &cpu, tolerance);
                let log = fs::read_to_string(case.path("log.0")).expect("the double writes it");
                let rows = match (d_head, dtype.ends_with("f32"), kib) {
                    (64, ..) => "64x64",
                    (_, true, 99) => "128x16",
                    (_, true, _) => "128x64",
                    (_, false, _) => "128x32",
                };
                for kernel in ["attention_forward_", "attention_backward_q_", "attention_backward_kv_"] {
                    let launched: BTreeSet<&str> =
                        log.split_whitespace().filter(|word| word.starts_with(kernel)).collect();
                    assert!(
                        launched.len() == 1 && launched.iter().all(|k| k.ends_with(rows)),
                        "{run}: {launched:?}"
                    );
                }
            }
        }
    }
}

/// Launches, events, products and groups of NCCL have what they need from the first steps on.
#[test]
fn a_steady_step_asks_the_heap_for_nothing() {
    let case = Case::tiny();
    for n_ranks in [1, 2, 3] {
        let run = n_ranks.to_string();
        let words: Vec<&str> = CUDA.into_iter().chain(["train.eval_every=0", "checkpoint.every=0"]).collect();
        case.train(n_ranks, &run, &words).on_doubles(n_ranks, "demand").output().expect_success();
        let of = &summary(&case.path(&run))["step_allocations"];
        let program =
            of.as_array().expect("a list").iter().find(|a| a["owner"] == "program").expect("counted");
        assert_eq!(program["count"], 0, "{n_ranks} ranks: {program}");
    }
}

#[test]
fn stages_and_knobs_move_other_bytes_to_the_same_bits() {
    let case = Case::tiny();
    let first = train(&case, 1, "demand", &[]);
    let knobs: [(&[&str], usize, &str); 10] = [
        (&["zero.stage=0"], 2, "1"),
        (&["zero.stage=1"], 3, "2"),
        (&["zero.stage=2"], 2, "3"),
        (&["zero.stage=2"], 4, "others"),
        (&["zero.overlap=false"], 2, "4"),
        (&["zero.activation_checkpointing=all"], 2, "5"),
        (&["zero.activation_checkpointing=every:2", "zero.prefetch_units=0"], 3, "6"),
        (&["zero.prefetch_units=3", "zero.release_after_forward=false"], 2, "7"),
        (&["zero.gather_bucket_bytes=4096", "zero.reduce_bucket_bytes=4096"], 4, "8"),
        (&["zero.persistence_threshold_bytes=300"], 2, "others"),
    ];
    for (words, n_ranks, order) in knobs {
        assert_same(&first, &train(&case, n_ranks, order, words));
    }
}

#[test]
fn a_lone_rank_runs_all_stages() {
    let case = Case::tiny();
    let first = train(&case, 1, "others", &[]);
    for stage in ["zero.stage=0", "zero.stage=1", "zero.stage=2"] {
        assert_same(&first, &train(&case, 1, "9", &[stage]));
    }
}

#[test]
fn nccls_own_sum_is_near_the_ordered_one() {
    let case = Case::tiny();
    let ordered = train(&case, 1, "demand", &[]);
    // 4 ranks and 6 micro-batches: two ranks have none at the end, and add zeros.
    for (n_ranks, order) in [(2, "demand"), (2, "1"), (4, "others"), (4, "2")] {
        let near = train(&case, n_ranks, order, &["zero.deterministic=false"]);
        assert_near(&near, &ordered, F32_TOLERANCE);
    }
}

/// The run as one that ended after `step` left it.
fn copy_as_of(case: &Case, from: &str, to: &str, step: u64) {
    let (from, to) = (step_dir(&case.path(from), step), step_dir(&case.path(to), step));
    fs::create_dir_all(&to).expect("a temporary directory");
    for entry in fs::read_dir(from).expect("a checkpoint") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file that can be copied");
    }
}

#[test]
fn checkpoints_of_one_backend_go_on_with_the_other() {
    let case = Case::tiny();
    let save_all = ["checkpoint.every=1", "checkpoint.keep_last=0"];
    let (cuda, cpu) = (train(&case, 2, "1", &save_all), train_on_cpu(&case, &save_all));
    let run_of = |backend: &str| match backend {
        "cuda" => format!("cuda_2_1 {}", save_all.join(" ")),
        _ => format!("cpu {}", save_all.join(" ")),
    };
    for (from, to, n_ranks) in [("cuda", "cpu", 3), ("cpu", "cuda", 3), ("cuda", "cuda", 4)] {
        let run = format!("from {from} to {to}");
        copy_as_of(&case, &run_of(from), &run, 2);
        let backend = format!("run.backend={to}");
        let words: Vec<&str> = CUDA[1..].iter().copied().chain([&backend[..]]).chain(save_all).collect();
        case.train(n_ranks, &run, &words).on_doubles(n_ranks, "2").output().expect_success();
        let state = State::read(&case.path(&run), 3);
        let steps = Steps::read(&case.path(&run));
        assert_eq!(steps.column("step"), ["3"], "{run}");
        let loss = steps.numbers("loss")[0];
        let whole = if to == "cuda" { &cuda } else { &cpu };
        let expected = whole.steps.numbers("loss")[2];
        assert!(
            (loss - expected).abs() <= F32_TOLERANCE * expected,
            "{run}: loss {loss}, without a break {expected}"
        );
        if from == to {
            assert_same_state(&state, &whole.state);
        }
    }
}

/// Runs that between them need every wait: stage 2 gathers what the update has just written; a lone rank has
/// no staging, whose reuse would make its reductions wait for the backward too.
const NEEDING_WAITS: [(usize, &str); 3] = [(2, "zero.stage=3"), (2, "zero.stage=2"), (1, "zero.stage=3")];

/// Waits that order nothing which another wait does not order too, with the place of that one; None where the
/// stream itself does.
///
/// A region is given back when the compute stream has come past its last use. So later work there comes after
/// that by itself; and a collective waits for all that the compute stream has been given before it starts.
fn covered_by<'a>(place: &str, places: &'a BTreeSet<String>) -> Option<Option<&'a str>> {
    let (source, queue) = place.split_once(' ').expect("SOURCE:LINE QUEUE");
    if !source.starts_with("src/backend/memory.rs:") {
        return None;
    }
    let collective =
        |other: &&String| other.starts_with("src/backend/cuda/comm.rs:") && other.ends_with(queue);
    Some(if queue == "Compute" { None } else { places.iter().find(collective).map(String::as_str) })
}

/// Where the waits of NCCL's own collectives stand, which training does not call.
const LIBRARY: &str = "src/backend/cuda/library.rs:";

/// Every place in the sources that makes a stream or the host wait for an event, as `SOURCE:LINE`.
fn waits_in_the_sources() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let files =
        ["src/backend/cuda/*.rs", "src/backend/*.rs", "src/train/*.rs", "src/zero/*.rs", "src/optim/*.rs"];
    let paths = files.iter().flat_map(|files| glob::glob(&format!("{root}{files}")).expect("a pattern"));
    let mut places = Vec::new();
    for path in paths {
        let path = path.expect("a path that can be read");
        let name = path.strip_prefix(root).expect("below the root").display().to_string();
        // What passes calls on is none of them.
        for (line, text) in (1..).zip(fs::read_to_string(&path).expect("a source").lines()) {
            let waits =
                ["device.wait(", "streams.wait(", "streams.sync("].iter().any(|call| text.contains(call));
            if waits && !text.contains("self.streams.wait(queue, event)") {
                places.push(format!("{name}:{line}"));
            }
        }
    }
    places
}

/// Whether a place of the sources is among listed ones, `SOURCE:LINE QUEUE`.
fn listed(places: &BTreeSet<String>, source_line: &str) -> bool {
    places.iter().any(|place| place.split(' ').next() == Some(source_line))
}

#[test]
fn each_wait_of_the_librarys_collectives_is_missed_where_it_is_left_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let deck = concat!(env!("CARGO_MANIFEST_DIR"), "/inputs/acceptance_quick.toml");
    let run = |name: &str, order: &str| {
        let words = [
            format!("run.dir={}", dir.path().join(name).display()),
            "run.backend=cuda".into(),
            "run.sections=collectives".into(),
            "collectives.iterations=3".into(),
            "collectives.max_bytes=4096".into(),
            "collectives.slow_link=0.9999".into(),
        ];
        Run::new(2).arg("accept").arg(deck).args(words).on_doubles(2, order)
    };
    let list = dir.path().join("waits");
    run("whole", "demand").env("ZERO3_TEST_LIST_WAITS", &list).output().expect_success();
    let text = fs::read_to_string(&list).expect("the program lists its waits");
    let places: BTreeSet<String> =
        text.lines().filter(|place| place.starts_with(LIBRARY)).map(String::from).collect();
    let written: Vec<_> =
        waits_in_the_sources().into_iter().filter(|place| place.starts_with(LIBRARY)).collect();
    assert!(
        !written.is_empty() && written.iter().all(|place| listed(&places, place)),
        "{written:?}: {places:?}"
    );
    for (at, place) in places.iter().enumerate() {
        let is_missed = cuda::orders(20).iter().any(|order| {
            let name = format!("without {at} {order}");
            run(&name, order).env("ZERO3_TEST_SKIP_WAIT", place).output().code != 0
        });
        assert!(is_missed, "no order of streams shows that {place} is missing");
    }
}

#[test]
fn each_wait_between_streams_is_missed_where_it_is_left_out() {
    let case = Case::tiny();
    let whole = NEEDING_WAITS.map(|(n_ranks, stage)| train(&case, n_ranks, "demand", &[stage]));
    let run = |name: &str, order: &str, n_ranks: usize, stage: &str| {
        let words: Vec<&str> = CUDA.into_iter().chain([stage]).collect();
        case.train(n_ranks, name, &words).on_doubles(n_ranks, order)
    };
    let mut places = BTreeSet::new();
    for (n_ranks, stage) in NEEDING_WAITS {
        let list = case.path("waits");
        let listing = run(&format!("listing {n_ranks} {stage}"), "demand", n_ranks, stage);
        listing.env("ZERO3_TEST_LIST_WAITS", &list).output().expect_success();
        let text = fs::read_to_string(&list).expect("the program lists its waits");
        places.extend(text.lines().map(String::from));
    }
    let everywhere = waits_in_the_sources();
    let elsewhere: Vec<_> = everywhere.iter().filter(|place| !listed(&places, place)).collect();
    // Those have a test of their own.
    assert!(
        elsewhere.iter().all(|place| place.starts_with(LIBRARY)),
        "never come to: {elsewhere:?}; listed: {places:?}"
    );
    // Whether a run without the waits of these places differs, or fails, in one of the orders.
    let is_missed = |without: &str, n_seeds: usize| {
        cuda::orders(n_seeds).iter().any(|order| {
            NEEDING_WAITS.iter().zip(&whole).any(|(&(n_ranks, stage), whole)| {
                let name = format!("without {without} {order} {n_ranks} {stage}").replace('/', "_");
                let output = run(&name, order, n_ranks, stage).env("ZERO3_TEST_SKIP_WAIT", without).output();
                output.code != 0 || {
                    let steps = Steps::read(&case.path(&name));
                    let differs = |column: &&str| steps.column(column) != whole.steps.column(column);
                    ["loss", "grad_norm", "val_loss"].iter().any(differs)
                }
            })
        })
    };
    let mut quiet = Vec::new();
    for place in &places {
        match covered_by(place, &places) {
            None if is_missed(place, 20) => {}
            None => quiet.push(place.clone()),
            Some(cover) => {
                assert!(!is_missed(place, 1), "{place} is needed after all");
                let both = cover.map(|cover| format!("{place};{cover}"));
                quiet.extend(both.filter(|both| !is_missed(both, 20)));
            }
        }
    }
    assert!(quiet.is_empty(), "no order of streams shows that these are missing: {quiet:?}; all: {places:?}");
}

/// The acceptance benchmark on GPUs: every section on NCCL's groups of all ranks, of pairs, and of some.
/// Speed means nothing here.
#[test]
fn the_acceptance_benchmark_runs_every_section_on_gpus() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let run_dir = dir.path().join("run");
    let words = [
        "run.backend=cuda",
        "device.seconds=0.02",
        "device.gemm_n=64",
        "device.memory_bytes=65536",
        "device.slow_rank=0.9999",
        "collectives.iterations=3",
        "collectives.max_bytes=4096",
        "collectives.slow_link=0.9999",
        "storage.bytes_per_rank=100000",
        "training.n_layer=1",
        "training.d_model=16",
        "training.seq_len=16",
        "training.global_batch_size=6",
        "training.steps=6",
        "scaling.steps=4",
        "elasticity.soak_minutes=0",
    ];
    let deck = concat!(env!("CARGO_MANIFEST_DIR"), "/inputs/acceptance_quick.toml");
    let words = words.map(String::from).into_iter().chain([format!("run.dir={}", run_dir.display())]);
    let run = Run::new(3).args(["accept".to_string(), deck.to_string()].into_iter().chain(words));
    run.on_doubles(3, "7").output().expect_success().expect_text("VALID  ACCEPTED");
    let text = fs::read_to_string(run_dir.join("report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let sections = report["sections"].as_array().expect("sections");
    assert!(sections.iter().all(|s| s["ending"] == "completed"), "{report:#}");
    let metrics = sections.iter().flat_map(|s| s["metrics"].as_array().expect("metrics"));
    let status = |name: &str| metrics.clone().find(|m| m["name"] == name).map(|m| m["status"].clone());
    for rank in report["ranks"].as_array().expect("ranks") {
        for (fact, says) in [
            ("device clock, highest", "1980 MHz"),
            ("device memory clock, highest", "2619 MHz"),
            ("device memory ECC", "on"),
        ] {
            assert_eq!(rank[fact], says, "{rank}");
        }
        assert!(
            rank["cuda_driver"].is_string()
                && rank["device bus id"].as_str().is_some_and(|id| id.contains(':'))
        );
    }
    for exact in [
        "inventory.odd_ones_out",
        "device.gemm_bf16.n_wrong",
        "collectives.n_wrong",
        "training.bad_ranks",
        "elasticity.restore_on_fewer_ranks",
        "elasticity.stop_and_resume",
    ] {
        assert_eq!(status(exact), Some("PASS".into()), "{exact}: {report:#}");
    }
    for measured in
        ["collectives.all_reduce.busbw", "collectives.library_reduce_scatter.busbw", "collectives.latency_us"]
    {
        assert_eq!(status(measured), Some("INFO".into()), "{measured}");
    }
}
