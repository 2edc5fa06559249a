//! A rank's file: three datasets per parameter slice, a digest per block and of the file, fsync.
//!
//! Must not know: other ranks, the manifest's fate, which directory names are final.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use hdf5::types::VarLenUnicode;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::manifest::{self, DIGEST_BLOCK, FORMAT_VERSION, FileRecord, Slice, SliceDigests, check_param_name};
use super::{Kind, h5, rank_file_name};
use crate::error::{Error, Result};

// Digests are over little-endian f32, which is what the datasets hold.
const _: () = assert!(cfg!(target_endian = "little"));

/// What one dataset costs besides its values: object header, attributes, its entry in the group.
const BYTES_PER_DATASET: u64 = 1024;
/// What a file costs besides its datasets.
const BYTES_PER_FILE: u64 = 16 << 10;

/// A rank's unpadded slice of one parameter, as it lies in host memory.
#[derive(Debug, Clone, Copy)]
pub struct ParamSlice<'a> {
    /// Parameter name.
    pub name: &'a str,
    /// Whole shape of the parameter.
    pub global_shape: &'a [usize],
    /// Elements of the whole parameter.
    pub numel: usize,
    /// First element of the slice in the flattened parameter.
    pub start: usize,
    /// One past the last element; `start == end` is a normal, empty slice.
    pub end: usize,
    /// Fp32 master weights, `end - start` of them.
    pub weight: &'a [f32],
    /// First moments (m).
    pub exp_avg: &'a [f32],
    /// Second moments (v).
    pub exp_avg_sq: &'a [f32],
}

impl<'a> ParamSlice<'a> {
    fn values(&self, kind: Kind) -> &'a [f32] {
        match kind {
            Kind::Weight => self.weight,
            Kind::ExpAvg => self.exp_avg,
            Kind::ExpAvgSq => self.exp_avg_sq,
        }
    }
}

/// Bytes a rank file of these slices takes on disk, a little over: what to ask
/// [`check_free_space`](super::check_free_space) for.
pub fn estimate_bytes(slices: &[ParamSlice<'_>]) -> u64 {
    let values: u64 = slices.iter().map(|s| (s.end - s.start) as u64 * 4 + BYTES_PER_DATASET).sum();
    BYTES_PER_FILE + Kind::ALL.len() as u64 * values
}

/// Writes `dir/rank_RRRR_of_NNNN.h5` and returns its manifest record once its bytes are durable. `dir` is the partial
/// directory of the step ([`partial_dir`](super::partial_dir)). Errors: the file exists, the disk is full, or any other
/// failure of the file system, with the path.
pub fn write_rank_file(
    dir: &Path,
    rank: usize,
    world_size: usize,
    step: u64,
    slices: &[ParamSlice<'_>],
) -> Result<FileRecord> {
    check_slices(rank, world_size, slices)?;
    let name = rank_file_name(rank, world_size);
    let path = dir.join(&name);
    let records = write_datasets(&path, rank, world_size, step, slices).map_err(|e| {
        Error::Io(format!(
            "writing checkpoint file {} (about {} bytes): {}",
            path.display(),
            estimate_bytes(slices),
            h5::one_line(&e)
        ))
    })?;

    // The library has closed the file. The disk takes its bytes while they are digested from the page cache.
    let mut file = File::open(&path).map_err(|e| Error::io("open", &path, &e))?;
    let to_sync = file.try_clone().map_err(|e| Error::io("open", &path, &e))?;
    let (synced, digested) = std::thread::scope(|scope| {
        let syncing = scope.spawn(move || to_sync.sync_all());
        let digested = digest_file(&mut file);
        (syncing.join().expect("fsync does not panic"), digested)
    });
    synced.map_err(|e| Error::io("fsync", &path, &e))?;
    let (bytes, digest) = digested.map_err(|e| Error::io("read", &path, &e))?;
    Ok(FileRecord { rank, name, bytes, digest, slices: records })
}

fn check_slices(rank: usize, world_size: usize, slices: &[ParamSlice<'_>]) -> Result<()> {
    assert!(rank < world_size, "rank {rank} of {world_size}");
    let mut names = HashSet::new();
    for slice in slices {
        check_param_name(slice.name).map_err(|why| Error::Internal(format!("the model {why}")))?;
        assert!(names.insert(slice.name), "two slices of {}", slice.name);
        assert!(
            slice.start <= slice.end && slice.end <= slice.numel,
            "slice {}..{} of {} with {} elements",
            slice.start,
            slice.end,
            slice.name,
            slice.numel
        );
        for kind in Kind::ALL {
            assert_eq!(
                slice.values(kind).len(),
                slice.end - slice.start,
                "{kind} values of {} for its range {}..{}",
                slice.name,
                slice.start,
                slice.end
            );
        }
    }
    Ok(())
}

fn write_datasets(
    path: &Path,
    rank: usize,
    world_size: usize,
    step: u64,
    slices: &[ParamSlice<'_>],
) -> hdf5::Result<Vec<Slice>> {
    let file = h5::create(path)?;
    let about = format!("zero3 checkpoint, step {step}: slices of rank {rank} of {world_size}");
    let about: VarLenUnicode = about.parse().expect("letters and numbers hold no NUL");
    file.new_attr::<VarLenUnicode>().create("about")?.write_scalar(&about)?;
    for (name, value) in [
        ("format_version", u64::from(FORMAT_VERSION)),
        ("rank", rank as u64),
        ("world_size", world_size as u64),
        ("step", step),
    ] {
        file.new_attr::<u64>().create(name)?.write_scalar(&value)?;
    }

    let mut digests = vec![SliceDigests::default(); slices.len()];
    for kind in Kind::ALL {
        let group = file.create_group(kind.group())?;
        for (slice, digests) in slices.iter().zip(&mut digests) {
            *digests.of_mut(kind) = write_dataset(&group, slice, slice.values(kind))?;
        }
    }
    file.flush()?;
    file.close()?;
    Ok(slices
        .iter()
        .zip(digests)
        .map(|(s, digests)| Slice { param: s.name.to_string(), start: s.start, end: s.end, digests })
        .collect())
}

/// Writes one dataset block by block, so that a block is digested while it is in cache. Returns the block digests.
fn write_dataset(group: &hdf5::Group, slice: &ParamSlice<'_>, values: &[f32]) -> hdf5::Result<Vec<String>> {
    let dataset = group.new_dataset::<f32>().shape(values.len()).create(slice.name)?;
    let global_shape: Vec<u64> = slice.global_shape.iter().map(|&d| d as u64).collect();
    dataset.new_attr::<u64>().shape(global_shape.len()).create("global_shape")?.write_raw(&global_shape)?;
    for (name, value) in [("start", slice.start as u64), ("numel", slice.numel as u64)] {
        dataset.new_attr::<u64>().create(name)?.write_scalar(&value)?;
    }
    let mut digests = Vec::with_capacity(values.len().div_ceil(DIGEST_BLOCK));
    for (block_idx, block) in values.chunks(DIGEST_BLOCK).enumerate() {
        digests.push(manifest::hex(xxh3_64(bytemuck::cast_slice(block))));
        let from = block_idx * DIGEST_BLOCK;
        dataset.write_slice(block, from..from + block.len())?;
    }
    Ok(digests)
}

/// Size and digest of a file's bytes, read through a fixed buffer.
pub(super) fn digest_file(file: &mut File) -> std::io::Result<(u64, String)> {
    let mut buffer = vec![0u8; 4 << 20];
    let (mut hasher, mut bytes) = (Xxh3::new(), 0u64);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((bytes, manifest::hex(hasher.digest()))),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                bytes += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
