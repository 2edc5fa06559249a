//! Directories and files of an acceptance: its locks, the last reports of a job that fails, and the files to
//! record for later runs.

use super::acceptance::Acceptance;
use super::facts::AcceptanceFacts;
use super::reports;
use super::verdict::baseline::Baseline;
use super::verdict::golden_losses::{self, GoldenLosses};
use crate::backend::Backend;
use crate::clock;
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::files;
use crate::train::run_lock::{Holder, RunLock};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In the run directory while a rank that ends the job writes the reports.
const WRITING: &str = ".writing";
/// How long another rank that fails at the same time waits for it.
const TIME_TO_WRITE: Duration = Duration::from_secs(2);

/// Files to write beside the reports.
#[derive(Debug, Clone, Default)]
pub struct RecordPaths {
    /// The metrics, as a baseline.
    pub baseline: Option<PathBuf>,
    /// The losses, as golden ones.
    pub golden_losses: Option<PathBuf>,
}

impl RecordPaths {
    /// # Errors
    /// A file cannot be written, or exists and does not contain golden losses: found before anything is
    /// measured.
    pub(super) fn check(&self, run_dir: &Path) -> Result<()> {
        for (flag, path) in [("--record-baseline", &self.baseline), ("--record-answers", &self.golden_losses)]
        {
            let Some(path) = path else { continue };
            let invalid = |why: String| {
                Error::Input(format!("{flag} {}: {why}; name a file that can be written", path.display()))
            };
            if path.is_dir() {
                return Err(invalid("it is a directory".into()));
            }
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // The run directory is created later.
            if parent.exists() || parent != run_dir {
                tempfile::tempfile_in(parent).map_err(|e| invalid(e.to_string()))?;
            }
        }
        match &self.golden_losses {
            Some(path) if path.exists() => golden_losses::read(path).map(drop),
            _ => Ok(()),
        }
    }

    /// Writes the files. Rank 0 only.
    pub(super) fn write<B: Backend>(
        &self,
        acceptance: &Acceptance<'_, B>,
        facts: &AcceptanceFacts,
        losses: Option<&GoldenLosses>,
    ) -> Result<()> {
        if let Some(path) = &self.baseline {
            if facts.verdict.valid {
                let n_ranks = acceptance.cluster.n();
                Baseline::of(&facts.sections, n_ranks, acceptance.deck, B::NAME).write(path)?;
            } else {
                log::warn!("{} is not written: an INVALID run cannot be a baseline", path.display());
            }
        }
        match (&self.golden_losses, losses) {
            (Some(path), Some(losses)) => golden_losses::record(path, losses.clone()),
            (Some(path), None) => {
                log::warn!("{} is not written: the reference run did not end", path.display());
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }
}

/// Creates the directories, empties `work_dir`, and locks out another acceptance for as long as the locks
/// live. Rank 0 only.
pub(super) fn prepare<B: Backend>(acceptance: &Acceptance<'_, B>, work_dir: &Path) -> Result<Vec<RunLock>> {
    let Acceptance { cluster, deck, .. } = acceptance;
    let run_dir = Path::new(&deck.run.dir);
    let me = Holder::this(&cluster.hosts[cluster.rank()]);
    let (mut locks, mut locked) = (Vec::new(), Vec::new());
    for (key, dir) in [("run.dir", run_dir), ("run.checkpoint_dir", Path::new(deck.checkpoint_dir()))] {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
        let dir = dir.canonicalize().map_err(|e| Error::io("look at", dir, &e))?;
        if !locked.contains(&dir) {
            locks.push(RunLock::hold(&dir, Locking::BestEffort, &me).map_err(|error| match error {
                Error::Input(words) => Error::Input(words.replace("run.dir", key)),
                other => other,
            })?);
            locked.push(dir);
        }
    }
    // Left by a job that was killed while it wrote.
    std::fs::remove_file(run_dir.join(WRITING)).ok();
    if work_dir.exists() {
        std::fs::remove_dir_all(work_dir).map_err(|e| Error::io("rm -r", work_dir, &e))?;
    }
    std::fs::create_dir_all(work_dir).map_err(|e| Error::io("mkdir", work_dir, &e))?;
    Ok(locks)
}

/// Writes the reports of a job that ends here. Of ranks that fail at the same time one does: two would write
/// into one file.
pub(super) fn write_last(facts: &AcceptanceFacts, run_dir: &Path) {
    let writing = run_dir.join(WRITING);
    if files::create_new(&writing).is_err() {
        clock::rest(TIME_TO_WRITE);
        return;
    }
    reports::write(facts, run_dir).ok();
    std::fs::remove_file(writing).ok();
}
