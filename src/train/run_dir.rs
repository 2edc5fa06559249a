//! The run directory of a job: checked, locked and created by rank 0, with the files of an earlier run beyond
//! the starting step archived.
//!
//! Must not know: the contents of a checkpoint, what a run writes.

use super::run_lock::{Holder, RunLock};
use super::state::RecordedStep;
use crate::backend::Comm;
use crate::backend::agree::decided_by_rank_0;
use crate::checkpoint;
use crate::config::{Locking, RunSection};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The run directory, locked against other jobs until it is dropped.
pub struct RunDir {
    path: PathBuf,
    locking: Locking,
    holder: Holder,
    /// Rank 0's.
    lock: Option<RunLock>,
}

impl RunDir {
    /// Locks the directory, if it exists, for this process on `host`. Collective.
    ///
    /// # Errors
    /// It is not writable, or another job holds it.
    pub fn lock<C: Comm>(comm: &C, run: &RunSection, host: &str) -> Result<Self> {
        let (path, holder) = (PathBuf::from(&run.dir), Holder::this(host));
        let mut dir = RunDir { path, locking: run.locking, holder, lock: None };
        decided_by_rank_0(comm, || {
            check(&dir.path)?;
            if dir.path.exists() { dir.hold() } else { Ok(()) }
        })?;
        Ok(dir)
    }

    /// Creates and locks the directory, unless already locked. Collective.
    ///
    /// # Errors
    /// As of [`RunDir::lock`].
    pub fn create<C: Comm>(&mut self, comm: &C) -> Result<()> {
        decided_by_rank_0(comm, || {
            std::fs::create_dir_all(&self.path).map_err(|e| Error::io("mkdir", &self.path, &e))?;
            if self.lock.is_none() { self.hold() } else { Ok(()) }
        })
    }

    fn hold(&mut self) -> Result<()> {
        self.lock = Some(RunLock::hold(&self.path, self.locking, &self.holder)?);
        Ok(())
    }
}

/// Whether the run directory is writable, before anything slow. Leaves nothing behind.
///
/// # Errors
/// It is not writable, or a file that is not a directory is in its place.
pub fn check(run_dir: &Path) -> Result<()> {
    let checkpoints = checkpoint::checkpoints_dir(run_dir);
    let wanted = "set run.dir to a writable directory, existing or new";
    // The first of checkpoints, run directory, its parent, ... that exists.
    let there = checkpoints
        .ancestors()
        .find(|p| std::fs::symlink_metadata(p).is_ok())
        .filter(|p| *p != Path::new(""));
    let there = there.unwrap_or(Path::new("."));
    let at = format!("run.dir = {}", run_dir.display());
    if !there.is_dir() {
        return Err(Error::Input(format!("{at}: {} is not a directory; {wanted}", there.display())));
    }
    match tempfile::tempfile_in(there) {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::Io(format!("{at}: cannot write in {}: {e}; {wanted}", there.display()))),
    }
}

/// Removes interrupted saves, and moves the files of an earlier run beyond the starting step to
/// `RUN/previous_K`, so that its checkpoints are never mistaken for this run's. No complete checkpoint is
/// deleted. Returns the step at which the records in the run directory resume: none if there is no
/// checkpoint, or it is another run's.
pub fn make_room(run_dir: &Path, checkpoint: Option<&RecordedStep>) -> Result<Option<u64>> {
    let resumed = checkpoint.filter(|found| is_of_run(run_dir, &found.path)).map(|found| found.step);
    for why in checkpoint::clean_up(run_dir)? {
        log::warn!(
            "the files of an interrupted save cannot be removed yet; the next save will try again: \
                    {why}"
        );
    }
    if let Some(place) = checkpoint::set_aside(run_dir, resumed)? {
        log::warn!(
            "files of an earlier run beyond step {} were moved to {}",
            resumed.unwrap_or(0),
            place.display()
        );
    }
    Ok(resumed)
}

/// Whether a step directory is one of the run directory's own checkpoints, under any path.
fn is_of_run(run_dir: &Path, step_dir: &Path) -> bool {
    let own = checkpoint::checkpoints_dir(run_dir).canonicalize();
    own.is_ok_and(|own| step_dir.canonicalize().is_ok_and(|dir| dir.parent() == Some(own.as_path())))
}
