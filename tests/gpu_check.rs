//! `scripts/gpu_check.sh`, which proves a node with a GPU, on doubles of NVIDIA's libraries: from the archive
//! alone, and within its time.
//!
//! The figures it prints here say nothing; that it comes to its end, and to the right verdict, does.

mod common;

use common::cuda;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// What a node has without Rust and MPI.
const TOOLS: [&str; 29] = [
    "awk", "basename", "bash", "cat", "cp", "date", "dirname", "env", "getconf", "grep", "head", "hostname",
    "ln", "ls", "mkdir", "paste", "readlink", "realpath", "rm", "sed", "sh", "sleep", "sort", "tail", "tar",
    "timeout", "tr", "gzip", "uname",
];

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A target directory whose release is the program under test.
fn target() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(dir.path().join("release")).expect("a temporary directory");
    symlink(env!("CARGO_BIN_EXE_zero3"), dir.path().join("release/zero3")).expect("a link");
    dir
}

/// A check on small shapes, with `n_gpus` doubles of GPUs.
struct Check {
    _target: TempDir,
    out: TempDir,
    command: Command,
}

impl Check {
    fn new(script: &Path, n_gpus: usize) -> Self {
        let (target, out) = (target(), tempfile::tempdir().expect("a temporary directory"));
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "400", "bash"]).arg(script).arg(out.path());
        command
            .env("CARGO_TARGET_DIR", target.path())
            .env("LD_LIBRARY_PATH", cuda::library_path(cuda::doubles()));
        command.env("GPU_CHECK_SMALL", "1").env("GPU_CHECK_GPUS", n_gpus.to_string());
        command.env("CUDA_DOUBLE_DEVICES", n_gpus.to_string());
        Check { _target: target, out, command }
    }

    fn of_checkout(n_gpus: usize) -> Self {
        Self::new(&Path::new(ROOT).join("scripts/gpu_check.sh"), n_gpus)
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Its exit code, what it printed, and the JSON it left.
    #[track_caller]
    fn run(mut self, code: i32) -> (String, Value) {
        let output = self.command.output().expect("coreutils has timeout");
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        let json = fs::read_to_string(self.out.path().join("gpu_check.json"))
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        let json = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
        (text, json)
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// (name, verdict, why) of each check.
fn verdicts(json: &Value) -> Vec<(&str, &str, &str)> {
    fn of<'a>(check: &'a Value, key: &str) -> &'a str {
        check[key].as_str().expect("text")
    }
    let checks = json["checks"].as_array().expect("checks").iter();
    checks.map(|check| (of(check, "name"), of(check, "verdict"), of(check, "why"))).collect()
}

/// The archive's own copy, in a place that has nothing else.
fn unpacked() -> (TempDir, PathBuf) {
    let (target, dir) = (target(), tempfile::tempdir().expect("a temporary directory"));
    let archive = dir.path().join("gpu-check.tar.gz");
    let mut pack = Command::new("bash");
    pack.arg(Path::new(ROOT).join("scripts/gpu_check.sh"))
        .arg("pack")
        .arg(&archive)
        .env("CARGO_TARGET_DIR", target.path());
    let output = pack.output().expect("there is a bash");
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("with glibc 2."), "{text}");
    let untar = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(dir.path()).status();
    assert!(untar.expect("there is a tar").success());
    let script = dir.path().join("gpu-check/scripts/gpu_check.sh");
    (dir, script)
}

#[test]
fn the_archive_alone_passes_on_a_node_without_rust_and_mpi() {
    let (dir, script) = unpacked();
    let tools = dir.path().join("tools");
    fs::create_dir(&tools).expect("a temporary directory");
    for tool in TOOLS {
        let path =
            ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(tool)).into_iter().find(|path| path.exists());
        symlink(path.unwrap_or_else(|| panic!("no {tool}")), tools.join(tool)).expect("a link");
    }
    let timeout = tools.join("timeout");
    let mut check = Check::new(&script, 2);
    let mut command = Command::new(timeout);
    command
        .args(check.command.get_args().map(ToOwned::to_owned))
        .env_clear()
        .env("PATH", &tools)
        .env("HOME", dir.path());
    for (name, value) in check.command.get_envs() {
        if name != "CARGO_TARGET_DIR" {
            command.env(name, value.expect("set above"));
        }
    }
    check.command = command;
    let (text, json) = check.run(0);
    assert!(text.trim_end().lines().last().is_some_and(|line| line.starts_with("VALID after")), "{text}");
    let names: Vec<&str> = verdicts(&json).into_iter().map(|(name, ..)| name).collect();
    let losses = [
        "tiny_cpu",
        "tiny_gpu",
        "tiny_losses",
        "two_ranks",
        "two_ranks_losses",
        "nccl_sum",
        "nccl_sum_losses",
    ];
    let all = [&["kernels"], &losses[..], &["gpt2_124m", "collectives"]].concat();
    assert_eq!(names, all, "{text}");
    // A device of no known peak has no MFU.
    assert!(json["mfu"].is_null() && json["tokens_per_s"].as_f64().is_some_and(|n| n > 0.0), "{json:#}");
    for figure in ["all_gather", "reduce_scatter", "library_reduce_scatter", "all_reduce"] {
        assert!(json["busbw"][format!("{figure}_gb_per_s")].is_number(), "{figure} in {json:#}");
    }
    assert!(json["device"].as_str().is_some_and(|name| name.starts_with("CPU double")), "{json:#}");
}

#[test]
fn one_gpu_takes_two_ranks_and_a_known_peak_gives_an_mfu() {
    // NCCL before 2.30, which wants two hosts, and after, which has a switch.
    for version in ["22809", "23004"] {
        let check = Check::of_checkout(1)
            .env("CUDA_DOUBLE_NCCL_VERSION", version)
            .env("GPU_CHECK_PEAK_TFLOPS", "0.1");
        let (text, json) = check.run(0);
        for losses in ["two_ranks_losses", "nccl_sum_losses"] {
            assert!(verdicts(&json).contains(&(losses, "PASSED", "")), "{text}");
        }
        assert!(
            json["mfu"].as_f64().is_some_and(|mfu| mfu > 0.0) && text.contains("causal factor 1"),
            "{text}\n{json:#}"
        );
        assert!(json["busbw"].is_null() && text.contains("not measured"), "{text}");
    }
}

#[test]
fn what_does_not_fit_into_the_time_is_skipped_and_the_table_stands() {
    let (text, json) = Check::of_checkout(1).env("GPU_CHECK_SECONDS", "0").run(2);
    let all = verdicts(&json);
    assert!(all.len() == 9 && all.iter().all(|&(_, verdict, _)| verdict == "SKIPPED"), "{all:?}");
    assert!(all.contains(&("kernels", "SKIPPED", "(time)")), "{all:?}");
    assert!(all.contains(&("tiny_losses", "SKIPPED", "(tiny_cpu has not passed)")), "{all:?}");
    assert_eq!(json["verdict"], "INCOMPLETE");
    assert!(text.contains("INCOMPLETE after") && text.contains("kernels                  SKIPPED"), "{text}");
    // The first check hangs, and is ended when the budget is.
    let check = Check::of_checkout(1).env("GPU_CHECK_SECONDS", "4").env("CUDA_DOUBLE_FAIL", "cuInit:1:hang");
    let (text, json) = check.run(2);
    assert!(verdicts(&json).iter().all(|&(_, verdict, _)| verdict == "SKIPPED"), "{text}");
}

#[test]
fn a_check_that_fails_is_named_and_makes_the_node_invalid() {
    let (text, json) = Check::of_checkout(1).env("CUDA_DOUBLE_FAIL", "cuModuleLoadData:1:200").run(1);
    let all = verdicts(&json);
    assert!(all.contains(&("kernels", "FAILED", "(exit code 5, see kernels.log)")), "{all:?}");
    assert!(all.contains(&("tiny_cpu", "PASSED", "")), "{all:?}");
    assert!(all.contains(&("tiny_losses", "SKIPPED", "(tiny_gpu has not passed)")), "{all:?}");
    assert_eq!(json["verdict"], "INVALID");
    assert!(text.contains("cuModuleLoadData failed") && text.contains("INVALID after"), "{text}");
}
