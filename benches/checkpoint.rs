//! How fast a checkpoint is written and read, against plain writes and reads of the same bytes on the same
//! disk.
//!
//! `cargo bench --bench checkpoint`; `ZERO3_BENCH_MB` (512) is the size of one rank's state,
//! `ZERO3_BENCH_DIR` where it goes (the temporary directory), `ZERO3_BENCH_ROUNDS` (5) how often. The
//! contestants take turns, so that a disk that is busy with something else is busy for both; medians are
//! printed, and the median of the ratio of each round.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;
use zero3::checkpoint::manifest::ADAM_STATES;
use zero3::checkpoint::manifest::Param;
use zero3::checkpoint::{self, Kind, Manifest, Reader, SliceValues, Stored};
use zero3::plan::Slice;
use zero3::plan::slice::owned_slices;

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a whole number"))
}

/// Seconds that `work` takes.
fn timed(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Parameters of a GPT of about `numel` elements: few large ones, many small ones.
fn params(numel: usize) -> Vec<(String, usize)> {
    let n_blocks = 12;
    let large = numel / (n_blocks * 4);
    let block = |l: usize| {
        let names = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"];
        names
            .map(|name| [(format!("h.{l}.{name}.weight"), large), (format!("h.{l}.{name}.bias"), 768)])
            .concat()
    };
    (0..n_blocks).flat_map(block).collect()
}

/// The slices of `rank` of `n`.
fn owned(params: &[(String, usize)], n: usize, rank: usize) -> Vec<Slice<'_>> {
    let shapes = params.iter().map(|(name, numel)| (name.as_str(), std::slice::from_ref(numel)));
    owned_slices(shapes, n, rank)
}

/// Saves the whole state as `n` ranks would, one after another.
fn save(run_dir: &Path, params: &[(String, usize)], values: &[f32], n: usize) {
    let partial = checkpoint::prepare(run_dir, 1).unwrap();
    let files = (0..n)
        .map(|rank| {
            let slices: Vec<SliceValues<'_>> = owned(params, n, rank)
                .into_iter()
                .map(|slice| {
                    let values = &values[slice.range()];
                    SliceValues { slice, values: Stored::of(&Kind::all(&ADAM_STATES), |_| values) }
                })
                .collect();
            checkpoint::write_rank_file(&partial, rank, n, 1, &slices).unwrap()
        })
        .collect();
    let manifest = Manifest {
        step: 1,
        psi: params.iter().map(|p| p.1).sum(),
        digest_block: checkpoint::manifest::digest_block(params.iter().map(|p| p.1).sum(), 3),
        world_size: n,
        params: params.iter().map(|(name, numel)| Param::whole(name, &[*numel], true)).collect(),
        files,
        ..Manifest::default()
    };
    checkpoint::master::finish(run_dir, manifest).unwrap();
}

/// The same bytes as one plain sequential write and fsync.
fn write_raw(path: &Path, params: &[(String, usize)], values: &[f32]) {
    let mut file = File::create(path).unwrap();
    for _ in Kind::all(&ADAM_STATES) {
        for (_, numel) in params {
            let bytes: &[u8] = bytemuck::cast_slice(&values[..*numel]);
            bytes.chunks(4 << 20).for_each(|block| file.write_all(block).unwrap());
        }
    }
    file.sync_all().unwrap();
}

/// Restores as `m` ranks would, one after another.
fn restore(run_dir: &Path, params: &[(String, usize)], m: usize) {
    let dir = checkpoint::resolve(run_dir).unwrap();
    for rank in 0..m {
        let mut reader = Reader::open(&dir).unwrap();
        let mut out = Vec::new();
        for slice in owned(params, m, rank) {
            out.resize(slice.numel(), 0.0);
            for kind in Kind::all(&ADAM_STATES) {
                reader.read(slice.param, kind, slice.range(), &mut out).unwrap();
            }
        }
    }
}

fn read_raw(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0u8; 4 << 20];
    while file.read(&mut buffer).unwrap() > 0 {}
}

fn main() {
    let (megabytes, rounds) = (number("ZERO3_BENCH_MB", 512), number("ZERO3_BENCH_ROUNDS", 5));
    let place = std::env::var_os("ZERO3_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(&place).unwrap();
    let params = params(megabytes * 1_000_000 / 12);
    let longest = params.iter().map(|p| p.1).max().unwrap();
    let values: Vec<f32> = (0..longest).map(|i| (i as f32 * 0.001).sin()).collect();
    let bytes = 12.0 * params.iter().map(|p| p.1).sum::<usize>() as f64;
    println!(
        "{:.0} MB in {} parameters, in {}, median of {rounds} rounds",
        bytes / 1e6,
        params.len(),
        place.display()
    );

    let (raw, run) = (dir.path().join("raw"), dir.path().join("run"));
    let (mut written_raw, mut saved) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        written_raw.push(timed(|| write_raw(&raw, &params, &values)));
        saved.push(timed(|| save(&run, &params, &values, 1)));
        std::fs::remove_dir_all(&run).unwrap();
    }
    let show = |what: &str, seconds: &[f64], than: &[f64]| {
        let ratio = median(seconds.iter().zip(than).map(|(s, t)| t / s).collect());
        let mb_per_s = bytes / 1e6 / median(seconds.to_vec());
        println!("{what:<44} {mb_per_s:>8.0} MB/s  {ratio:>6.2} x raw");
    };
    show("raw sequential write and fsync", &written_raw, &written_raw);
    show("save and commit, 1 rank", &saved, &written_raw);

    // What an asynchronous save holds training up for: a copy into memory that is there already.
    let mut staging = vec![1.0f32; bytes as usize / 4];
    let mut copied = Vec::new();
    for _ in 0..rounds {
        copied.push(timed(|| {
            let mut at = 0;
            for _ in Kind::all(&ADAM_STATES) {
                for (_, numel) in &params {
                    staging[at..at + numel].copy_from_slice(&values[..*numel]);
                    at += numel;
                }
            }
        }));
    }
    let stall = median(saved.iter().zip(&copied).map(|(s, c)| s / c).collect());
    show("copy to staging", &copied, &written_raw);
    println!("stall of a synchronous save / of an asynchronous one: {stall:.0}");

    // From the page cache: what the program adds to a plain read.
    for (n, ms) in [(1, vec![1, 3]), (4, vec![4, 3])] {
        save(&run, &params, &values, n);
        for m in ms {
            let (mut read, mut restored) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                read.push(timed(|| read_raw(&raw)));
                restored.push(timed(|| restore(&run, &params, m)));
            }
            show(&format!("restore {n} -> {m} ranks, one after another"), &restored, &read);
        }
        std::fs::remove_dir_all(&run).unwrap();
    }
}
