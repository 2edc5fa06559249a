//! A rank's file: a dataset for the weights and each optimizer state of a parameter slice, a digest per block
//! and for the file, fsync.
//!
//! Must not know: other ranks, the use of the manifest, the final directory names.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hdf5::plist::dataset_create::{AllocTime, FillTime};
use hdf5::types::VarLenUnicode;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::lock::{self, Access};
use super::manifest::{self, DIGEST_BLOCK, FORMAT_VERSION, FileRecord, SliceDigests, SliceRecord, Structure};
use super::validate::check_param_name;
use super::{Kind, Stored, h5, rank_file_name};
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::files;
use crate::plan::Slice;
use crate::test_hooks::{fault_point, write_point};

// Digests are over little-endian f32, the contents of the datasets.
const _: () = assert!(cfg!(target_endian = "little"));

/// Size of a dataset besides its values: object header, attributes, its entry in the group.
const BYTES_PER_DATASET: u64 = 1024;
/// Size of a file besides its datasets.
const BYTES_PER_FILE: u64 = 16 << 10;

/// A slice and its values, as they lie in host memory.
#[derive(Debug, Clone, Copy)]
pub struct SliceValues<'a> {
    /// Which part of which parameter.
    pub slice: Slice<'a>,
    /// Fp32 master weights and the optimizer's states, as many of each as the slice has elements.
    pub values: Stored<&'a [f32]>,
}

/// Bytes a rank file of `n_kinds` values of these slices takes on disk, a little over: what to ask
/// [`check_free_space`](super::check_free_space) for.
pub fn estimate_bytes(slices: &[Slice<'_>], n_kinds: usize) -> u64 {
    let values: u64 = slices.iter().map(|s| s.numel() as u64 * 4 + BYTES_PER_DATASET).sum();
    BYTES_PER_FILE + n_kinds as u64 * values
}

/// Properties of a rank file besides its values.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The partial directory of the step ([`partial_dir`](super::partial_dir)).
    pub dir: &'a Path,
    /// Its rank.
    pub rank: usize,
    /// Ranks of the shard group.
    pub world_size: usize,
    /// Optimizer step.
    pub step: u64,
    /// The kinds stored of each slice, in file order.
    pub kinds: &'a [Kind],
    /// Whether the file is locked while it is written.
    pub locking: Locking,
}

/// Where the values of a rank file come from, block by block.
pub trait Values {
    /// Elements `range` of slice `slice_idx`, relative to the slice's start.
    fn block(&mut self, slice_idx: usize, kind: Kind, range: Range<usize>) -> Result<&[f32]>;
}

impl Values for &[SliceValues<'_>] {
    fn block(&mut self, slice_idx: usize, kind: Kind, range: Range<usize>) -> Result<&[f32]> {
        Ok(&self[slice_idx].values.get(kind).expect("a slice has what its file stores")[range])
    }
}

/// Writes `dir/rank_RRRR_of_NNNN.h5` from slices in memory, without a lock; see [`write_file`].
pub fn write_rank_file(
    dir: &Path,
    rank: usize,
    world_size: usize,
    step: u64,
    slices: &[SliceValues<'_>],
) -> Result<FileRecord> {
    let kinds = slices.first().map_or_else(|| vec![Kind::Weight], |slice| slice.values.kinds());
    write_slices(&Target { dir, rank, world_size, step, kinds: &kinds, locking: Locking::Off }, slices)
}

/// Writes a rank's file from slices in memory; see [`write_file`].
pub fn write_slices(target: &Target<'_>, mut slices: &[SliceValues<'_>]) -> Result<FileRecord> {
    for SliceValues { slice, values } in slices {
        for &kind in target.kinds {
            let n_values = values.get(kind).map(|values| values.len());
            assert_eq!(n_values, Some(slice.numel()), "{kind} values of {slice:?}");
        }
    }
    let of_file: Vec<Slice<'_>> = slices.iter().map(|s| s.slice).collect();
    write_file(target, &of_file, &mut slices)
}

/// Writes a rank's file and returns its manifest record once its bytes are durable. Errors: the file exists,
/// the disk is full, or any other failure of the file system, with the path and the bytes required; or an
/// error of `values`.
///
/// \[Note: two passes\] The HDF5 library makes the file's structure, with the place of every dataset fixed;
/// then the values are written to those places with plain writes, in the order of the file, each block
/// digested meanwhile. So the file is digested without being read back, a full disk is met by a plain write
/// and not inside the library, and the disk gets large sequential writes. The values pass through no buffer
/// of ours.
pub fn write_file(target: &Target<'_>, slices: &[Slice<'_>], values: &mut dyn Values) -> Result<FileRecord> {
    check_slices(target, slices)?;
    let (rank, step) = (target.rank, target.step);
    let name = rank_file_name(rank, target.world_size);
    let path = target.dir.join(&name);
    let failed = |what: String| {
        let needed_bytes = estimate_bytes(slices, target.kinds.len());
        Error::Io(format!("writing checkpoint file {} (about {needed_bytes} bytes): {what}", path.display()))
    };
    let mut places = make_structure(&path, target, slices).map_err(|e| failed(h5::one_line(&e)))?;
    places.sort_by_key(|place| place.offset);
    write_point("write.structure", rank, step).map_err(|e| failed(e.to_string()))?;

    // The library has closed the file.
    let file = files::open_to_change(&path).map_err(|e| failed(e.to_string()))?;
    lock::hold(&file, &path, target.locking, Access::Write)?;
    let bytes = file.metadata().map_err(|e| failed(e.to_string()))?.len();
    let mut whole =
        Whole { file: &file, hasher: Xxh3::new(), structure: Xxh3::new(), values: Vec::new(), at: 0 };
    let mut digests = vec![SliceDigests::empty(target.kinds); slices.len()];
    let digest_block =
        manifest::digest_block(slices.iter().map(Slice::global_numel).sum(), target.kinds.len());
    for (i, place) in places.iter().enumerate() {
        if i == places.len() / 2 {
            write_point("write.half", rank, step).map_err(|e| failed(e.to_string()))?;
        }
        whole.skip_to(place.offset).map_err(|e| failed(e.to_string()))?;
        let numel = slices[place.slice_idx].numel();
        for from in (0..numel).step_by(DIGEST_BLOCK) {
            let range = from..numel.min(from + DIGEST_BLOCK);
            let values = values.block(place.slice_idx, place.kind, range)?;
            let found = whole.write(values, digest_block).map_err(|e| failed(e.to_string()))?;
            digests[place.slice_idx].of_mut(place.kind).extend(found);
        }
    }
    whole.skip_to(bytes).map_err(|e| failed(e.to_string()))?;
    let digest = manifest::hex(whole.hasher.digest());
    let structure = Structure { digest: manifest::hex(whole.structure.digest()), values: whole.values };
    write_point("write.values", rank, step).map_err(|e| failed(e.to_string()))?;
    files::sync(&file, &path).map_err(|e| failed(e.to_string()))?;
    fault_point("write.synced", rank, step);
    let records = slices
        .iter()
        .zip(digests)
        .map(|(s, digests)| SliceRecord { param: s.param.to_string(), start: s.start, end: s.end, digests })
        .collect();
    Ok(FileRecord { rank, name, bytes, digest, structure: Some(structure), slices: records })
}

fn check_slices(target: &Target<'_>, slices: &[Slice<'_>]) -> Result<()> {
    assert!(target.rank < target.world_size, "rank {} of {}", target.rank, target.world_size);
    let mut names = HashSet::new();
    for slice in slices {
        check_param_name(slice.param).map_err(|why| Error::Internal(format!("the model {why}")))?;
        assert!(names.insert(slice.param), "two slices of {}", slice.param);
        assert!(slice.start <= slice.end && slice.end <= slice.global_numel(), "{slice:?}");
    }
    Ok(())
}

/// The location of the values of one dataset in the file.
struct Place {
    offset: u64,
    slice_idx: usize,
    kind: Kind,
}

/// Creates the file with every dataset allocated and none written. Empty datasets have no place.
fn make_structure(path: &Path, target: &Target<'_>, slices: &[Slice<'_>]) -> hdf5::Result<Vec<Place>> {
    let file = h5::create(path)?;
    let (rank, world_size, step) = (target.rank, target.world_size, target.step);
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
    let mut places = Vec::with_capacity(slices.len() * target.kinds.len());
    for &kind in target.kinds {
        let group = h5::create_group(&file, kind.group())?;
        for (slice_idx, slice) in slices.iter().enumerate() {
            let dataset = make_dataset(&group, slice)?;
            if slice.numel() > 0 {
                let offset = dataset.offset().ok_or("the library did not allocate a dataset in the file")?;
                places.push(Place { offset, slice_idx, kind });
            }
        }
    }
    file.flush()?;
    file.close()?;
    Ok(places)
}

fn make_dataset(group: &hdf5::Group, slice: &Slice<'_>) -> hdf5::Result<hdf5::Dataset> {
    let dataset = group
        .new_dataset::<f32>()
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never)
        .shape(slice.numel())
        .create(slice.param)?;
    let global_shape: Vec<u64> = slice.global_shape.iter().map(|&d| d as u64).collect();
    dataset.new_attr::<u64>().shape(global_shape.len()).create("global_shape")?.write_raw(&global_shape)?;
    for (name, value) in [("start", slice.start as u64), ("numel", slice.global_numel() as u64)] {
        dataset.new_attr::<u64>().create(name)?.write_scalar(&value)?;
    }
    Ok(dataset)
}

/// A file written from front to back, and the digests of the whole and of its structure.
struct Whole<'a> {
    file: &'a File,
    hasher: Xxh3,
    structure: Xxh3,
    /// Ranges of values, as in [`Structure::values`].
    values: Vec<(u64, u64)>,
    at: u64,
}

impl Whole<'_> {
    /// Digests the structure between here and `offset`.
    fn skip_to(&mut self, offset: u64) -> std::io::Result<()> {
        assert!(self.at <= offset, "two datasets share bytes {offset}..{} of a file", self.at);
        let mut buffer = [0u8; 16 << 10];
        while self.at < offset {
            let n = buffer.len().min((offset - self.at) as usize);
            self.file.read_exact_at(&mut buffer[..n], self.at)?;
            self.hasher.update(&buffer[..n]);
            self.structure.update(&buffer[..n]);
            self.at += n as u64;
        }
        Ok(())
    }

    /// Writes values, which another core digests meanwhile if one is idle. Returns the digest of each
    /// `digest_block` of them.
    fn write(&mut self, of_slice: &[f32], digest_block: usize) -> std::io::Result<Vec<String>> {
        let bytes: &[u8] = bytemuck::cast_slice(of_slice);
        let Whole { file, hasher, values, at, .. } = self;
        let end = *at + bytes.len() as u64;
        match values.last_mut() {
            Some(last) if last.1 == *at => last.1 = end,
            _ => values.push((*at, end)),
        }
        let digested = || {
            hasher.update(bytes);
            of_slice
                .chunks(digest_block)
                .map(|block| manifest::hex(xxh3_64(bytemuck::cast_slice(block))))
                .collect()
        };
        let (written, digests) = rayon::join(|| file.write_all_at(bytes, *at), digested);
        written?;
        self.at = end;
        Ok(digests)
    }
}

/// Digest of some ranges of a file's bytes, read through a fixed buffer.
pub(super) fn digest_ranges(file: &File, ranges: &[Range<u64>]) -> std::io::Result<String> {
    let mut buffer = [0u8; 16 << 10];
    let mut hasher = Xxh3::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let n = buffer.len().min((range.end - at) as usize);
            file.read_exact_at(&mut buffer[..n], at)?;
            hasher.update(&buffer[..n]);
            at += n as u64;
        }
    }
    Ok(manifest::hex(hasher.digest()))
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
