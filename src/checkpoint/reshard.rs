//! Converts a checkpoint to another rank count, without a job: streamed through one buffer, committed like
//! any save.
//!
//! Not required before a restore, which reads any rank count; but a file system may prefer fewer, larger
//! files, and a restore is fastest from as many files as ranks. The result is, byte for byte, what a save by
//! that many ranks would have written.
//!
//! Must not know: MPI, the command line.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::manifest::FileRecord;
use super::write::{Target, Values, write_file};
use super::{Kind, Reader, check_free_space, clean_up, estimate_bytes, find, master, prepare, step_dir};
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::plan::Slice;
use crate::plan::slice::owned_slices;

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Resharded {
    /// The checkpoint read.
    #[serde(with = "crate::foreign::paths::lossy")]
    pub from: PathBuf,
    /// Its rank count.
    pub from_ranks: usize,
    /// The new step directory.
    #[serde(with = "crate::foreign::paths::lossy")]
    pub to: PathBuf,
    /// Its rank count.
    pub to_ranks: usize,
    /// Its step.
    pub step: u64,
    /// Bytes of the new files with slices.
    pub bytes: u64,
}

/// Writes the checkpoint that `source` means (a step directory, or the newest of a run directory) into the
/// run directory `run_dir`, cut for `world_size` ranks. `progress` is told the values' bytes done so far.
/// Every digest is checked on the way.
///
/// # Errors
/// [`Error::Checkpoint`] if the source is damaged; [`Error::Input`] if `run_dir` already contains a
/// checkpoint; [`Error::Io`] if it cannot be written. `run_dir` then contains no checkpoint.
pub fn reshard(
    source: &Path,
    run_dir: &Path,
    world_size: usize,
    progress: impl Fn(u64),
) -> Result<Resharded> {
    find::retrying(source, find::resolve, |dir| reshard_step(dir, run_dir, world_size, &progress))
}

fn reshard_step(
    source: &Path,
    run_dir: &Path,
    world_size: usize,
    progress: &dyn Fn(u64),
) -> Result<Resharded> {
    let mut reader = Reader::open(source)?;
    let mut manifest = reader.manifest().clone();
    find::refuse_used(run_dir)?;
    std::fs::create_dir_all(run_dir).map_err(|e| Error::io("mkdir", run_dir, &e))?;
    let partial = prepare(run_dir, manifest.step)?;

    let kinds = manifest.kinds();
    let params = || manifest.params.iter().map(|p| (p.name.as_str(), p.global_shape.as_slice()));
    let slices = |rank| owned_slices(params(), world_size, rank);
    let write_all = |reader: &mut Reader| -> Result<Vec<FileRecord>> {
        check_free_space(
            &partial,
            (0..world_size).map(|rank| estimate_bytes(&slices(rank), kinds.len())).sum(),
        )?;
        let mut stream = Stream { reader, slices: Vec::new(), buffer: Vec::new(), done: 0, progress };
        (0..world_size)
            .map(|rank| {
                let slices = slices(rank);
                stream.slices.clone_from(&slices);
                let (dir, step, kinds) = (partial.as_path(), manifest.step, kinds.as_slice());
                let target = Target { dir, rank, world_size, step, kinds, locking: Locking::Off };
                write_file(&target, &slices, &mut stream)
            })
            .collect()
    };
    let from_ranks = manifest.world_size;
    let committed = write_all(&mut reader).and_then(|files| {
        manifest.set_files(world_size, files);
        master::finish(run_dir, manifest.clone())
    });
    let to = match committed {
        Ok(to) => to,
        Err(error) => {
            clean_up(run_dir).ok();
            return Err(error);
        }
    };
    assert_eq!(to, step_dir(run_dir, manifest.step), "where a commit goes");
    Ok(Resharded {
        from: reader.dir().to_path_buf(),
        from_ranks,
        to,
        to_ranks: world_size,
        step: manifest.step,
        bytes: manifest.files.iter().map(|f| f.bytes).sum(),
    })
}

/// Blocks of the new files from ranges of the old ones, through one buffer of a block.
struct Stream<'a> {
    reader: &'a mut Reader,
    /// Those of the file being written.
    slices: Vec<Slice<'a>>,
    buffer: Vec<f32>,
    done: u64,
    progress: &'a dyn Fn(u64),
}

impl Values for Stream<'_> {
    fn block(&mut self, slice_idx: usize, kind: Kind, range: Range<usize>) -> Result<&[f32]> {
        let Slice { param, start, .. } = self.slices[slice_idx];
        self.buffer.resize(range.len(), 0.0);
        self.reader.read(param, kind, start + range.start..start + range.end, &mut self.buffer)?;
        self.done += 4 * range.len() as u64;
        (self.progress)(self.done);
        Ok(&self.buffer)
    }
}

impl fmt::Display for Resharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resharded { from, from_ranks, to, to_ranks, step, bytes } = self;
        let (from, to) = (from.display(), to.display());
        write!(f, "step {step}: {from} ({from_ranks} ranks) -> {to} ({to_ranks} ranks, {bytes} bytes)")
    }
}
