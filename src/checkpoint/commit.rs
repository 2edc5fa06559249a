//! From a directory being written to a committed checkpoint, and from old checkpoints to free space.
//!
//! \[Note: commit protocol\] A directory's name gives its state, at every instant and after a crash at any
//! instant:
//!
//! | name | state |
//! | --- | --- |
//! | `step_N` | committed: durable before it got this name |
//! | `step_N.partial` | being written, or left by a save that died: never read |
//! | `step_N.replaced` | the committed checkpoint a re-save of step N is replacing; it counts while `step_N` is absent |
//! | `step_N.doomed`, `step_N.doomed_K` | being deleted: never read |
//!
//! A deletion may take time: a file system may retain open files, or refuse. The directory then stays under
//! that name, the next clean-up tries again, and nothing waits for it. Symbolic links, and files of these
//! names, are never touched.
//!
//! One process (rank 0) calls the functions of this file, one call at a time; other ranks only write their
//! file into the partial directory between [`prepare`] and [`commit`].
//!
//! Must not know: HDF5, the contents of rank files.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::find::{self, Suffix};
use super::manifest::Manifest;
use super::{LATEST, MANIFEST_FILE, checkpoints_dir, partial_dir, step_dir, step_dir_name};
use crate::error::{Error, Result};
use crate::files::{self, rename, sync_dir};
use crate::test_hooks::{fault_point, write_point};

/// Creates the empty partial directory of a step and returns its path. Cleans up first ([`clean_up`]), so
/// that interrupted or failed saves do not take up space that this one needs.
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
            "mkdir {}: it exists, and is not a directory of an earlier save; move it away",
            partial.display()
        )),
        _ => Error::io("mkdir", &partial, &e),
    })?;
    sync_dir(&parent)?;
    fault_point("prepare.made", 0, step);
    Ok(partial)
}

/// Commits the partial directory of `manifest.step`, after every rank has finished its file. Returns its
/// final path. On return, the checkpoint survives a power failure; if it fails or the process dies, earlier
/// checkpoints remain committed.
pub fn commit(run_dir: &Path, manifest: &Manifest) -> Result<PathBuf> {
    let step = manifest.step;
    let parent = checkpoints_dir(run_dir);
    let partial = partial_dir(run_dir, step);
    let done = step_dir(run_dir, step);

    // 1. Every file exists, complete.
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
    // 4. A checkpoint of the same step is renamed to a name that still counts.
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
    // 6. Only now is the old one deleted.
    if let Err(why) = doom(&parent, step, &replaced) {
        log::warn!("the replaced checkpoint of step {step} could not be removed yet: {why}");
    }
    fault_point("commit.done", 0, step);
    Ok(done)
}

/// Descriptions of what could not be removed yet; each clean-up tries again.
pub type Left = Vec<String>;

/// Removes the remains of interrupted or failed saves and deletions, and restores the name of a replaced
/// checkpoint if the re-save died. No save may be in progress. Call it after a failed save to free the space.
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

/// Cleans up ([`clean_up`]), then deletes complete checkpoints except the newest `keep_last` (0 retains all)
/// and those whose step is a multiple of `keep_every` (0: none). Returns the steps deleted, and what could
/// not be removed yet. Call it after a commit, with no save in progress. The newest complete checkpoint is
/// never touched; a damaged one is neither counted nor deleted, and a symbolic link to a directory elsewhere
/// is not deleted.
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

/// Points the link `latest` at a step, for users and scripts; without a step, removes it. The program never
/// reads it, so a file system without links is not an error. It changes its target in one rename.
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
        log::warn!("{} could not be updated: {why}", link.display());
    }
    fault_point("latest.moved", 0, step);
}

/// Rejects a save that does not fit into the free space of the file system of `dir`. Quotas and other writers
/// may still fill it before the save ends: this only detects early what would fail late.
///
/// # Errors
/// Too little space is free, or it cannot be determined; the message has both sizes.
pub fn check_free_space(dir: &Path, needed_bytes: u64) -> Result<()> {
    let available_bytes = free_bytes(dir)?;
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    Err(Error::Io(format!(
        "{}: a checkpoint requires {needed_bytes} bytes, {available_bytes} are free on the file system; free \
         some space, lower checkpoint.keep_last, or set run.dir to another file system",
        dir.display()
    )))
}

/// Bytes an unprivileged process may still write to the file system of `dir`.
///
/// # Errors
/// The system does not report it.
pub fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| Error::io("statvfs", dir, &e.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn with_suffix(parent: &Path, step: u64, suffix: Suffix) -> PathBuf {
    parent.join(format!("{}{}", step_dir_name(step), suffix.text()))
}

/// Deletes a step's directory: it is renamed, then its files are removed. An absent directory is not an
/// error.
fn doom(parent: &Path, step: u64, path: &Path) -> Result<()> {
    if !has_directory(path)? {
        return Ok(());
    }
    // An earlier deletion of this step may be incomplete.
    let first = with_suffix(parent, step, Suffix::Doomed);
    let numbered = (2..).map(|k| first.with_extension(format!("doomed_{k}")));
    let free = std::iter::once(first.clone()).chain(numbered).find(|name| !present(name));
    let doomed = free.expect("numbers do not end");
    rename(path, &doomed)?;
    sync_dir(parent)?;
    fault_point("doom.renamed", 0, step);
    // The manifest first: the rest is then not a checkpoint, even under another name.
    fs::remove_file(doomed.join(MANIFEST_FILE)).ok();
    fault_point("doom.half", 0, step);
    remove_tree(&doomed)?;
    fault_point("doom.done", 0, step);
    Ok(())
}

/// Whether this name exists, even as a dangling link.
fn present(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether a directory has this name.
///
/// # Errors
/// The name belongs to a symbolic link or a file.
fn has_directory(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(true),
        Ok(_) => Err(Error::Io(format!("{} is a link or a file, and is left alone", path.display()))),
        Err(_) => Ok(false),
    }
}

/// Removes a directory and its contents. An absent directory is not an error; a link is left alone.
fn remove_tree(path: &Path) -> Result<()> {
    has_directory(path)?;
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, &e)),
        _ => Ok(()),
    }
}
