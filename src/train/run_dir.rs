//! The run directory of a job: checked, locked and created by rank 0, and cleared of what an earlier run left
//! beyond the step to start from.
//!
//! Must not know: what a checkpoint holds, what a run writes.

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
    /// Locks the directory, where it exists already, for this process on `host`. Collective.
    ///
    /// # Errors
    /// It cannot be written, or another job has it.
    pub fn lock<C: Comm>(comm: &C, run: &RunSection, host: &str) -> Result<Self> {
        let (path, holder) = (PathBuf::from(&run.dir), Holder::this(host));
        let mut dir = RunDir { path, locking: run.locking, holder, lock: None };
        decided_by_rank_0(comm, || {
            check(&dir.path)?;
            if dir.path.exists() { dir.hold() } else { Ok(()) }
        })?;
        Ok(dir)
    }

    /// Creates the directory and locks it, where that has not been done. Collective.
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

/// Whether the run directory can be written, before anything that takes time. Creates nothing that stays.
///
/// # Errors
/// It cannot be written, or something that is not a directory stands in its way.
pub fn check(run_dir: &Path) -> Result<()> {
    let checkpoints = checkpoint::checkpoints_dir(run_dir);
    let wanted = "set run.dir to a directory, there already or not, that can be written";
    // The first of checkpoints, run directory, its parent, ... that is there.
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

/// Removes saves that died, and moves what an earlier run left beyond the step to start from to
/// `RUN/previous_K`, so that its checkpoints are never taken for this run's. No complete checkpoint is
/// deleted. Returns the step that the records in the run directory go on from: none where the checkpoint is
/// another run's, or there is none.
pub fn make_room(run_dir: &Path, checkpoint: Option<&RecordedStep>) -> Result<Option<u64>> {
    let resumed = checkpoint.filter(|found| is_of_run(run_dir, &found.path)).map(|found| found.step);
    for why in checkpoint::clean_up(run_dir)? {
        log::warn!("what an earlier save left cannot be removed yet; the next save tries again: {why}");
    }
    if let Some(place) = checkpoint::set_aside(run_dir, resumed)? {
        log::warn!(
            "what an earlier run left beyond step {} is now in {}",
            resumed.unwrap_or(0),
            place.display()
        );
    }
    Ok(resumed)
}

/// Whether a step directory is one of the run directory's own checkpoints, by whatever path it was named.
fn is_of_run(run_dir: &Path, step_dir: &Path) -> bool {
    let own = checkpoint::checkpoints_dir(run_dir).canonicalize();
    own.is_ok_and(|own| step_dir.canonicalize().is_ok_and(|dir| dir.parent() == Some(own.as_path())))
}
