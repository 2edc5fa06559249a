//! What the records of a run cost: `cargo bench --bench telemetry`; `ROUNDS` (9) is how often each contestant
//! is run.
//!
//! Three measurements, all in CPU time, which other work on the machine does not lengthen as it does wall
//! time: what `Stepper::execute` pays for each instruction, with a trace and without; what the watchdog's
//! thread takes for a beat; and whole runs of one rank, in turns without a trace and with every step traced.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zero3::liveness::FlightRecorder;
use zero3::telemetry::{Ledger, MemKind, Trace, Track};

/// Calls that one figure is the mean of.
const N_CALLS: u32 = 100_000;
/// Beats of the watchdog that one figure is the mean of. At a timeout of 12 s it beats as often as it ever
/// does.
const N_BEATS: u32 = 20;
const BEAT: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(12);
/// Steps of a whole run.
const N_STEPS: u32 = 50;

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct outlives the call, which fills it.
    let code = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(code, 0, "clock {clock}");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of all children so far that have ended.
fn cpu_time_of_children() -> Duration {
    // SAFETY: all zeros is a value of this plain struct, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage), 0);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Smallest, median and largest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

/// Prints what each contestant takes for a call, in ns of this thread; they take turns.
fn per_call(n_rounds: usize, contestants: &mut [(&str, &mut dyn FnMut())]) {
    let mut figures = vec![Vec::new(); contestants.len()];
    for _ in 0..n_rounds {
        for ((_, call), figures) in contestants.iter_mut().zip(&mut figures) {
            let before = cpu_time(libc::CLOCK_THREAD_CPUTIME_ID);
            (0..N_CALLS).for_each(|_| call());
            let took = cpu_time(libc::CLOCK_THREAD_CPUTIME_ID) - before;
            figures.push(took.as_nanos() as f64 / f64::from(N_CALLS));
        }
    }
    for ((name, _), figures) in contestants.iter().zip(figures) {
        let [least, median, most] = spread(figures);
        println!("{name:<32} {median:>9.1} ns  ({least:.1} to {most:.1})");
    }
}

/// CPU seconds of one rank that trains, per step, without start and end: a run of twice the steps less one of
/// the steps.
fn per_step(dir: &Path, trace: &str) -> f64 {
    let run = |n_steps: u32| {
        let before = cpu_time_of_children();
        let words = [
            "train".to_string(),
            "inputs/tiny.toml".into(),
            "--resume=none".into(),
            format!("run.dir={}", dir.join("run").display()),
            format!("train.steps={n_steps}"),
            "run.threads_per_rank=1".into(),
            "train.micro_batch_size=1".into(),
            "train.global_batch_size=4".into(),
            "train.eval_every=0".into(),
            "checkpoint.every=0".into(),
            "log.every=0".into(),
            format!("log.trace={trace}"),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_zero3"));
        command
            .args(words)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let status = command.status().expect("the program starts");
        assert!(status.success(), "{command:?}: {status}");
        (cpu_time_of_children() - before).as_secs_f64()
    };
    (run(2 * N_STEPS) - run(N_STEPS)) / f64::from(N_STEPS)
}

/// A ledger with something of every kind: the longest sign of life.
fn full_ledger() -> Arc<Ledger> {
    let ledger = Arc::new(Ledger::new());
    MemKind::ALL.into_iter().for_each(|kind| ledger.take(kind, 1 << 29));
    ledger
}

fn main() {
    let n_rounds = std::env::var("ROUNDS").map_or(9, |text| text.parse().expect("ROUNDS is a whole number"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let flight = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| host.to_string()).collect();
        FlightRecorder::start(dir.path(), 0, hosts, vec!["embed".into()], TIMEOUT, || {}).expect("a thread")
    };

    println!("per instruction of a step, CPU time of the thread");
    // Without ranks to tell it writes nothing beside what is measured.
    let recorder = flight(&[]);
    let (mut off, mut on) = (Trace::default(), Trace::default());
    on.set_step(Some(1));
    let now = Instant::now();
    let span =
        |trace: &mut Trace| black_box(trace).span(Track::Compute, "forward", Some(0), (now, now), 0, 0);
    per_call(
        n_rounds,
        &mut [
            ("an empty call", &mut || black_box(())),
            ("is a trace on?", &mut || _ = black_box(black_box(&on).is_on())),
            ("a span, trace off", &mut || span(&mut off)),
            ("what time is it?", &mut || _ = black_box(Instant::now())),
            ("note for the watchdog", &mut || black_box(&recorder).at(1, "forward", Some(0))),
            ("note of a gather, in three", &mut || {
                let recorder = black_box(&recorder);
                recorder.gathering(0);
                recorder.gathered(0);
                recorder.released(0);
            }),
        ],
    );
    per_call(n_rounds, &mut [("a span, trace on", &mut || span(&mut on))]);

    println!("\nper beat of the watchdog: its file written and renamed, CPU time of its thread");
    let mut beats = Vec::new();
    let watched = flight(&["here"; 2]);
    watched.show_memory(full_ledger(), MemKind::ALL.map(|kind| (kind, 1 << 30)).into(), 1 << 34);
    watched.appear();
    for _ in 0..n_rounds {
        let others = |process: Duration| process - cpu_time(libc::CLOCK_THREAD_CPUTIME_ID);
        let before = others(cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID));
        for _ in 0..N_BEATS {
            std::thread::sleep(BEAT);
            watched.at(1, "forward", Some(0));
        }
        let took = others(cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID)).saturating_sub(before);
        beats.push(took.as_nanos() as f64 / 1e3 / f64::from(N_BEATS));
    }
    drop(watched);
    let [least, median, most] = spread(beats);
    println!("{:<32} {median:>9.1} us  ({least:.1} to {most:.1})", "a beat");

    println!("\nper step of one rank (inputs/tiny.toml, 4 micro-batches of 1), CPU time of the process");
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..n_rounds {
        let (a, b) = (per_step(dir.path(), ""), per_step(dir.path(), &format!("1..={}", 2 * N_STEPS)));
        without.push(1e3 * a);
        with.push(1e3 * b);
        ratios.push(b / a);
    }
    for (name, figures) in [("trace off", without), ("every step traced", with)] {
        let [least, median, most] = spread(figures);
        println!("{name:<32} {median:>9.2} ms  ({least:.2} to {most:.2})");
    }
    let [least, median, most] = spread(ratios);
    println!("{:<32} {median:>9.3}     ({least:.3} to {most:.3})", "traced / off, by round");
}
