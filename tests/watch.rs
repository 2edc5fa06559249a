//! `zero3 watch` as a person has it, on a terminal (a pty by `script`), and as a script has it, of runs in
//! every state.

mod common;

use common::{Case, Run, Running, summary, until, until_row};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(90);

fn once(run_dir: &Path) -> common::Output {
    Run::new(0).arg("watch").arg(run_dir).arg("--once").output()
}

/// A shell line on a terminal of 80 x 24, between two prints of the terminal's settings.
fn on_terminal(line: &str) -> Child {
    let line = format!("stty cols 80 rows 24; stty -g; {line}; echo code=$?; stty -g");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|e| panic!("cannot start `script` of util-linux: {e}"))
}

/// What a view left behind on its terminal.
struct Left {
    text: String,
}

impl Left {
    /// Presses `keys` after a while, and waits for the end.
    fn after(mut child: Child, keys: &str, seconds: f64) -> Self {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("somebody reads");
        let started = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < SOON, "the view is not left after {keys:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().expect("a child that has ended");
        drop(stdin);
        Left { text: String::from_utf8_lossy(&output.stdout).into_owned() }
    }

    #[track_caller]
    fn expect_code(self, code: i32) -> Self {
        assert!(self.text.contains(&format!("code={code}\r")), "no code {code}:\n{:?}", self.text);
        self
    }

    /// The other screen is left, the cursor shown, and the settings are what they were.
    #[track_caller]
    fn expect_restored(self) -> Self {
        let (entered, left) = (self.text.rfind("\x1b[?1049h"), self.text.rfind("\x1b[?1049l"));
        assert!(entered.is_some() && entered < left, "{:?}", self.text);
        assert!(
            self.text.rfind("\x1b[?25l") < self.text.rfind("\x1b[?25h"),
            "the cursor is hidden: {:?}",
            self.text
        );
        let first = self.text.lines().next().expect("the settings before");
        let last = self.text.trim_end().lines().last().expect("the settings after");
        assert_eq!(first.trim(), last.trim(), "{:?}", self.text);
        self
    }

    /// A word on some screen; the cursor jumps over blanks between words.
    #[track_caller]
    fn expect_word(self, word: &str) -> Self {
        assert!(self.text.contains(word), "{word:?} is not in {:?}", self.text);
        self
    }
}

fn watch(run_dir: &Path) -> String {
    format!("'{}' watch '{}'", env!("CARGO_BIN_EXE_zero3"), run_dir.display())
}

/// A run of two ranks that goes on for longer than a test, with `n` rows by now.
fn long_run(case: &Case, n: usize) -> Running {
    let running = case.train(2, "run", &["train.steps=100000", "log.every=0", "run.time_limit=1h"]).start();
    until_row(&case.path("run"), n);
    running
}

#[test]
fn a_running_job_is_shown_until_q_escape_or_ctrl_c_and_the_terminal_is_as_before() {
    let case = Case::tiny();
    let run_dir = case.path("run");
    // The view is there before the run.
    let early = on_terminal(&watch(&run_dir));
    std::thread::sleep(Duration::from_millis(1500));
    let running = long_run(&case, 20);
    std::thread::sleep(Duration::from_secs(2));
    let early = Left::after(early, "q", 0.5).expect_code(0).expect_restored();
    early.expect_word("waiting").expect_word("tokens/s").expect_word("planned");
    for key in ["\x1b", "\x03"] {
        let left = Left::after(on_terminal(&watch(&run_dir)), key, 1.5).expect_code(0).expect_restored();
        left.expect_word("running,")
            .expect_word("activations")
            .expect_word("params")
            .expect_word("gathered:");
    }
    // A signal, as a closing session sends it.
    let line = format!("sh -c '(sleep 2; kill -TERM $$) & exec {}'", watch(&run_dir).replace('\'', "\""));
    Left::after(on_terminal(&line), "", 0.0).expect_code(0).expect_restored();
    // Another size meanwhile: the smaller screen has other words.
    let line = format!(
        "sh -c '(sleep 2; stty cols 40 rows 10 </dev/tty; kill -WINCH $$) & exec {}'; stty cols 80 rows 24",
        watch(&run_dir).replace('\'', "\"")
    );
    Left::after(on_terminal(&line), "q", 4.0).expect_code(0).expect_restored().expect_word("skipped");
    drop(running);
}

#[test]
fn a_panic_while_drawing_leaves_the_terminal_as_it_was() {
    let case = Case::tiny();
    case.train(2, "run", &[]).output().expect_success();
    let line = format!("ZERO3_TEST_FAULT=panic@watch.draw:0:1 {} --test-hooks", watch(&case.path("run")));
    let left = Left::after(on_terminal(&line), "", 0.0).expect_code(70).expect_restored();
    let said = left.text.find("a test asked rank 0 to panic").expect("what went wrong");
    assert!(left.text.find("\x1b[?1049l") < Some(said), "said on the screen that stays: {:?}", left.text);
}

#[test]
fn a_snapshot_of_a_running_a_killed_and_a_resumed_job() {
    let case = Case::tiny();
    let run_dir = case.path("run");
    let running = long_run(&case, 20);
    std::thread::sleep(Duration::from_millis(2500));
    let said =
        once(&run_dir).expect_success().expect_text("status      running, step ").expect_text("of 100000");
    let said = said
        .expect_text("to the time limit (run.time_limit)")
        .expect_text("2 ranks")
        .expect_text("started on 2 ranks");
    let said = said.expect_text("params at rest").expect_text("gathered: ").expect_text("total");
    assert!(!said.text().contains("OVER") && !said.text().contains('\x1b'), "{said}");
    for rank in 0..2 {
        running.signal_rank(rank, "KILL");
    }
    drop(running);
    // Five beats of a second, and three seconds.
    until("the job to be dead", || once(&run_dir).text().contains("dead: no rank has had a heartbeat"));
    once(&run_dir).expect_success().expect_text("no heartbeat for");

    let resumed = case.train(3, "run", &["train.steps=100000", "log.every=0"]).start();
    until("the resumed job", || once(&run_dir).text().contains("status      running"));
    let said = once(&run_dir)
        .expect_success()
        .expect_text("3 ranks")
        .expect_text("1 restore,")
        .expect_text("restored step ");
    assert!(!said.text().contains("to the time limit"), "the old job's limit\n{said}");
    resumed.signal_rank(1, "USR1");
    resumed.output().expect_code(75);
    let said = once(&run_dir)
        .expect_success()
        .expect_text("stopped early: a rank received SIGUSR1")
        .expect_text("(exit code 75)");
    let planned = summary(&run_dir)["peak_bytes"]["planned"].as_u64().expect("bytes") as f64 / 1024.0;
    said.expect_text(&format!("{planned:.1} KiB"));
}

#[test]
fn a_snapshot_writes_nothing_and_copes_with_what_is_torn_or_missing() {
    let case = Case::tiny();
    case.train(3, "run", &[]).env("ZERO3_TEST_SPOIL", "1:1").output().expect_success();
    let run_dir = case.path("run");
    let listing = |dir: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(dir).expect("a directory").flatten().collect();
        names.sort_by_key(|entry| entry.file_name());
        let stamp =
            |e: std::fs::DirEntry| (e.file_name(), e.metadata().expect("a file").modified().expect("a time"));
        names.into_iter().map(stamp).collect::<Vec<_>>()
    };
    let before = (listing(&run_dir), std::fs::metadata(&run_dir).expect("there").modified().expect("a time"));
    let said = once(&run_dir).expect_success().expect_text("finished: all 4 steps are done (exit code 0)");
    let said = said
        .expect_text("0 restores, 1 skipped step,")
        .expect_text("attempt 2 skipped: loss")
        .expect_text("3 ranks");
    said.expect_text("validation");
    let piped = Run::new(0).arg("watch").arg(&run_dir).output().expect_success();
    assert!(piped.stdout.starts_with(&run_dir.display().to_string()), "no terminal, no escapes: {piped}");
    assert_eq!(
        before,
        (listing(&run_dir), std::fs::metadata(&run_dir).expect("there").modified().expect("a time"))
    );

    let append = |name: &str, text: &str| {
        let path = run_dir.join(name);
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("a file of the run");
        file.write_all(text.as_bytes()).expect("a temporary file");
    };
    append("steps.csv", "5,96,1.2");
    append("events.jsonl", "{\"unix\":1");
    once(&run_dir).expect_success().expect_text("finished: all 4 steps").expect_text("validation");
    for name in ["timing.json", "summary.json", "steps.csv", "events.jsonl"] {
        std::fs::write(run_dir.join(name), [0xff, 0x00, b'{', b'\n']).expect("a temporary file");
    }
    once(&run_dir)
        .expect_success()
        .expect_text("unreadable  timing.json: not of this version")
        .expect_text("summary.json");
    std::fs::remove_file(run_dir.join("summary.json")).expect("there");
    std::fs::remove_file(run_dir.join("events.jsonl")).expect("there");
    once(&run_dir).expect_success().expect_text("without a record of the end");

    let empty = case.path("empty");
    once(&empty).expect_code(2).expect_text("no records of a run");
    std::fs::create_dir(&empty).expect("a temporary directory");
    once(&empty).expect_code(2).expect_text("no records of a run");
    once(&case.deck()).expect_code(2).expect_text("is not a directory");
}

#[test]
fn a_single_rank_shows_itself_too() {
    let case = Case::tiny();
    let run_dir = case.path("run");
    let running = case.train(0, "run", &["train.steps=100000", "log.every=0"]).start();
    until_row(&run_dir, 5);
    until("a heartbeat", || once(&run_dir).text().contains("status      running"));
    once(&run_dir).expect_success().expect_text("1 rank").expect_text("gathered: ");
    drop(running);
}
