//! One job per run directory: rank 0 holds a lock on `RUN/job.lock` for its lifetime.
//!
//! The kernel releases the lock when its holder ends, however it ends, so the existence of the file means
//! nothing: only the lock counts. The file names the holder for the error message of a rejected job. It is
//! removed on an orderly exit.
//!
//! Must not know: MPI, checkpoints.

use crate::batch::job_clock::job_id;
use crate::batch::signals;
use crate::batch::signals::Stop;
use crate::config::Locking;
use crate::error::{Error, Result};
use crate::files;
use crate::liveness::start_watch;
use crate::{clock, environment};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file under the run directory.
pub const LOCK_FILE: &str = "job.lock";

/// How long a job that is restarted under the holder's job id waits for its predecessor to end: a scheduler
/// may requeue a job before a file server has noticed that its node is down.
const PATIENCE: Duration = Duration::from_secs(120);

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Node of rank 0.
    pub host: String,
    /// Process id of rank 0.
    pub pid: u32,
    /// The scheduler's job id, if any.
    pub job: Option<String>,
}

impl Holder {
    /// This process, on `host`.
    pub fn this(host: &str) -> Self {
        let job = job_id(&environment::variable);
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
    /// None if the deck disables locking or the file system does not support it.
    file: Option<File>,
}

impl RunLock {
    /// Locks an existing run directory for `me`. Errors: another job holds it; or locks are required, and the
    /// file system does not support them.
    pub fn hold(run_dir: &Path, locking: Locking, me: &Holder) -> Result<Self> {
        let path = run_dir.join(LOCK_FILE);
        if locking == Locking::Off {
            return Ok(RunLock { path, file: None });
        }
        let mut said = false;
        let mut try_once = |may_wait: bool| {
            let mut file = open(&path)?;
            let outcome = file.try_lock();
            let holder = read_holder(&mut file);
            let mine_again = holder.as_ref().is_some_and(|holder| me.job.is_some() && holder.job == me.job);
            if let (true, Err(TryLockError::WouldBlock), Some(holder)) =
                (mine_again && may_wait, &outcome, &holder)
            {
                wait_a_moment(run_dir, holder, std::mem::replace(&mut said, true))?;
                return Ok(None);
            }
            let holding = if outcome.is_err() { holders_of(&file) } else { Vec::new() };
            if !decide(outcome, run_dir, locking, &Others { me, named: holder.as_ref(), holding: &holding })?
            {
                return Ok(Some(RunLock { path: path.clone(), file: None }));
            }
            // Its former holder may have removed the file between our opening and locking it.
            if !is_the_file_at(&file, &path) {
                return Ok(None);
            }
            sign(&mut file, me).map_err(|e| Error::io("write", &path, &e))?;
            Ok(Some(RunLock { path: path.clone(), file: Some(file) }))
        };
        match clock::wait_for(PATIENCE, Duration::from_millis(100), || try_once(true))? {
            Some(lock) => Ok(lock),
            None => match try_once(false)? {
                Some(lock) => Ok(lock),
                None => {
                    Err(Error::Io(format!("{} was repeatedly replaced while being locked", path.display())))
                }
            },
        }
    }
}

/// The lock file, accessible to its owner only: anyone who can open a file can lock it. A symbolic link in
/// its place is not followed.
fn open(path: &Path) -> Result<File> {
    let file = files::open_own(path, 0o600).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Error::Input(format!("{}: {e}: remove it", path.display())),
        _ => Error::io("open", path, &e),
    })?;
    let mode = file.metadata().map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    if mode != 0o600 {
        // Earlier versions made it readable for others. The mode of another user's file is left alone.
        file.set_permissions(std::fs::Permissions::from_mode(0o600)).ok();
    }
    Ok(file)
}

/// The same job holds the lock, possibly a predecessor that is about to end. Logged once.
///
/// # Errors
/// A signal asks for a stop.
fn wait_a_moment(run_dir: &Path, holder: &Holder, said: bool) -> Result<()> {
    let dir = run_dir.display();
    if !said {
        log::warn!(
            "run.dir = {dir} is in use by {holder}, an earlier process of this job: waiting up to {} s for \
             it to end",
            PATIENCE.as_secs()
        );
    }
    start_watch::tick();
    match Stop::from_code(signals::stop_code()) {
        Some(stop) => Err(Error::Stopped(format!(
            "stopped early: {stop} while this job waited for {holder} to release run.dir = {dir}; nothing \
             was started, run the same command again"
        ))),
        None => Ok(()),
    }
}

/// What is known of the holder of a lock.
struct Others<'a> {
    me: &'a Holder,
    /// The holder named in the file.
    named: Option<&'a Holder>,
    /// The holder according to the system's list of locks.
    holding: &'a [Process],
}

/// A process of this node that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Its program and user, as text.
    is: String,
}

/// The processes of this node that hold a lock on the file.
fn holders_of(file: &File) -> Vec<Process> {
    let Ok(meta) = file.metadata() else { return Vec::new() };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let process = |pid: u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let user =
            std::fs::metadata(format!("/proc/{pid}")).map_or("?".into(), |meta| meta.uid().to_string());
        Process { pid, is: format!("`{}` of user {user}", name.trim().escape_debug()) }
    };
    pids_in(&locks, libc::major(meta.dev()), libc::minor(meta.dev()), meta.ino())
        .into_iter()
        .map(process)
        .collect()
}

/// Process ids in `/proc/locks` that hold, not wait for, a lock on a file: `1: FLOCK  ADVISORY  WRITE 42
/// 08:01:77 0 EOF`.
fn pids_in(locks: &str, major: u32, minor: u32, inode: u64) -> Vec<u32> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    let held = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let held = held.filter(|words| words.get(1) != Some(&"->") && words.get(5) == Some(&wanted.as_str()));
    held.filter_map(|words| words.get(4)?.parse().ok()).collect()
}

impl Drop for RunLock {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The name is removed before the lock is released: no process can lock a file that is about to
            // vanish.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Whether the lock is held now; false if the deck does not require it.
fn decide(
    outcome: std::result::Result<(), TryLockError>,
    run_dir: &Path,
    locking: Locking,
    others: &Others<'_>,
) -> Result<bool> {
    let dir = run_dir.display();
    let holder = others.named;
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            let other =
                others.holding.iter().find(|process| holder.is_none_or(|holder| process.pid != holder.pid));
            let is_gone = |holder: &&Holder| {
                holder.host == others.me.host
                    && environment::state_of(holder.pid).is_none_or(|state| state == 'Z')
            };
            if let Some(gone) = holder.filter(is_gone) {
                let who = match other {
                    Some(other) => format!("process {} ({})", other.pid, other.is),
                    None => "another process, not visible on this node,".into(),
                };
                return Err(Error::Input(format!(
                    "run.dir = {dir}: {gone} has ended, but {who} holds a lock on its {LOCK_FILE}: end that \
                     process, or remove the file"
                )));
            }
            let who = match (holder, other) {
                (Some(holder), _) => holder.to_string(),
                (None, Some(other)) => format!("process {} ({}) on {}", other.pid, other.is, others.me.host),
                (None, None) => "another job".into(),
            };
            Err(Error::Input(format!(
                "run.dir = {dir} is in use by {who}: wait for it to end, stop it, or set a different run.dir"
            )))
        }
        Err(TryLockError::Error(e)) if locking == Locking::BestEffort => {
            let who = holder.map_or(String::new(), |holder| format!("; the last known holder is {holder}"));
            log::warn!("{dir} cannot be locked ({e}): make sure that no other job runs there{who}");
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
        // On another node, which cannot see that this test has no process 7.
        let elsewhere = Holder { host: "n2".into(), ..holder(8, Some("42")) };
        let refused = RunLock::hold(dir.path(), Locking::On, &elsewhere).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("process 7 on n1 (job 41)") && text.contains("set a different run.dir"),
            "{text}"
        );
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
        let (me, seven) = (holder(8, None), holder(7, None));
        let others = |named| Others { me: &me, named, holding: &[] };
        let none = || Err(TryLockError::Error(std::io::Error::from_raw_os_error(libc::ENOLCK)));
        let dir = Path::new("/runs/a");
        assert!(!decide(none(), dir, Locking::BestEffort, &others(Some(&seven))).unwrap());
        let error = decide(none(), dir, Locking::On, &others(None)).unwrap_err();
        assert!(error.to_string().contains("run.locking=best_effort"), "{error}");
    }

    #[test]
    fn the_lock_file_is_its_owner_s_alone_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let lock = RunLock::hold(dir.path(), Locking::On, &holder(8, None)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(lock);
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        let error = RunLock::hold(dir.path(), Locking::On, &holder(9, None)).unwrap_err();
        assert!(
            error.to_string().contains("symbolic link") && !dir.path().join("elsewhere").exists(),
            "{error}"
        );
    }

    /// Whoever could read the file of an earlier version can hold a lock on it after its job was killed.
    #[test]
    fn a_lock_that_a_stranger_holds_is_said_to_be_the_stranger_s() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        // No process has this number.
        let dead = holder(u32::MAX, None);
        std::fs::write(&path, serde_json::to_string(&dead).unwrap()).unwrap();
        let stranger = File::open(&path).unwrap();
        stranger.lock_shared().unwrap();
        let text = RunLock::hold(dir.path(), Locking::On, &holder(8, None)).unwrap_err().to_string();
        let own = format!("process {} (", std::process::id());
        for part in
            ["process 4294967295 on n1 has ended", &own, "holds a lock on its job.lock", "remove the file"]
        {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn the_system_s_list_of_locks_says_who_holds_a_file() {
        let locks = "1: POSIX  ADVISORY  READ 5 fd:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 42 08:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 08:01:77 0 EOF\n";
        assert_eq!(pids_in(locks, 8, 1, 77), [42]);
        assert_eq!(pids_in(locks, 0xfd, 0, 77), [5]);
        assert!(pids_in(locks, 8, 1, 7).is_empty() && pids_in("", 8, 1, 77).is_empty());
    }
}
