//! From a directory being written to a checkpoint that counts, and from old checkpoints to free space.
//!
//! \[Note: commit protocol\] A name tells what a directory is, at every instant and after a crash at any
//! instant:
//!
//! | name | is |
//! | --- | --- |
//! | `step_N` | committed: durable before it got this name |
//! | `step_N.partial` | being written, or left by a save that died: never read |
//! | `step_N.replaced` | the committed checkpoint that a re-save of step N is about to replace; it counts while `step_N` is absent |
//! | `step_N.doomed`, `step_N.doomed_K` | being deleted: never read |
//!
//! What is being deleted may take its time: a file system keeps files that somebody reads, or refuses. It
//! stays under its name, where the next clean-up tries again, and stops nobody. Links, and files of such
//! names, are somebody else's and never touched.
//!
//! One process (rank 0) calls what is in this file, one call at a time; other ranks only write their file
//! into the partial directory between [`prepare`] and [`commit`].
//!
//! Must not know: HDF5, what is in the rank files.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::find::{self, Suffix};
use super::manifest::Manifest;
use super::{LATEST, MANIFEST_FILE, checkpoints_dir, partial_dir, step_dir, step_dir_name};
use crate::error::{Error, Result};
use crate::files::{self, rename, sync_dir};
use crate::test_hooks::{fault_point, write_point};

/// Makes the empty partial directory of a step and returns its path. Cleans up first ([`clean_up`]), so that
/// saves that died or failed do not take the room that this one needs.
pub fn prepare(run_dir: &Path, step: u64) -> Result<PathBuf> {
    let parent = checkpoints_dir(run_dir);
    if !parent.is_dir() {
        fs::create_dir_all(&parent).map_err(|e| Error::io("mkdir", &parent, &e))?;
        sync_dir(run_dir)?;
    }
    clean_up(run_dir)?;
    fault_point("prepare.cleaned", 0, step);
    let partial = partial_dir(run_dir, step);
    fs::create_dir(&partial).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Error::Io(format!(
            "mkdir {}: it is there, and not a directory that an earlier save left; move it away",
            partial.display()
        )),
        _ => Error::io("mkdir", &partial, &e),
    })?;
    sync_dir(&parent)?;
    fault_point("prepare.made", 0, step);
    Ok(partial)
}

/// Makes the partial directory of `manifest.step` a checkpoint, after every rank has finished its file.
/// Returns its final path. When this returns, the checkpoint survives a power cut; when it fails or dies,
/// whatever was committed before still is.
pub fn commit(run_dir: &Path, manifest: &Manifest) -> Result<PathBuf> {
    let step = manifest.step;
    let parent = checkpoints_dir(run_dir);
    let partial = partial_dir(run_dir, step);
    let done = step_dir(run_dir, step);

    // 1. Every file is there, whole.
    find::check_files(&partial, manifest)
        .map_err(|why| Error::Io(format!("step {step} cannot be committed: {why}")))?;
    fault_point("commit.checked", 0, step);
    // 2. The manifest, durable.
    let path = partial.join(MANIFEST_FILE);
    let bytes = manifest.to_bytes()?;
    let mut file = files::create_new(&path).map_err(|e| Error::io("create", &path, &e))?;
    file.write_all(&bytes)
        .and_then(|()| write_point("commit.manifest", 0, step))
        .map_err(|e| Error::Io(format!("writing {} ({} bytes): {e}", path.display(), bytes.len())))?;
    files::sync(&file, &path)?;
    // 3. The names of all files, durable.
    sync_dir(&partial)?;
    fault_point("commit.synced", 0, step);
    // 4. A checkpoint of the same step steps aside under a name that still counts.
    let replaced = with_suffix(&parent, step, Suffix::Replaced);
    if present(&done) {
        doom(&parent, step, &replaced)?;
        rename(&done, &replaced)?;
        sync_dir(&parent)?;
        fault_point("commit.aside", 0, step);
    }
    // 5. The commit.
    rename(&partial, &done)?;
    sync_dir(&parent)?;
    fault_point("commit.renamed", 0, step);
    point_latest(&parent, Some(step));
    // 6. Only now is the old one gone for good.
    if let Err(why) = doom(&parent, step, &replaced) {
        log::warn!("the checkpoint that step {step} replaced could not be cleared away yet: {why}");
    }
    fault_point("commit.done", 0, step);
    Ok(done)
}

/// What could not be removed yet, in words; each clean-up tries again.
pub type Left = Vec<String>;

/// Removes what dead or failed saves and dead deletions left, and gives a replaced checkpoint its name back
/// if the re-save that was to replace it died half way. No save may be under way. After a save that failed,
/// call it to free the room.
///
/// # Errors
/// The directory cannot be listed or synced.
pub fn clean_up(run_dir: &Path) -> Result<Left> {
    let parent = checkpoints_dir(run_dir);
    let mut left = Vec::new();
    if !parent.is_dir() {
        return Ok(left);
    }
    for (step, suffix, path) in find::step_entries(&parent)? {
        let done = parent.join(step_dir_name(step));
        let cleared = match suffix {
            Suffix::Final => Ok(()),
            Suffix::Partial => doom(&parent, step, &path),
            Suffix::Doomed => remove_tree(&path),
            Suffix::Replaced if present(&done) => doom(&parent, step, &path),
            Suffix::Replaced => rename(&path, &done).and_then(|()| sync_dir(&parent)),
        };
        left.extend(cleared.err().map(|why| why.to_string()));
    }
    Ok(left)
}

/// Cleans up ([`clean_up`]), then deletes the complete checkpoints but the newest `keep_last` (0 keeps all)
/// and those whose step is a multiple of `keep_every` (0: none is). Returns the steps deleted, and what could
/// not be removed yet. Call it after a commit, with no save under way. The newest complete checkpoint is
/// never touched; a damaged one is neither counted nor deleted, and one that is a link, to a directory
/// elsewhere, is not deleted.
///
/// # Errors
/// The directory cannot be listed.
pub fn retain(run_dir: &Path, keep_last: usize, keep_every: u64) -> Result<(Vec<u64>, Left)> {
    let mut left = clean_up(run_dir)?;
    let parent = checkpoints_dir(run_dir);
    if keep_last == 0 {
        return Ok((Vec::new(), left));
    }
    let complete = find::complete_checkpoints(run_dir)?;
    let n_old = complete.len().saturating_sub(keep_last);
    let mut deleted = Vec::with_capacity(n_old);
    let kept_for_ever = |step: u64| keep_every > 0 && step.is_multiple_of(keep_every);
    for (step, path) in complete[..n_old].iter().filter(|(step, _)| !kept_for_ever(*step)) {
        match doom(&parent, *step, path) {
            Ok(()) => deleted.push(*step),
            Err(why) => left.push(why.to_string()),
        }
    }
    Ok((deleted, left))
}

/// Points the link `latest` at a step, for people and scripts; without a step, takes it away. Nothing here
/// reads it, so a file system without links is no error. It changes from one target to the next in one
/// rename.
pub(super) fn point_latest(parent: &Path, step: Option<u64>) {
    let link = parent.join(LATEST);
    let Some(step) = step else {
        if link.is_symlink() {
            fs::remove_file(&link).ok();
        }
        return;
    };
    let target = step_dir_name(step);
    if let Err(why) = files::replace_link(&link, Path::new(&target), || fault_point("latest.made", 0, step)) {
        log::warn!("{} still points where it did: {why}", link.display());
    }
    fault_point("latest.moved", 0, step);
}

/// Refuses a save that the file system of `dir` has no room for. Quotas and other writers may still fill it
/// before the save ends: this only says early what would fail late.
///
/// # Errors
/// There is not as much left, or nobody says how much: with the bytes of both.
pub fn check_free_space(dir: &Path, needed_bytes: u64) -> Result<()> {
    let available_bytes = free_bytes(dir)?;
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    Err(Error::Io(format!(
        "{}: a checkpoint needs {needed_bytes} bytes, the file system has {available_bytes} left; free some \
         space, lower checkpoint.keep_last, or set run.dir to another file system",
        dir.display()
    )))
}

/// Bytes an unprivileged process may still write to the file system of `dir`.
///
/// # Errors
/// The system does not say.
pub fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| Error::io("statvfs", dir, &e.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn with_suffix(parent: &Path, step: u64, suffix: Suffix) -> PathBuf {
    parent.join(format!("{}{}", step_dir_name(step), suffix.text()))
}

/// Deletes a directory of a step: first it loses its name for good, then its files go. Absent is fine.
fn doom(parent: &Path, step: u64, path: &Path) -> Result<()> {
    if !has_directory(path)? {
        return Ok(());
    }
    // An earlier deletion of this step may not have come to its end.
    let first = with_suffix(parent, step, Suffix::Doomed);
    let numbered = (2..).map(|k| first.with_extension(format!("doomed_{k}")));
    let free = std::iter::once(first.clone()).chain(numbered).find(|name| !present(name));
    let doomed = free.expect("numbers do not end");
    rename(path, &doomed)?;
    sync_dir(parent)?;
    fault_point("doom.renamed", 0, step);
    // The manifest first: what is left then is not even a checkpoint under another name.
    fs::remove_file(doomed.join(MANIFEST_FILE)).ok();
    fault_point("doom.half", 0, step);
    remove_tree(&doomed)?;
    fault_point("doom.done", 0, step);
    Ok(())
}

/// Something has this name, be it a link to nothing.
fn present(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether a directory has this name.
///
/// # Errors
/// A link has it, or a file: somebody else's.
fn has_directory(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(true),
        Ok(_) => Err(Error::Io(format!("{} is a link or a file, and is left alone", path.display()))),
        Err(_) => Ok(false),
    }
}

/// Removes a directory and what is in it. Absent is fine; a link is left alone.
fn remove_tree(path: &Path) -> Result<()> {
    has_directory(path)?;
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, &e)),
        _ => Ok(()),
    }
}
