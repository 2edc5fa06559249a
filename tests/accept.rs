//! The acceptance benchmark under mpirun: it accepts a healthy machine, and finds what a test has broken.

mod common;

use common::{Output, Run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Tests of this file share the machine; one that goes by times has it for itself.
static MACHINE: RwLock<()> = RwLock::new(());

/// A directory with the reports of one acceptance.
struct Accepted {
    dir: tempfile::TempDir,
    /// None where the test holds the whole machine.
    _shared: Option<RwLockReadGuard<'static, ()>>,
}

impl Accepted {
    fn new() -> Self {
        let shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        Accepted { dir: tempfile::tempdir().expect("a temporary directory"), _shared: Some(shared) }
    }

    /// For a test that holds the machine.
    fn alone() -> Self {
        Accepted { dir: tempfile::tempdir().expect("a temporary directory"), _shared: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `zero3 accept` of the quick deck, made quicker, with overrides, flags and a fault.
    fn run(&self, n_ranks: usize, words: &[&str], fault: Option<(&str, &str)>) -> Output {
        let run = Run::new(n_ranks).args(self.words(words));
        fault.into_iter().fold(run, |run, (name, value)| run.env(name, value)).output()
    }

    /// The same on two ranks, with a file system of `size` at `dir` that this command alone sees.
    fn run_with_small(&self, dir: &Path, size: &str, words: &[&str]) -> Output {
        std::fs::create_dir(dir).expect("a directory");
        let script = format!("mount -t tmpfs -o size={size} tmpfs '{}' && exec \"$0\" \"$@\"", dir.display());
        let run = Run::new(0).program("unshare").args(["--mount", "--map-root-user", "sh", "-c", &script]);
        let run = run.arg("mpirun").args(["--oversubscribe", "--bind-to", "none", "-n", "2"]);
        run.arg(env!("CARGO_BIN_EXE_zero3")).args(self.words(words)).output()
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let deck = Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/acceptance_quick.toml");
        let own = [
            "accept".into(),
            deck.display().to_string(),
            format!("run.dir={}", self.path("run").display()),
            "run.threads_per_rank=1".into(),
            "device.seconds=0.02".into(),
            "device.gemm_n=128".into(),
            "device.memory_bytes=1048576".into(),
            // Ranks of tests share cores: only what is planted may stand out.
            "device.slow_rank=0.9".into(),
            "collectives.iterations=5".into(),
            "collectives.max_bytes=4096".into(),
            "collectives.slow_link=0.9999".into(),
            "storage.bytes_per_rank=100000".into(),
            "elasticity.soak_minutes=0".into(),
        ];
        own.into_iter().chain(words.iter().map(|word| word.to_string())).collect()
    }

    fn report(&self) -> Value {
        let path = self.path("run/report.json");
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Status and reason of a metric.
    #[track_caller]
    fn metric(&self, name: &str) -> (String, String) {
        let report = self.report();
        let mut all = report["sections"]
            .as_array()
            .expect("sections")
            .iter()
            .flat_map(|s| s["metrics"].as_array().expect("metrics"));
        let found = all.find(|m| m["name"] == name).unwrap_or_else(|| panic!("no metric {name}"));
        let text = |key: &str| found[key].as_str().expect("text").to_string();
        (text("status"), text("reason"))
    }

    /// Returns once a job that is under way writes in `storage`.
    fn await_storage(&self) {
        let begun = self.path("run/acceptance_work/storage");
        let looks = (0..6000).take_while(|_| !begun.exists());
        looks.for_each(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
        assert!(begun.exists(), "storage did not begin within a minute");
    }

    /// How a section ended, and why.
    #[track_caller]
    fn section(&self, name: &str) -> (String, String) {
        let report = self.report();
        let mut all = report["sections"].as_array().expect("sections").iter();
        let found = all.find(|s| s["name"] == name).unwrap_or_else(|| panic!("no section {name}"));
        let text = |key: &str| found[key].as_str().expect("text").to_string();
        (text("ending"), text("reason"))
    }
}

#[test]
fn three_ranks_of_a_healthy_machine_are_accepted_and_every_report_is_there() {
    let case = Accepted::new();
    let baseline = case.path("run/base.json").display().to_string();
    case.run(3, &["--record-baseline", &baseline], None).expect_success().expect_text("VALID  ACCEPTED");
    for section in ["inventory", "device", "collectives", "storage", "training", "scaling", "elasticity"] {
        assert_eq!(case.section(section).0, "completed", "{section}");
    }
    for exact in [
        "collectives.n_wrong",
        "storage.n_wrong",
        "training.peak_bytes",
        "training.bad_ranks",
        "training.losses",
        "elasticity.restore_on_fewer_ranks",
        "elasticity.stop_and_resume",
    ] {
        assert_eq!(case.metric(exact).0, "PASS", "{exact}: {:?}", case.metric(exact));
    }
    for name in ["report.csv", "junit.xml", "mllog.txt", "report.html"] {
        assert!(case.path("run").join(name).metadata().is_ok_and(|m| m.len() > 500), "{name}");
    }
    assert!(!case.path("run/acceptance_work").exists(), "what the runs wrote is gone");

    let report = case.report();
    let points = report["collectives"]["points"].as_array().expect("points");
    let sizes_of =
        |op: &str| points.iter().filter(|p| p["op"] == op).map(|p| p["bytes"].as_u64()).collect::<Vec<_>>();
    assert_eq!(sizes_of("point_to_point"), [8, 64, 512, 4096].map(Some));
    for section in ["device", "storage"] {
        assert_eq!(report[section].as_array().map(Vec::len), Some(3), "the rates of each rank: {section}");
    }
    let (_, reason) = case.metric("storage.write");
    assert!(reason.contains("slowest: rank "), "{reason}");

    // The same again, held against the first, whichever of its files is named: any speed will do, a known one
    // will not.
    let any = ["limits.gemm_f32_gflops=-99.9%", "limits.gemm_bf16_gflops=-99.9%"];
    let first = case.path("first.json").display().to_string();
    std::fs::copy(case.path("run/report.json"), &first).expect("a copy");
    for earlier in [&baseline, &first] {
        let words = ["run.sections=inventory,device", "limits.memory_gb_per_s=-99.9%", "--baseline", earlier];
        case.run(3, &[&any[..], &words[..]].concat(), None).expect_success();
        assert_eq!(case.metric("device.memory.slowest").0, "PASS");
    }
    let words = ["run.sections=inventory,device", "device.gemm_n=64", "--baseline", &first];
    case.run(3, &words, None).expect_code(2).expect_text("device.gemm_n: 128 there, 64 here");
    let words = ["run.sections=inventory,device", "limits.memory_gb_per_s=1e9 -10%", "--baseline", &baseline];
    case.run(3, &words, None)
        .expect_code(3)
        .expect_text("VALID  NOT ACCEPTED")
        .expect_text("below the lowest good value");
}

#[test]
fn a_rank_whose_arithmetic_is_off_by_a_bit_is_named_and_what_depends_on_it_does_not_run() {
    for (n_ranks, bad) in [(3, "1"), (5, "4")] {
        let case = Accepted::new();
        let words = ["run.sections=inventory,storage,training,scaling,elasticity"];
        let output = case.run(n_ranks, &words, Some(("ZERO3_TEST_FLIP", bad))).expect_code(3);
        output.expect_text("INVALID  NOT ACCEPTED");
        let (status, reason) = case.metric("training.bad_ranks");
        assert_eq!(status, "FAIL");
        assert!(reason.starts_with(&format!("silent data corruption on rank {bad} on ")), "{reason}");
        assert!(!reason.contains(", rank"), "nobody else: {reason}");
        for section in ["scaling", "elasticity"] {
            assert_eq!(case.section(section), ("skipped".into(), "training found wrong results".into()));
        }
        assert_eq!(case.section("storage").0, "completed");
    }
}

#[test]
fn a_wrong_value_in_a_collective_is_counted_and_its_rank_named() {
    let case = Accepted::new();
    let words = ["run.sections=inventory,collectives,storage"];
    case.run(3, &words, Some(("ZERO3_TEST_WRONG_VALUE", "2"))).expect_code(3).expect_text("INVALID");
    let (status, reason) = case.metric("collectives.n_wrong");
    assert_eq!(status, "FAIL");
    assert!(reason.contains("all_gather of") && reason.contains("on rank 2 on "), "{reason}");
    assert!(!reason.contains("rank 0 on") && !reason.contains("rank 1 on"), "{reason}");
    assert_eq!(case.section("storage").0, "completed");
}

#[test]
fn a_rank_that_computes_slowly_is_named() {
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let case = Accepted::alone();
    let words = ["run.sections=inventory,device"];
    // A hundred times slower than it is.
    case.run(3, &words, Some(("ZERO3_TEST_DRAG", "1:10000")))
        .expect_code(3)
        .expect_text("VALID  NOT ACCEPTED");
    let (status, reason) = case.metric("device.slow_ranks");
    assert_eq!(status, "FAIL");
    assert!(reason.contains("rank 1 on ") && reason.contains("gemm_f32"), "{reason}");
    assert!(!reason.contains("rank 0 on") && !reason.contains("rank 2 on"), "{reason}");
}

/// Programs that keep core 0 busy until they are dropped; of sessions of their own, which the scheduler
/// weighs one by one.
struct Hogs(Vec<Child>);

impl Hogs {
    fn start(n: usize) -> Self {
        let hog =
            || Command::new("setsid").args(["taskset", "-c", "0", "sh", "-c", "while :; do :; done"]).spawn();
        Hogs((0..n).map(|_| hog().expect("taskset")).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            hog.kill().and_then(|()| hog.wait()).expect("a hog ends");
        }
    }
}

/// Nothing is planted in the program: rank 1 gets a ninth of its core, and rank 0 the rest of the machine's.
#[test]
fn a_rank_whose_core_others_use_is_named() {
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let case = Accepted::alone();
    let _hogs = Hogs::start(8);
    let words = case.words(&["run.sections=inventory,device", "device.seconds=1", "device.slow_rank=0.5"]);
    let script = "[ $OMPI_COMM_WORLD_RANK = 0 ] || pin='taskset -c 0'; exec $pin \"$0\" \"$@\"";
    let run = Run::new(2).program("sh").args(["-c", script, env!("CARGO_BIN_EXE_zero3")]).args(words);
    run.output().expect_code(3).expect_text("VALID  NOT ACCEPTED");
    let (status, reason) = case.metric("device.slow_ranks");
    assert!(
        status == "FAIL" && reason.contains("rank 1 on ") && !reason.contains("rank 0 on "),
        "{status}: {reason}"
    );
}

#[test]
fn a_slow_link_is_named_by_both_its_ends() {
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let case = Accepted::alone();
    let words = ["run.sections=inventory,collectives", "collectives.iterations=10", "collectives.warmup=0"];
    case.run(4, &words, Some(("ZERO3_TEST_SLOW_LINK", "1-3:300000")))
        .expect_code(3)
        .expect_text("VALID  NOT ACCEPTED");
    let (status, reason) = case.metric("collectives.slow_links");
    assert_eq!(status, "FAIL");
    assert!(reason.starts_with("link rank 1 on ") && reason.contains(" - rank 3 on "), "{reason}");
    assert!(!reason.contains(';'), "one link: {reason}");
}

#[test]
fn a_full_disk_is_named_with_the_rank_that_met_it() {
    let case = Accepted::new();
    let words = ["run.sections=inventory,storage,device"];
    case.run(2, &words, Some(("ZERO3_TEST_FAULT", "enospc@storage.write:1:0")))
        .expect_code(3)
        .expect_text("INVALID");
    let (status, reason) = case.metric("storage.n_failed_ranks");
    assert_eq!(status, "FAIL");
    assert!(reason.contains("rank 1 on ") && reason.contains("No space left on device"), "{reason}");
    assert_eq!(case.metric("storage.read").0, "SKIPPED");
    assert_eq!(case.section("device").0, "completed");
}

#[test]
fn a_file_system_that_is_really_full_fails_the_section_and_not_the_job() {
    let case = Accepted::new();
    let small = case.path("small");
    let checkpoints = format!("run.checkpoint_dir={}", small.display());
    let words = ["run.sections=inventory,storage", "storage.bytes_per_rank=4194304", &checkpoints];
    case.run_with_small(&small, "1m", &words).expect_code(3).expect_text("INVALID");
    let (status, reason) = case.metric("storage.n_failed_ranks");
    assert_eq!(status, "FAIL");
    assert!(
        reason.contains("No space left on device") && reason.contains(&small.display().to_string()),
        "{reason}"
    );
}

#[test]
fn a_training_run_that_cannot_write_ends_the_job_with_a_report_that_says_where() {
    let case = Accepted::new();
    let small = case.path("small");
    let checkpoints = format!("run.checkpoint_dir={}", small.display());
    // Room for the tokens and for some of the files of the runs.
    case.run_with_small(&small, "300k", &["run.sections=inventory,training,scaling", &checkpoints])
        .expect_code(5);
    let report = case.report();
    let last = report["sections"].as_array().and_then(|s| s.last()).expect("sections");
    assert_eq!(
        (last["ending"].as_str(), &report["verdict"]["valid"]),
        (Some("failed"), &Value::Bool(false)),
        "{last}"
    );
    let reason = last["reason"].as_str().expect("text");
    assert!(reason.starts_with("rank 0 on ") && reason.contains("No space left on device"), "{reason}");
}

#[test]
fn reports_that_cannot_be_written_cost_the_files_and_not_the_verdict() {
    let case = Accepted::new();
    let checkpoints = format!("run.checkpoint_dir={}", case.path("checkpoints").display());
    let words = ["run.sections=inventory,device", &checkpoints];
    let output = case.run_with_small(&case.path("run"), "16k", &words).expect_code(5);
    output.expect_text("VALID  ACCEPTED").expect_text("report.json: No space left on device");
}

#[test]
fn a_loss_just_within_its_band_passes_and_just_outside_fails() {
    let case = Accepted::new();
    let answers = case.path("answers.json");
    let file = answers.display().to_string();
    let sections = "run.sections=inventory,training";
    case.run(1, &[sections, "--record-answers", &file], None).expect_success();
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&answers).expect("written")).expect("JSON");
    // An answer of another processor, a thousandth higher.
    stored[0]["computed_on"] = "another processor".into();
    let last = stored[0]["losses"].as_array().expect("losses").len() - 1;
    let loss = stored[0]["losses"][last].as_f64().expect("a number");
    stored[0]["losses"][last] = (loss / (1.0 - 1e-3)).into();
    std::fs::write(&answers, stored.to_string()).expect("writable");
    let known = format!("training.known_answers={file}");
    case.run(1, &[sections, &known, "limits.loss=-0.101% +0.1%"], None).expect_success();
    case.run(1, &[sections, &known, "limits.loss=-0.099% +0.1%"], None).expect_code(3).expect_text("INVALID");
    let (_, reason) = case.metric("training.losses");
    assert!(
        reason.contains("another processor") && reason.contains("below the lowest good value"),
        "{reason}"
    );
}

#[test]
fn a_figure_that_the_deck_has_a_reference_for_and_that_is_not_measured_fails() {
    let case = Accepted::new();
    let words = [
        "run.sections=inventory,collectives",
        "limits.all_reduce_busbw=1 -50%",
        "limits.weak_efficiency=1 -50%",
    ];
    case.run(1, &words, None).expect_code(3).expect_text("VALID  NOT ACCEPTED");
    let (status, reason) = case.metric("collectives.all_reduce.busbw");
    assert!(
        status == "FAIL" && reason.contains("limits.all_reduce_busbw has a reference"),
        "{status}: {reason}"
    );
    assert_eq!(
        case.report()["verdict"]["reasons"].as_array().map(Vec::len),
        Some(1),
        "scaling was not asked for"
    );
}

#[test]
fn one_rank_skips_what_needs_others_and_says_so() {
    let case = Accepted::new();
    case.run(1, &[], None).expect_success();
    for name in ["collectives", "training.bad_ranks", "scaling", "elasticity.restore_on_fewer_ranks"] {
        let (status, reason) = case.metric(name);
        assert!(status == "SKIPPED" && reason.contains("one rank"), "{name}: {status} {reason}");
    }
}

#[test]
fn what_hangs_ends_with_the_section_named_and_what_comes_too_late_does_not_run() {
    let case = Accepted::new();
    // An hour passes at once, so no limit has to be short, nor met by another section on a busy machine.
    let words = ["run.sections=inventory,storage", "run.time_limit=30m"];
    let output =
        case.run(2, &words, Some(("ZERO3_TEST_FAULT", "late_hang@storage.write:1:0"))).expect_code(5);
    output
        .expect_text("`storage` is not over after 2700 s")
        .expect_text(": rank 1 on ")
        .expect_text("is busy with local work");
    // What was found until then is not lost.
    assert_eq!(
        (case.section("inventory").0.as_str(), case.section("storage").0.as_str()),
        ("completed", "under_way")
    );
    assert_eq!(case.report()["verdict"]["valid"], false);

    // Over the limit, under half as much again.
    let words = ["run.sections=inventory,storage,training", "run.time_limit=50m"];
    case.run(2, &words, Some(("ZERO3_TEST_FAULT", "late@storage.write:0:0")))
        .expect_code(3)
        .expect_text("INVALID");
    assert_eq!(case.section("storage").0, "completed");
    let (ending, reason) = case.section("training");
    assert!(ending == "skipped" && reason.contains("run.time_limit = 3000 s"), "{ending}: {reason}");
}

#[test]
fn a_signal_ends_it_after_the_section_that_is_under_way_with_a_report() {
    let case = Accepted::new();
    let words = case.words(&["run.sections=inventory,storage,training", "storage.bytes_per_rank=41943040"]);
    let running = Run::new(2).args(words).env("ZERO3_TEST_FAULT", "slow@storage.write:1:0").start();
    case.await_storage();
    let other = case.run(1, &["run.sections=inventory"], None).expect_code(2);
    other.expect_text("is in use by process ").expect_text("set a different run.dir");
    running.signal_rank(1, "USR1");
    running.output().expect_code(3).expect_text("INVALID");
    assert_eq!(case.section("storage").0, "completed");
    let (ending, reason) = case.section("training");
    assert!(ending == "skipped" && reason.contains("SIGUSR1"), "{ending}: {reason}");
}

#[test]
fn bad_decks_and_baselines_are_refused_before_anything_is_measured() {
    let case = Accepted::new();
    for (words, says) in [
        (vec!["limits.mfu=0.4"], "limits.mfu = 0.4: a reference and tolerances"),
        (vec!["run.sections=inventory,disk"], "there is no `disk`"),
        (vec!["training.n_head=3"], "training.n_head = 3: a divisor of training.d_model"),
        (vec!["--baseline", "/not/there.json"], "cannot use the baseline /not/there.json"),
        (vec!["train.steps=3"], "train.steps"),
        (vec!["elasticity.soak_minutes=3"], "elasticity.soak_minutes = 3: at most half of run.time_limit"),
        (vec!["limits.mfu=0.4 -10%"], "limits.mfu = 0.4 -10%: no reference while run.peak_gflops = 0"),
        (vec!["training.known_answers=/not/there"], "training.known_answers = /not/there: No such file"),
        (vec!["--record-baseline", "/not/there/b.json"], "--record-baseline /not/there/b.json: No such file"),
        (vec!["--record-answers", "/"], "--record-answers /: it is a directory"),
    ] {
        let output = case.run(2, &words, None).expect_code(2).expect_text(says);
        assert_eq!(output.text().matches(says).count(), 1, "said once: {output}");
        assert!(!case.path("run").exists());
    }
}
