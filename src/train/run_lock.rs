//! One job at a time in a run directory: rank 0 holds a lock on `RUN/job.lock` as long as it lives.
//!
//! The kernel lets go of the lock when its holder dies, however it dies, so that a file that is still there says nothing by
//! itself: only the lock counts. The file names the holder for whoever is refused. It is gone after an orderly end.
//!
//! Must not know: MPI, checkpoints.

use crate::config::Locking;
use crate::error::{Error, Result};
use crate::telemetry::time_limit::job_id;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the file under the run directory.
pub const LOCK_FILE: &str = "job.lock";

/// How long a job that comes back under the id of the holder waits for its former self to be gone: a scheduler may put a job
/// back before a file server has noticed that the node it ran on is down.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whose lock it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Node of rank 0.
    pub host: String,
    /// Process id of rank 0.
    pub pid: u32,
    /// The scheduler's id of the job, where there is one.
    pub job: Option<String>,
}

impl Holder {
    /// This process, on `host`.
    pub fn this(host: &str) -> Self {
        let job = job_id(&|name: &str| std::env::var(name).ok());
        Holder { host: host.into(), pid: std::process::id(), job }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)?;
        self.job.as_ref().map_or(Ok(()), |job| write!(f, " (job {job})"))
    }
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    /// None where the deck wants no lock or the file system has none.
    file: Option<File>,
}

impl RunLock {
    /// Locks a run directory that is there for `me`. Errors: another job holds it; or locks are demanded, and the file system
    /// has none.
    pub fn hold(run_dir: &Path, locking: Locking, me: &Holder) -> Result<Self> {
        let path = run_dir.join(LOCK_FILE);
        if locking == Locking::Off {
            return Ok(RunLock { path, file: None });
        }
        let began = Instant::now();
        loop {
            let mut file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|e| Error::io("open", &path, &e))?;
            let outcome = file.try_lock();
            let holder = read_holder(&mut file);
            let mine_again = holder.as_ref().is_some_and(|holder| me.job.is_some() && holder.job == me.job);
            if matches!(outcome, Err(TryLockError::WouldBlock)) && mine_again && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(250));
                continue;
            }
            if !decide(outcome, run_dir, locking, holder.as_ref())? {
                return Ok(RunLock { path, file: None });
            }
            // Its former holder may have removed the file between our opening and locking it.
            if is_the_file_at(&file, &path) {
                sign(&mut file, me).map_err(|e| Error::io("write", &path, &e))?;
                return Ok(RunLock { path, file: Some(file) });
            }
        }
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The name goes before the lock does: nobody can take a lock on a file that is about to vanish.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Whether the lock is held now; false where the deck can live without it.
fn decide(
    outcome: std::result::Result<(), TryLockError>,
    run_dir: &Path,
    locking: Locking,
    holder: Option<&Holder>,
) -> Result<bool> {
    let dir = run_dir.display();
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            let who = holder.map_or("another job".into(), Holder::to_string);
            Err(Error::Input(format!(
                "run.dir = {dir} is in use by {who}: wait for its end, stop it, or set another run.dir"
            )))
        }
        Err(TryLockError::Error(e)) if locking == Locking::BestEffort => {
            let who =
                holder.map_or(String::new(), |holder| format!("; the last one that was, or still is, is {holder}"));
            log::warn!("{dir} cannot be locked ({e}): see to it that no other job runs there{who}");
            Ok(false)
        }
        Err(TryLockError::Error(e)) => Err(Error::Io(format!(
            "{dir} cannot be locked: {e}; on a file system without locks set run.locking=best_effort or off"
        ))),
    }
}

fn is_the_file_at(file: &File, path: &Path) -> bool {
    let inode = |meta: std::io::Result<std::fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
    let locked = inode(file.metadata());
    locked.is_some() && locked == inode(std::fs::metadata(path))
}

fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn sign(file: &mut File, me: &Holder) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    serde_json::to_writer(&mut *file, me)?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32, job: Option<&str>) -> Holder {
        Holder { host: "n1".into(), pid, job: job.map(String::from) }
    }

    #[test]
    fn a_second_holder_is_refused_with_the_first_one_s_name_until_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunLock::hold(dir.path(), Locking::BestEffort, &holder(7, Some("41"))).unwrap();
        let refused = RunLock::hold(dir.path(), Locking::On, &holder(8, Some("42"))).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("process 7 on n1 (job 41)") && text.contains("set another run.dir"), "{text}");
        assert_eq!(refused.exit().code(), 2);
        assert!(RunLock::hold(dir.path(), Locking::Off, &holder(9, None)).unwrap().file.is_none());
        drop(first);
        assert!(!dir.path().join(LOCK_FILE).exists(), "an orderly end leaves no file");
        drop(RunLock::hold(dir.path(), Locking::On, &holder(8, None)).unwrap());
    }

    #[test]
    fn a_file_that_a_dead_job_left_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), r#"{"host":"n1","pid":1,"job":null}"#).unwrap();
        let lock = RunLock::hold(dir.path(), Locking::On, &holder(8, None)).unwrap();
        let mut file = File::open(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(read_holder(&mut file), Some(holder(8, None)));
        drop(lock);
    }

    #[test]
    fn a_requeued_job_waits_for_its_former_self() {
        let dir = tempfile::tempdir().unwrap();
        let former = RunLock::hold(dir.path(), Locking::On, &holder(7, Some("41"))).unwrap();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| RunLock::hold(dir.path(), Locking::On, &holder(8, Some("41"))));
            std::thread::sleep(Duration::from_millis(400));
            assert!(!again.is_finished());
            drop(former);
            assert!(again.join().unwrap().unwrap().file.is_some());
        });
    }

    #[test]
    fn a_file_system_without_locks_is_an_error_only_where_locks_are_demanded() {
        let none = || Err(TryLockError::Error(std::io::Error::from_raw_os_error(libc::ENOLCK)));
        let dir = Path::new("/runs/a");
        assert!(!decide(none(), dir, Locking::BestEffort, Some(&holder(7, None))).unwrap());
        let error = decide(none(), dir, Locking::On, None).unwrap_err();
        assert!(error.to_string().contains("run.locking=best_effort"), "{error}");
    }
}
