//! Verifies that every byte of a checkpoint is as written; otherwise reports the file, dataset and elements.
//!
//! Must not know: MPI. Threads read files in parallel.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::threads;
use rayon::prelude::*;
use serde::Serialize;

use super::{MANIFEST_FILE, Reader, find, write};
use crate::error::{Error, Result};
use crate::files;

/// Result of a full verification.
#[derive(Debug, Clone, Serialize)]
pub struct Verified {
    /// The step directory.
    #[serde(with = "crate::foreign::paths::lossy")]
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// Files checked, the manifest included.
    pub n_files: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Each damage: file, dataset and range as far as known. Empty: everything is intact.
    pub damage: Vec<String>,
}

/// Bytes that [`verify`] will read of the checkpoint that `path` refers to.
///
/// # Errors
/// There is no checkpoint, or its manifest is damaged.
pub fn bytes_to_verify(path: &Path) -> Result<u64> {
    let manifest = find::retrying(path, find::resolve_unchecked, find::read_manifest)?;
    let extra = manifest.extra_files.iter().map(|f| f.bytes);
    Ok(manifest.files.iter().map(|f| f.bytes).chain(extra).sum())
}

/// Reads every byte of the checkpoint that `path` refers to (a step directory, or the newest of a run
/// directory, even if damaged) and compares sizes and digests. `progress` receives the bytes done so far,
/// from any thread.
///
/// # Errors
/// [`Error::Checkpoint`] if there is no checkpoint or its manifest is damaged; damage to other files is in
/// the result.
pub fn verify(path: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Verified> {
    threads::start_shared_pool()?;
    find::retrying(path, find::resolve_unchecked, |dir| verify_step(dir, progress))
}

fn verify_step(dir: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Verified> {
    let dir = dir.to_path_buf();
    let manifest = find::read_manifest(&dir)?;
    let done = AtomicU64::new(0);
    let files: Vec<(&str, u64, &str, Option<usize>)> = manifest
        .files
        .iter()
        .enumerate()
        .map(|(i, f)| (f.name.as_str(), f.bytes, f.digest.as_str(), Some(i)))
        .chain(manifest.extra_files.iter().map(|f| (f.name.as_str(), f.bytes, f.digest.as_str(), None)))
        .collect();
    let mut damage: Vec<String> = files
        .par_iter()
        .flat_map_iter(|(name, bytes, digest, file_idx)| {
            let found = check_file(&dir.join(name), *bytes, digest);
            progress(done.fetch_add(*bytes, Ordering::Relaxed) + bytes);
            match (found, file_idx) {
                (Ok(()), _) => Vec::new(),
                (Err(Fault::Digest(_)), Some(file_idx)) => locate(&dir, *file_idx),
                (Err(fault), _) => vec![fault.into_text()],
            }
        })
        .collect();
    // Intact files; whether they match the manifest's content is checked next.
    if damage.is_empty() {
        let mut reader = Reader::open_incomplete(&dir)?;
        damage.extend((0..manifest.files.len()).flat_map(|file_idx| reader.unreadable_datasets(file_idx)));
    }
    if !damage.is_empty() && find::is_gone(&dir) {
        return Err(Error::Checkpoint(find::gone(&dir)));
    }
    if let Err(Error::Checkpoint(why)) = find::check_name(&dir, &manifest) {
        damage.push(why);
    }
    damage.sort();
    Ok(Verified {
        path: dir,
        step: manifest.step,
        n_files: files.len() + 1,
        bytes: done.into_inner(),
        damage,
    })
}

enum Fault {
    /// Missing, or of the wrong size: nothing in it can be located.
    Plain(String),
    /// The right size but different bytes.
    Digest(String),
}

impl Fault {
    fn into_text(self) -> String {
        match self {
            Fault::Plain(text) | Fault::Digest(text) => text,
        }
    }
}

fn check_file(path: &Path, bytes: u64, digest: &str) -> std::result::Result<(), Fault> {
    find::check_file(path, bytes).map_err(Fault::Plain)?;
    let read = files::open(path).and_then(|mut file| write::digest_file(&mut file));
    let (_, found) = read.map_err(|e| Fault::Plain(format!("{} cannot be read: {e}", path.display())))?;
    if found != digest {
        return Err(Fault::Digest(format!(
            "{} is damaged: its bytes do not match its digest",
            path.display()
        )));
    }
    Ok(())
}

/// Names the damaged datasets and elements of a file; if all values are intact, its structure is damaged.
fn locate(dir: &Path, file_idx: usize) -> Vec<String> {
    // Other files may be missing or truncated; this one is read in any case.
    let mut reader = match Reader::open_incomplete(dir) {
        Ok(reader) => reader,
        Err(e) => return vec![e.to_string()],
    };
    let file = reader.manifest().files[file_idx].clone();
    if reader.check_structure(file_idx).is_err() {
        let path = dir.join(&file.name);
        return vec![format!(
            "{} is damaged in its structure, without which its values cannot be located",
            path.display()
        )];
    }
    let (block, kinds) = (reader.manifest().digest_block, reader.manifest().kinds());
    let mut found = Vec::new();
    let mut out = Vec::new();
    for slice in &file.slices {
        for &kind in &kinds {
            for from in (slice.start..slice.end).step_by(block) {
                let range = from..slice.end.min(from + block);
                out.resize(range.len(), 0.0);
                if let Err(e) = reader.read(&slice.param, kind, range, &mut out) {
                    found.push(e.to_string());
                }
            }
        }
    }
    if found.is_empty() {
        let path = dir.join(&file.name);
        found.push(format!("{} is damaged in its structure (all values are intact)", path.display()));
    }
    found
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verified { path, step, n_files, bytes, damage } = self;
        if damage.is_empty() {
            return write!(f, "{}: step {step}, {n_files} files, {bytes} bytes: intact", path.display());
        }
        write!(f, "{} is damaged ({} faults; {MANIFEST_FILE} is intact):", path.display(), damage.len())?;
        damage.iter().try_for_each(|one| write!(f, "\n  {one}"))
    }
}
