//! `zero3 report` of real runs: figures and a page, of runs that ended well, were stopped, restored, skipped
//! steps or were killed; and the page in a browser.
//!
//! The browser is Debian's `chromium` (`make setup-test`), or the program that CHROMIUM names; without one
//! the test fails.

mod common;

use common::{Case, Run};
use resvg::tiny_skia::Pixmap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const FIGURES: [&str; 7] = ["storage", "compute", "ownership", "timeline", "memory", "stages", "loss_curve"];

/// Names of the SVGs of a directory, each of which must be XML without a number that is none.
fn svgs(dir: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("a directory of figures") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".svg") {
            let text = fs::read_to_string(&path).expect("text");
            roxmltree::Document::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(!text.contains("NaN"), "{}", path.display());
            names.insert(name.to_string());
        }
    }
    names
}

fn both(names: &[&str]) -> BTreeSet<String> {
    names.iter().flat_map(|name| [name.to_string(), format!("{name}-dark")]).collect()
}

/// What the browser makes of a page: its document, and what it wrote to its console.
fn browse(page: &Path, more: &[&str]) -> (String, Vec<String>) {
    let profile = tempfile::tempdir().expect("a temporary directory");
    let program = std::env::var_os("CHROMIUM").unwrap_or_else(|| "chromium".into());
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
    ]);
    command.args([
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]);
    // Nothing outside answers, whatever asks for it.
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).args(more);
    command.arg(format!("file://{}", page.display()));
    let out = command.output().unwrap_or_else(|e| panic!("`timeout` of coreutils: {e}"));
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success(),
        "{program:?} (install chromium, or set CHROMIUM): {}\n{stderr}",
        out.status
    );
    let console = stderr.lines().filter(|line| line.contains(":CONSOLE")).map(String::from).collect();
    (String::from_utf8_lossy(&out.stdout).into_owned(), console)
}

/// Share of pixels of another colour than the first one.
fn ink(screenshot: &Path) -> (f64, [u8; 3]) {
    let png = fs::read(screenshot).expect("a screenshot");
    let pixels = Pixmap::decode_png(&png).expect("a PNG");
    let page = pixels.pixels()[0];
    let others = pixels.pixels().iter().filter(|&&p| p != page).count();
    (others as f64 / pixels.pixels().len() as f64, [page.red(), page.green(), page.blue()])
}

#[test]
fn a_restored_run_with_a_skipped_step_has_every_figure_and_its_page_opens_in_a_browser() {
    let case = Case::tiny();
    case.train(3, "run", &["train.steps=3", "optim.decay_steps=6", "log.trace=2"]).output().expect_success();
    // On as many ranks as some biases have elements and more: slices of one element and of none.
    let more = case.train(5, "run", &["train.steps=6", "optim.decay_steps=6", "log.trace=5"]);
    more.env("ZERO3_TEST_SPOIL", "1:4").output().expect_success();
    let run = case.path("run");
    let figures = case.path("figures");
    let report = Run::new(0).arg("report").arg(&run).arg("--figures").arg(&figures).args(["--png", "--html"]);
    let said = report.output().expect_success().text();
    assert!(
        said.contains("5. Were gradients") && said.contains("report.html") && !said.contains("not plotted"),
        "{said}"
    );
    assert_eq!(svgs(&figures), both(&FIGURES));
    let text = |name: &str| fs::read_to_string(figures.join(name)).expect("a figure");
    for words in ["restored from a checkpoint", "skipped: loss"] {
        assert!(text("loss_curve.svg").contains(words), "{words}");
    }
    for rank in 0..5 {
        for name in ["storage.svg", "compute.svg"] {
            assert!(text(name).contains(&format!("data-rank=\"{rank}\"")), "rank {rank} in {name}");
        }
    }
    assert!(
        text("timeline.svg").contains("The first 4 of 5 ranks") && text("timeline.svg").contains("Step 5 ")
    );
    let page = fs::read_to_string(run.join("report.html")).expect("a page");
    // The trace is of the plan: at each instruction the ledger held what was planned.
    assert!(page.contains("the ledger matched the plan to the byte."), "the memory figure's caption");
    for name in FIGURES {
        let png = fs::read(figures.join(format!("{name}-dark.png"))).expect("a PNG");
        assert!(Pixmap::decode_png(&png).expect("a PNG").width() == 1920, "{name}");
    }

    let shot = |theme: &str| case.path(&format!("{theme}.png"));
    let light = format!("--screenshot={}", shot("light").display());
    let (dom, console) = browse(&run.join("report.html"), &["--dump-dom", "--window-size=1000,4000", &light]);
    assert!(console.is_empty(), "{console:?}");
    assert_eq!(dom.matches("<section class=\"answer\">").count(), 5);
    assert_eq!(dom.matches("<figure ").count(), FIGURES.len());
    let nested = dom.matches("<g transform=\"translate").count();
    assert_eq!(
        dom.matches("<svg ").count() - nested,
        2 * FIGURES.len(),
        "in both themes, charts within them apart"
    );
    // A page that asks for something outside would be seen: its own policy refuses, and the console says so.
    let spoilt = case.path("spoilt.html");
    fs::write(&spoilt, page.replace("<main>", "<main><img src=\"https://example.com/x.png\">"))
        .expect("a page");
    let (_, console) = browse(&spoilt, &["--dump-dom"]);
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:?}");
}

#[test]
fn the_page_is_light_or_dark_as_the_reader_has_it_and_not_blank() {
    let case = Case::tiny();
    case.train(1, "run", &["train.steps=2"]).output().expect_success();
    let page = case.path("page.html");
    Run::new(0).arg("report").arg(case.path("run")).arg("--html").arg(&page).output().expect_success();
    let mut pages = Vec::new();
    for (theme, scheme) in [("light", "1"), ("dark", "0")] {
        let shot = case.path(&format!("{theme}.png"));
        let (screenshot, setting) = (
            format!("--screenshot={}", shot.display()),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        );
        browse(&page, &["--window-size=1000,3000", &screenshot, &setting]);
        let (share, color) = ink(&shot);
        assert!(share > 0.05, "{share} of the {theme} page is drawn on");
        pages.push(color);
    }
    assert_eq!(pages, [[255, 255, 255], [20, 23, 28]]);
}

#[test]
fn odd_runs_are_drawn_as_far_as_they_go() {
    let case = Case::tiny();
    let without_trace = both(&["storage", "compute", "ownership", "memory", "stages", "loss_curve"]);
    let llama = ["model.family=llama", "model.n_kv_head=1"];
    let runs: [(usize, &str, &[&str]); 4] = [
        (1, "one & <only>", &["zero.stage=0"]),
        (3, "stage 2", &["zero.stage=2", "zero.param_dtype=bf16", "log.trace=2"]),
        (2, "llama", &llama),
        (2, "small ones whole", &["zero.persistence_threshold_bytes=300", "zero.reduce=last_micro_step"]),
    ];
    for (n, name, keys) in runs {
        case.train(n, name, keys).output().expect_success();
        let (run, figures) = (case.path(name), case.path(name).join("figures"));
        let report =
            Run::new(0).arg("report").arg(&run).arg("--figures").arg(&figures).arg("--html").output();
        let said = report.expect_success().text();
        let is_traced = keys.contains(&"log.trace=2");
        assert_eq!(said.contains("log.trace"), !is_traced, "{said}");
        assert_eq!(svgs(&figures), if is_traced { both(&FIGURES) } else { without_trace.clone() }, "{name}");
        let page = fs::read_to_string(run.join("report.html")).expect("a page");
        assert!(!page.contains("<only>"), "a name from outside is text");
    }

    // Killed in the middle of a row, before any summary.
    let killed = case.path("llama");
    fs::remove_file(killed.join("summary.json")).expect("a summary");
    let log = killed.join("steps.csv");
    let text = fs::read_to_string(&log).expect("a log");
    fs::write(&log, &text[..text.len() - 40]).expect("a log");
    let said = Run::new(0).arg("report").arg(&killed).arg("--html").output().expect_success().text();
    assert!(said.contains("has no summary") && said.contains("at step 3 of 4"), "{said}");
    assert!(fs::read_to_string(killed.join("report.html")).expect("a page").contains("over 3 steps"));
}

#[test]
fn what_is_no_run_directory_gives_one_error_and_no_file() {
    let case = Case::tiny();
    let (figures, html) = (case.path("out"), case.path("out.html"));
    fs::create_dir(case.path("empty")).expect("a directory");
    for run in ["empty", "missing", "text.txt"] {
        let report = Run::new(0)
            .arg("report")
            .arg(case.path(run))
            .arg("--figures")
            .arg(&figures)
            .arg("--html")
            .arg(&html);
        let output = report.output().expect_code(2);
        assert!(output.stdout.is_empty() && output.stderr.lines().count() == 1, "{output}");
        assert!(!figures.exists() && !html.exists());
    }
    Run::new(0).args(["report", "x", "--png"]).output().expect_code(2);
}

#[test]
fn the_committed_figures_are_what_this_program_draws() {
    let case = Case::tiny();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = format!("run.dir={}", case.path("run").display());
    // As scripts/figures.sh has it, but for a shorter run: these figures are of the plan alone.
    let keys = ["train.steps=1", "train.global_batch_size=12", "train.eval_every=0", "checkpoint.every=0"];
    Run::new(3)
        .dir(repository)
        .args(["train", "inputs/tiny.toml"])
        .arg(run)
        .args(keys)
        .output()
        .expect_success();
    let figures = case.path("figures");
    Run::new(0).arg("report").arg(case.path("run")).arg("--figures").arg(&figures).output().expect_success();
    for name in both(&["storage", "compute", "ownership", "stages"]) {
        let read = |dir: &Path| fs::read_to_string(dir.join(format!("{name}.svg"))).expect("a figure");
        assert!(
            read(&figures) == read(&repository.join("docs/figures")),
            "{name}.svg is another: run `make figures`"
        );
    }
}
