//! Reads any range of any parameter from the files that contain it, verified.
//!
//! A reader knows neither its own rank nor the rank count: it receives a range and follows the manifest. So a
//! restore on another world size is not a special case.
//!
//! Must not know: partition rules, world sizes.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::lock::{self, Access};
use super::manifest::{self, DIGEST_BLOCK, Manifest};
use super::slice_map::{Part, Placed, ranges};
use super::{Kind, find, h5, write};
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::files;

/// Maximum number of open files, well under the usual limit of 1024.
const MAX_OPEN_FILES: usize = 256;

/// A complete checkpoint, open for reading.
pub struct Reader {
    dir: PathBuf,
    manifest: Manifest,
    placed: HashMap<String, Vec<Placed>>,
    /// Open files, and the handles that hold their locks.
    open: VecDeque<(usize, hdf5::File, Option<File>)>,
    locking: Locking,
    verify: bool,
    scratch: Vec<f32>,
    bytes_read: u64,
}

impl Reader {
    /// Opens a step directory ([`resolve`](super::resolve) finds it). Errors: the manifest is damaged or
    /// unsupported; a file is missing or has another size.
    pub fn open(step_dir: &Path) -> Result<Self> {
        Reader::open_with(step_dir, Locking::Off)
    }

    /// Also locks each file for reading while it is open.
    ///
    /// # Errors
    /// Those of [`Reader::open`].
    pub fn open_with(step_dir: &Path, locking: Locking) -> Result<Self> {
        Ok(Reader::of(step_dir, find::check_complete(step_dir)?, locking))
    }

    /// Opens a checkpoint that may lack files, to find out what is wrong with the others.
    pub(super) fn open_incomplete(step_dir: &Path) -> Result<Self> {
        Ok(Reader::of(step_dir, find::read_manifest(step_dir)?, Locking::Off))
    }

    fn of(step_dir: &Path, manifest: Manifest, locking: Locking) -> Self {
        let placed = manifest.placed().into_iter().map(|(k, v)| (k.to_string(), v)).collect();
        Reader {
            dir: step_dir.to_path_buf(),
            manifest,
            placed,
            open: VecDeque::new(),
            locking,
            verify: true,
            scratch: Vec::new(),
            bytes_read: 0,
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The step directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether each block is verified against its digest (the default). Without verification exactly the
    /// requested bytes are read; with it at most one additional block at each end of each part.
    pub fn verify(&mut self, on: bool) {
        self.verify = on;
    }

    /// Bytes of values read from files so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads elements `range` of the flattened parameter (aliases are resolved) into `out`, which it
    /// overwrites. Errors name the file, the dataset and the elements; `out` is then partly overwritten.
    pub fn read(&mut self, param: &str, kind: Kind, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Some(stored) = self.manifest.param(param) else {
            return Err(Error::Checkpoint(format!("{}: there is no parameter {param}", self.dir.display())));
        };
        if !self.manifest.kinds().contains(&kind) {
            return Err(Error::Checkpoint(format!("{}: there is no {kind}", self.dir.display())));
        }
        assert!(
            range.start <= range.end && range.end <= stored.numel,
            "range {range:?} of {param} with {} elements",
            stored.numel
        );
        assert_eq!(out.len(), range.len(), "output for {range:?} of {param}");
        for part in ranges(&self.placed[&stored.name], range) {
            let out = &mut out[part.out_range.clone()];
            self.read_part(&part, kind, out).map_err(|why| self.damaged(&part, kind, &why))?;
        }
        Ok(())
    }

    /// Verifies size and digest of one whole file, values and structure alike.
    ///
    /// # Errors
    /// The file cannot be read, or its size or digest differs.
    pub fn verify_file(&self, file_idx: usize) -> Result<()> {
        let record = &self.manifest.files[file_idx];
        let path = self.dir.join(&record.name);
        let damaged = |why: String| Error::Checkpoint(format!("{} {why}", path.display()));
        let (bytes, digest) = files::open(&path)
            .and_then(|mut file| write::digest_file(&mut file))
            .map_err(|e| damaged(format!("cannot be read: {e}")))?;
        if bytes != record.bytes {
            return Err(damaged(format!("has {bytes} bytes, the manifest specifies {}", record.bytes)));
        }
        if digest != record.digest {
            return Err(damaged("is damaged: its bytes do not match its digest".to_string()));
        }
        Ok(())
    }

    fn damaged(&self, part: &Part, kind: Kind, why: &str) -> Error {
        if find::is_gone(&self.dir) {
            return Error::Checkpoint(find::gone(&self.dir));
        }
        let file = &self.manifest.files[part.file_idx];
        let slice = &file.slices[part.slice_idx];
        Error::Checkpoint(format!(
            "{}: dataset /{kind}/{} (elements {}..{} of the parameter) {why}",
            self.dir.join(&file.name).display(),
            slice.param,
            slice.start,
            slice.end
        ))
    }

    fn read_part(&mut self, part: &Part, kind: Kind, out: &mut [f32]) -> std::result::Result<(), String> {
        let file = self.file(part.file_idx)?;
        let slice = &self.manifest.files[part.file_idx].slices[part.slice_idx];
        let name = format!("{}/{}", kind.group(), slice.param);
        let dataset = h5::slice_dataset(&file, &name, slice.numel())?;
        let wanted = &part.file_range;
        let cannot = |e: hdf5::Error| format!("cannot be read: {}", h5::one_line(&e));
        let block = self.manifest.digest_block;
        // Verified reads cover whole blocks, several at a time; a block may extend beyond the rest of the
        // file.
        let (first, end, stride) = match self.verify {
            true => {
                let end = wanted.end.div_ceil(block).saturating_mul(block).min(slice.numel());
                (wanted.start / block * block, end, (DIGEST_BLOCK / block).max(1) * block)
            }
            false => (wanted.start, wanted.end, DIGEST_BLOCK),
        };
        for at in (first..end).step_by(stride) {
            let whole = at..end.min(at.saturating_add(stride));
            self.bytes_read += whole.len() as u64 * 4;
            let (from, to) = (whole.start.max(wanted.start), whole.end.min(wanted.end));
            let out = &mut out[from - wanted.start..to - wanted.start];
            if !self.verify {
                h5::read_range(&dataset, whole, out).map_err(cannot)?;
                continue;
            }
            self.scratch.resize(whole.len(), 0.0);
            h5::read_range(&dataset, whole, &mut self.scratch).map_err(cannot)?;
            let expected = &slice.digests.of(kind).expect("a valid manifest has them")[at / block..];
            for (i, (values, expected)) in self.scratch.chunks(block).zip(expected).enumerate() {
                let digest = manifest::hex(xxh3_64(bytemuck::cast_slice(values)));
                if digest != *expected {
                    let start = at + i * block;
                    return Err(format!(
                        "is damaged: elements {start}..{} of the dataset have digest {digest}, the manifest \
                         specifies {expected}",
                        start + values.len()
                    ));
                }
            }
            out.copy_from_slice(&self.scratch[from - at..to - at]);
        }
        Ok(())
    }

    /// What a restore would reject in a file before it reads a value: datasets that are missing, or not as
    /// the manifest implies.
    pub(super) fn unreadable_datasets(&mut self, file_idx: usize) -> Vec<String> {
        let file = match self.file(file_idx) {
            Ok(file) => file,
            Err(why) => {
                return vec![format!(
                    "{} {why}",
                    self.dir.join(&self.manifest.files[file_idx].name).display()
                )];
            }
        };
        let record = &self.manifest.files[file_idx];
        let mut found = Vec::new();
        for slice in record.slices.iter().filter(|slice| slice.numel() > 0) {
            for kind in self.manifest.kinds() {
                let name = format!("{}/{}", kind.group(), slice.param);
                if let Err(why) = h5::slice_dataset(&file, &name, slice.numel()) {
                    found.push(format!("{}: dataset /{name} {why}", self.dir.join(&record.name).display()));
                }
            }
        }
        found
    }

    /// Compares the structure, which the HDF5 library will follow, with its digest, if the manifest has one.
    pub(super) fn check_structure(&self, file_idx: usize) -> std::result::Result<(), String> {
        let record = &self.manifest.files[file_idx];
        let Some(structure) = &record.structure else { return Ok(()) };
        let path = self.dir.join(&record.name);
        let digest = files::open(&path)
            .and_then(|file| write::digest_ranges(&file, &structure.ranges(record.bytes)))
            .map_err(|e| format!("is unreadable: {e}"))?;
        match digest == structure.digest {
            true => Ok(()),
            false => Err("is unreadable: the file's structure does not match its digest".into()),
        }
    }

    /// The file, opened now or before; the one opened longest ago is closed for it.
    fn file(&mut self, file_idx: usize) -> std::result::Result<hdf5::File, String> {
        if let Some((_, file, _)) = self.open.iter().find(|(idx, ..)| *idx == file_idx) {
            return Ok(file.clone());
        }
        let path = self.dir.join(&self.manifest.files[file_idx].name);
        self.check_structure(file_idx)?;
        let held = match self.locking {
            Locking::Off => None,
            _ => {
                let held = files::open(&path).map_err(|e| format!("is unreadable: {e}"))?;
                lock::hold(&held, &path, self.locking, Access::Read).map_err(|e| e.to_string())?;
                Some(held)
            }
        };
        let file = h5::open(&path).map_err(|e| format!("is unreadable: {}", h5::one_line(&e)))?;
        if self.open.len() == MAX_OPEN_FILES {
            self.open.pop_front();
        }
        self.open.push_back((file_idx, file.clone(), held));
        Ok(file)
    }
}
