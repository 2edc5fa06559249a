//! The harness of tests that drive the real binary under mpirun: launch, decks and text to train on, logs to
//! compare.
//!
//! Must not know: what any one test claims. Every program runs under `timeout`, so a hang is a failure with a
//! name. A missing mpirun is a failure too, never a reason to skip.
#![allow(dead_code)] // each test binary uses a part

pub mod cuda;
pub mod state;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a run may take unless the test says otherwise: generous for a machine that runs other tests beside
/// it.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(240);
/// How long mpirun may take to end its ranks once asked, before it is killed itself.
const GRACE_SECONDS: u64 = 10;
/// Carries a number unique to a run into the environment of its ranks, by which they are found again.
const RUN_MARK: &str = "ZERO3_TEST_RUN";

/// One launch of a program on some ranks.
#[derive(Debug, Clone)]
pub struct Run {
    n_ranks: usize,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    timeout: Duration,
}

impl Run {
    /// `zero3` on `n_ranks` ranks under mpirun; 0 means without a launcher.
    pub fn new(n_ranks: usize) -> Self {
        let program = env!("CARGO_BIN_EXE_zero3").into();
        Run { n_ranks, program, args: Vec::new(), env: Vec::new(), dir: None, timeout: DEFAULT_TIMEOUT }
    }

    /// Another program instead of `zero3`.
    pub fn program(mut self, program: impl AsRef<OsStr>) -> Self {
        self.program = program.as_ref().into();
        self
    }

    /// More arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// One more argument.
    pub fn arg(self, arg: impl AsRef<OsStr>) -> Self {
        self.args([arg])
    }

    /// A variable of the ranks, not of the launcher: LD_PRELOAD stays out of mpirun.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// The working directory.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// The time after which the run is a failure.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs to the end, whatever it is.
    pub fn output(self) -> Output {
        self.start().output()
    }

    /// Starts, for tests that interfere.
    pub fn start(self) -> Running {
        static N_STARTED: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("{}.{}", std::process::id(), N_STARTED.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new("timeout");
        command.arg(format!("--kill-after={GRACE_SECONDS}")).arg(self.timeout.as_secs_f64().to_string());
        if self.n_ranks > 0 {
            let mpirun = mpirun();
            command.arg(&mpirun.program).args(&mpirun.args).arg("-n").arg(self.n_ranks.to_string());
        }
        // `env` sets the variables for the ranks alone, the same way under every MPI.
        command.arg("env").arg(format!("{RUN_MARK}={mark}"));
        for (name, value) in &self.env {
            let mut assignment = name.clone();
            assignment.push("=");
            assignment.push(value);
            command.arg(assignment);
        }
        command.arg(&self.program).args(&self.args);
        // The second sign, without which the program ignores the variables.
        let hooks = &zero3::test_hooks::VARIABLES;
        if self.env.iter().any(|(name, _)| hooks.iter().any(|hook| name == hook)) {
            command.arg(zero3::test_hooks::FLAG);
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        // Under root Open MPI asks for these; elsewhere they do nothing.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // A log level set for the person running the tests must not change what the tests read.
        command.env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start `timeout` of coreutils: {e}"));
        Running { child: Some(child), line, mark, started: Instant::now(), timeout: self.timeout }
    }
}

/// A run on its way. Dropped, it is ended with its ranks.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    line: String,
    mark: String,
    started: Instant,
    timeout: Duration,
}

impl Running {
    /// Waits for the end; panics when that was the timeout.
    pub fn output(mut self) -> Output {
        let child = self.child.take().expect("taken once, here");
        let out = child.wait_with_output().expect("a child of this process can be waited for");
        let elapsed = self.started.elapsed();
        let output = Output {
            line: self.line.clone(),
            code: out.status.code().unwrap_or_else(|| 128 + out.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
            elapsed,
        };
        // 124: `timeout` ended it; 137: it had to be killed. A rank that a test killed also gives 137, but in
        // time.
        if elapsed >= self.timeout && [124, 137].contains(&output.code) {
            panic!("ran past its {:?} and was ended\n{output}", self.timeout);
        }
        output
    }

    /// Process id of a rank, waiting up to a minute until it has started.
    pub fn pid_of_rank(&self, rank: usize) -> u32 {
        let mark = format!("{RUN_MARK}={}", self.mark);
        let rank_names =
            ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"].map(|name| format!("{name}={rank}"));
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            for entry in std::fs::read_dir("/proc").expect("a Linux machine").flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
                let has =
                    |wanted: &str| environ.split(|&b| b == 0).any(|variable| variable == wanted.as_bytes());
                if has(&mark) && rank_names.iter().any(|name| has(name)) {
                    return pid;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("rank {rank} did not start within a minute: {}", self.line);
    }

    /// Sends a signal, e.g. `KILL` or `STOP`, to one rank.
    pub fn signal_rank(&self, rank: usize, signal: &str) {
        send_signal(signal, self.pid_of_rank(rank));
    }

    /// The same to a process whose id was asked for before; it may have ended since.
    pub fn signal_pid(pid: u32, signal: &str) {
        Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\" 2>/dev/null", "sh", signal, &pid.to_string()])
            .status()
            .ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // `timeout` passes it on to mpirun, and mpirun to the ranks.
            send_signal("TERM", child.id());
            let _ = child.wait();
        }
    }
}

fn send_signal(signal: &str, pid: u32) {
    // The shell's builtin: there need not be a program of that name.
    let status =
        Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &pid.to_string()]).status();
    assert!(status.expect("there is a shell").success(), "cannot send {signal} to process {pid}");
}

struct Mpirun {
    program: OsString,
    args: Vec<&'static str>,
}

/// The launcher, told that more ranks than cores are fine, and that ranks of tests side by side must not all
/// be bound to the first cores.
fn mpirun() -> Mpirun {
    let program = std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into());
    let version = Command::new(&program).arg("--version").output().unwrap_or_else(|e| {
        panic!(
            "the tests need {}: {e}. `make setup` installs Open MPI; MPIRUN names another",
            program.display()
        )
    });
    let open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    Mpirun { program, args: if open_mpi { vec!["--oversubscribe", "--bind-to", "none"] } else { vec![] } }
}

/// How a run ended.
#[derive(Debug)]
pub struct Output {
    line: String,
    /// Exit code of mpirun; 128 + signal when a signal ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Output {
    /// Panics with all there is to see unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code is not {code}\n{self}");
        self
    }

    /// Panics with all there is to see unless the run succeeded.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        self.expect_code(0)
    }

    /// Both streams.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Panics unless `part` is in one of the streams.
    #[track_caller]
    pub fn expect_text(self, part: &str) -> Self {
        assert!(self.text().contains(part), "{part:?} is nowhere in\n{self}");
        self
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Output { line, code, stdout, stderr, elapsed } = self;
        write!(
            f,
            "{line}\nended after {elapsed:.1?} with code {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
        )
    }
}

/// Builds tests/preload/files.c once and says where the library is, for `LD_PRELOAD`: a file system with
/// faults. Its variables are described there.
pub fn faulty_files() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload/files.c");
        // Test binaries run side by side, and each builds its own.
        let test = std::env::current_exe().expect("a test is a program");
        let name = format!("libfiles_{}.so", test.file_name().expect("with a name").display());
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        let built = Command::new("cc").args(flags).arg(&library).arg(&source).arg("-ldl").output();
        let built = built.unwrap_or_else(|e| panic!("the test needs cc: {e}. `make setup` installs it"));
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        library
    })
}

/// A directory with a tiny deck and its text, removed at the end.
#[derive(Debug)]
pub struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    /// A byte-level GPT of two layers that trains 4 steps of 6 sequences in well under a second.
    ///
    /// Odd on purpose: 6 micro-batches divide by neither 4 nor 5 ranks; d_model = 20 and 3 * 20 biases do not
    /// divide by 3, 7 or 8, so slices cut rows and the last one is padded.
    pub fn tiny() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let case = Case { dir };
        std::fs::write(case.path("text.txt"), text(20_000)).expect("a temporary file");
        let deck = format!(
            r#"
            [run]
            dir = "{run}"
            threads_per_rank = 1
            kernel_cache = ""
            [model]
            n_layer = 2
            n_head = 2
            d_model = 20
            seq_len = 16
            [data]
            train = ["{text}"]
            val_fraction = 0.1
            [train]
            steps = 4
            micro_batch_size = 1
            global_batch_size = 6
            eval_every = 2
            eval_batches = 3
            [optim]
            lr = 1e-2
            warmup_steps = 2
            [checkpoint]
            every = 2
            [log]
            every = 1
            "#,
            run = case.path("run").display(),
            text = case.path("text.txt").display(),
        );
        std::fs::write(case.deck(), deck).expect("a temporary file");
        case
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The deck.
    pub fn deck(&self) -> PathBuf {
        self.path("deck.toml")
    }

    /// `zero3 train` of the deck with overrides and flags, into the run directory `run` of the case.
    pub fn train(&self, n_ranks: usize, run: &str, words: &[&str]) -> Run {
        let run_dir = format!("run.dir={}", self.path(run).display());
        Run::new(n_ranks).dir(self.dir.path()).arg("train").arg(self.deck()).arg(run_dir).args(words)
    }
}

/// `n_bytes` of made-up English: words drawn with a bias, so that there is something to learn; the same every
/// time.
pub fn text(n_bytes: usize) -> String {
    const WORDS: &str = "the rank owns a slice of every weight and gathers what it needs before it computes; \
                         then it lets go, sums what the others found, and moves on to the next layer of the \
                         model.";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut text = String::with_capacity(n_bytes + 16);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    while text.len() < n_bytes {
        // Marsaglia's xorshift64; the product of two draws prefers the first words.
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as usize % words.len()
        };
        text += words[draw() * draw() / words.len()];
        text.push(if draw() == 0 { '\n' } else { ' ' });
    }
    text.truncate(n_bytes);
    text
}

/// `steps.csv` with its fields as the text they are: equal text is equal bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Steps {
    /// Reads `RUN/steps.csv`.
    #[track_caller]
    pub fn read(run_dir: &Path) -> Self {
        let path = run_dir.join("steps.csv");
        let mut reader = csv::Reader::from_path(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let fields = |record: csv::StringRecord| record.iter().map(String::from).collect();
        let header = fields(reader.headers().expect("a header").clone());
        let rows = reader.records().map(|row| fields(row.expect("rows as long as the header"))).collect();
        Steps { header, rows }
    }

    /// Whole rows of `RUN/steps.csv`, 0 where there is none. The run may still be writing.
    pub fn n_rows(run_dir: &Path) -> usize {
        let text = std::fs::read_to_string(run_dir.join("steps.csv")).unwrap_or_default();
        text.matches('\n').count().saturating_sub(1)
    }

    /// A column from the first row to the last.
    #[track_caller]
    pub fn column(&self, name: &str) -> Vec<&str> {
        let found = self.header.iter().position(|column| column == name);
        let i = found.unwrap_or_else(|| panic!("no column {name} among {:?}", self.header));
        self.rows.iter().map(|row| row[i].as_str()).collect()
    }

    /// A column as numbers; none of it may be empty.
    #[track_caller]
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        let number =
            |text: &str| text.parse().unwrap_or_else(|_| panic!("{name} has {text:?}, not a number"));
        self.column(name).into_iter().map(number).collect()
    }
}

/// Waits until `done`, for a minute and a half at most.
#[track_caller]
pub fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(90), "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the run has logged its `n`-th row.
#[track_caller]
pub fn until_row(run_dir: &Path, n: usize) {
    until(&format!("row {n}"), || Steps::n_rows(run_dir) >= n);
}

/// Reads `RUN/summary.json`.
#[track_caller]
pub fn summary(run_dir: &Path) -> serde_json::Value {
    let path = run_dir.join("summary.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Panics at the first step whose numbers, the same on every rank count, differ between two runs.
#[track_caller]
pub fn assert_same_curve(a: &Steps, b: &Steps) {
    assert_eq!(a.column("step"), b.column("step"), "the runs have different steps");
    for (i, step) in a.column("step").iter().enumerate() {
        for name in ["loss", "grad_norm", "lr", "val_loss"] {
            let (one, other) = (a.column(name)[i], b.column(name)[i]);
            assert_eq!(one, other, "{name} differs first at step {step}");
        }
    }
}
