//! The collectives of `zero3 accept` beside a plain C loop over MPI on the same machine: `cargo bench --bench
//! collectives`.
//!
//! NP ranks (2), ROUNDS rounds (3) in turn, so that both see the same neighbours; the best of each counts.
//! AllGather is the training step's own, on its helper thread, against the blocking MPI_Allgather; the others
//! are the same calls. The training step's own ReduceScatter has no plain sibling and is left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const ITERATIONS: &str = "50";
const WARMUP: &str = "5";
/// What `zero3 accept` makes of collectives.max_bytes = 2 MiB.
const SIZES: [&str; 7] = ["8", "64", "512", "4096", "32768", "262144", "2097152"];

/// Best bus bandwidth by operation and bytes.
type Best = BTreeMap<(String, u64), f64>;

fn mpirun(n_ranks: &str) -> Command {
    let mut command = Command::new(std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into()));
    command.args(["--oversubscribe", "--bind-to", "none", "-n", n_ranks]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn output(mut command: Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn main() {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    let (n_ranks, n_rounds) =
        (variable("NP", "2"), variable("ROUNDS", "3").parse::<usize>().expect("ROUNDS is a number"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = dir.path().join("loop");
    let mut compile = Command::new(variable("MPICC", "mpicc"));
    compile
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(root.join("benches/collectives/loop.c"));
    output(compile);

    let (mut plain, mut own): (Best, Best) = Default::default();
    let keep = |best: &mut Best, op: &str, bytes: u64, busbw: f64| {
        let slot = best.entry((op.into(), bytes)).or_insert(0.0);
        *slot = slot.max(busbw);
    };
    for _ in 0..n_rounds {
        let mut command = mpirun(&n_ranks);
        command.arg(&program).args([ITERATIONS, WARMUP]).args(SIZES);
        for line in output(command).lines() {
            let [op, bytes, _, busbw] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            keep(&mut plain, op, bytes.parse().expect("bytes"), busbw.parse().expect("GB/s"));
        }
        let mut command = mpirun(&n_ranks);
        command.arg(env!("CARGO_BIN_EXE_zero3")).arg("accept").arg(root.join("inputs/acceptance_quick.toml"));
        command.args([
            format!("run.dir={}", dir.path().join("run").display()),
            "run.sections=inventory,collectives".into(),
            "run.backend=cpu".into(),
            "run.threads_per_rank=1".into(),
            format!("collectives.max_bytes={}", SIZES[SIZES.len() - 1]),
            format!("collectives.iterations={ITERATIONS}"),
            format!("collectives.warmup={WARMUP}"),
            "collectives.pairs=false".into(),
        ]);
        output(command);
        let report = std::fs::read(dir.path().join("run/report.json")).expect("a report");
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        for point in report["collectives"]["points"].as_array().expect("points") {
            let busbw = point["busbw"].as_f64().expect("a number");
            keep(
                &mut own,
                point["op"].as_str().expect("text"),
                point["bytes"].as_u64().expect("bytes"),
                busbw,
            );
        }
    }
    println!("{n_ranks} ranks, best of {n_rounds} rounds of {ITERATIONS} calls; bus bandwidth in GB/s");
    println!("{:<24} {:>9} {:>12} {:>12} {:>7}", "collective", "bytes", "plain C", "zero3", "ratio");
    for ((op, bytes), plain) in &plain {
        let own = own.get(&(op.clone(), *bytes)).copied().unwrap_or(f64::NAN);
        println!("{op:<24} {bytes:>9} {plain:>12.6} {own:>12.6} {:>7.2}", own / plain);
    }
}
