//! Checkpoint tests: a slow obvious partition and state, and what they must survive.

mod commit;
mod damage;
mod formats;
mod fuzz;
mod golden;
mod reshard;

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::manifest::{FileRecord, MeshDim, Optimizer, Param, Seeds};
use super::*;
use crate::error::{Error, Result};
use crate::optimizers::OptimState;
use crate::plan::Slice;
use OptimState::{ExpAvg, ExpAvgSq};

/// What AdamW stores.
const KINDS: [Kind; 3] = [Kind::Weight, Kind::Optim(ExpAvg), Kind::Optim(ExpAvgSq)];

/// A model: odd sizes first. Scalar, numel < world_size, primes, a row cut anywhere.
const PARAMS: [(&str, &[usize]); 6] = [
    ("scale", &[]),
    ("h.0.ln_1.bias", &[3]),
    ("h.0.mlp.c_fc.bias", &[13]),
    ("h.0.mlp.c_fc.weight", &[7, 11]),
    ("wte.weight", &[101, 5]),
    ("h.0.attn.cube", &[2, 3, 5]),
];

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The partition rule, written a second time.
fn shard_range(numel: usize, world_size: usize, rank: usize) -> Range<usize> {
    let shard_numel = numel.div_ceil(world_size);
    (rank * shard_numel).min(numel)..((rank + 1) * shard_numel).min(numel)
}

fn kind_idx(kind: Kind) -> usize {
    Kind::all(&OptimState::ALL).iter().position(|&k| k == kind).expect("every kind is listed")
}

/// Any bits, not-a-numbers, infinities and denormals included: a function of (tag, parameter, kind, element).
fn value(tag: u64, param_idx: usize, kind: Kind, i: usize) -> f32 {
    let mut h = tag ^ ((param_idx as u64) << 40) ^ ((kind_idx(kind) as u64) << 56) ^ i as u64;
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f32::from_bits((h ^ (h >> 31)) as u32)
}

fn values(tag: u64, param_idx: usize, kind: Kind, range: Range<usize>) -> Vec<f32> {
    range.map(|i| value(tag, param_idx, kind, i)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn write_rank(dir: &Path, tag: u64, step: u64, world_size: usize, rank: usize) -> FileRecord {
    let held: Vec<(Range<usize>, Stored<Vec<f32>>)> = PARAMS
        .iter()
        .enumerate()
        .map(|(idx, (_, shape))| {
            let range = shard_range(numel(shape), world_size, rank);
            (range.clone(), Stored::of(&KINDS, |kind| values(tag, idx, kind, range.clone())))
        })
        .collect();
    let slices: Vec<SliceValues<'_>> = PARAMS
        .iter()
        .zip(&held)
        .map(|((param, global_shape), (range, values))| {
            let slice = Slice { param, global_shape, start: range.start, end: range.end };
            SliceValues { slice, values: values.each_ref().map(|v| &v[..]) }
        })
        .collect();
    write_rank_file(dir, rank, world_size, step, &slices).unwrap()
}

fn manifest(step: u64, world_size: usize, files: Vec<FileRecord>) -> Manifest {
    Manifest {
        step,
        attempts: step + 2,
        samples: step * 8,
        tokens: step * 8 * 64,
        data_digest: "0123456789abcdef".to_string(),
        seeds: Seeds { init_seed: u64::MAX, data_seed: 7 },
        deck: "[run]\ndir = \"runs/a \u{e9}\"\n".to_string(),
        psi: PARAMS.iter().map(|(_, shape)| numel(shape)).sum(),
        digest_block: manifest::digest_block(PARAMS.iter().map(|(_, shape)| numel(shape)).sum(), KINDS.len()),
        world_size,
        mesh: vec![MeshDim { dim: "shard".to_string(), extent: world_size }],
        optimizer: Optimizer { name: "adamw".to_string(), step, ..Optimizer::default() },
        params: PARAMS.iter().map(|(n, s)| Param::whole(n, s, s.len() > 1)).collect(),
        aliases: vec![manifest::Alias {
            name: "lm_head.weight".to_string(),
            param: "wte.weight".to_string(),
        }],
        files,
        ..Manifest::default()
    }
}

/// Everything up to the commit.
fn write_partial(run_dir: &Path, tag: u64, step: u64, world_size: usize) -> Manifest {
    let dir = prepare(run_dir, step).unwrap();
    let files = (0..world_size).map(|rank| write_rank(&dir, tag, step, world_size, rank)).collect();
    manifest(step, world_size, files)
}

/// A whole save, as a trainer does it. `tag` decides the values.
fn save(run_dir: &Path, tag: u64, step: u64, world_size: usize) -> PathBuf {
    let manifest = write_partial(run_dir, tag, step, world_size);
    commit(run_dir, &manifest).unwrap()
}

/// Reads everything in `world_size` slices, as that many ranks would, and demands the saved bits.
fn check_restores(dir: &Path, tag: u64, world_size: usize) {
    for rank in 0..world_size {
        read_rank(dir, tag, world_size, rank).unwrap();
    }
}

/// One rank's restore. Ok means that every bit was right; wrong data is a panic, never an Err.
fn read_rank(dir: &Path, tag: u64, world_size: usize, rank: usize) -> Result<u64> {
    let mut reader = Reader::open(dir)?;
    for (idx, (name, shape)) in PARAMS.iter().enumerate() {
        for kind in KINDS {
            let range = shard_range(numel(shape), world_size, rank);
            let mut out = vec![0.0; range.len()];
            reader.read(name, kind, range.clone(), &mut out)?;
            let expected = values(tag, idx, kind, range.clone());
            assert_eq!(bits(&out), bits(&expected), "{name} {kind} {range:?}");
        }
    }
    Ok(reader.bytes_read())
}

/// The message of an error that must be a checkpoint error.
fn message<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Checkpoint(why)) => why,
        Err(other) => panic!("not a checkpoint error: {other:?}"),
        Ok(_) => panic!("no error"),
    }
}

/// Names in the checkpoints directory, but the link for people.
fn names(run_dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(checkpoints_dir(run_dir))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != LATEST)
        .collect();
    names.sort();
    names
}
