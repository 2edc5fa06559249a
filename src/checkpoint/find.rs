//! Which checkpoints a run directory contains, and which one a user's PATH refers to. Only reads.
//!
//! Checkpoints are found by scanning, never by a pointer that could be stale. A directory was durable before
//! it received its final name, so a damaged one is a fault to report, never silently skipped.
//!
//! Must not know: HDF5, the purpose of the query.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::manifest::{MAX_MANIFEST_BYTES, Manifest};
use super::{MANIFEST_FILE, checkpoints_dir, step_dir_name};
use crate::error::{Error, Result};
use crate::files;

/// The meaning of the suffix of a step directory's name; see \[Note: commit protocol\].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suffix {
    Final,
    Partial,
    Replaced,
    Doomed,
}

impl Suffix {
    pub(super) fn text(self) -> &'static str {
        match self {
            Suffix::Final => "",
            Suffix::Partial => ".partial",
            Suffix::Replaced => ".replaced",
            Suffix::Doomed => ".doomed",
        }
    }

    /// Parses a directory name; None for a foreign name.
    fn parse(name: &str) -> Option<(u64, Suffix)> {
        let numbered = |name: &'_ str| {
            let (doomed, k) = name.rsplit_once('_')?;
            let is_number = !k.is_empty() && k.bytes().all(|b| b.is_ascii_digit());
            (is_number && doomed.ends_with(Suffix::Doomed.text())).then_some(doomed.len())
        };
        let name = numbered(name).map_or(name, |n_bytes| &name[..n_bytes]);
        let (stem, suffix) = [Suffix::Partial, Suffix::Replaced, Suffix::Doomed]
            .into_iter()
            .find_map(|s| name.strip_suffix(s.text()).map(|stem| (stem, s)))
            .unwrap_or((name, Suffix::Final));
        let step: u64 = stem.strip_prefix("step_")?.parse().ok()?;
        (step_dir_name(step) == stem).then_some((step, suffix))
    }
}

/// The step directories of a checkpoints directory under all their names, by step.
pub(super) fn step_entries(parent: &Path) -> Result<Vec<(u64, Suffix, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(parent).map_err(|e| Error::io("list", parent, &e))? {
        let entry = entry.map_err(|e| Error::io("list", parent, &e))?;
        if let Some((step, suffix)) = entry.file_name().to_str().and_then(Suffix::parse) {
            entries.push((step, suffix, entry.path()));
        }
    }
    entries.sort_by_key(|e| (e.0, e.1.text()));
    Ok(entries)
}

/// The directories that count as committed, by step.
pub(super) fn committed(parent: &Path) -> Result<Vec<(u64, PathBuf)>> {
    if !parent.is_dir() {
        return Ok(Vec::new());
    }
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for (step, suffix, path) in step_entries(parent)? {
        match suffix {
            Suffix::Final => found.push((step, path)),
            Suffix::Replaced if found.last().is_none_or(|(s, _)| *s != step) => {
                found.push((step, path));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Fails if a run directory contains checkpoints, complete or damaged: a new one neither overwrites nor joins
/// any.
/// none.
///
/// # Errors
/// [`Error::Input`] that names one of them.
pub fn refuse_used(run_dir: &Path) -> Result<()> {
    match committed(&checkpoints_dir(run_dir))?.pop() {
        None => Ok(()),
        Some((_, dir)) => Err(Error::Input(format!(
            "{} already contains checkpoints ({}); name a run directory without any, because nothing is \
             overwritten",
            run_dir.display(),
            dir.display()
        ))),
    }
}

/// Reads and checks the manifest of a step directory.
///
/// # Errors
/// It is missing, unreadable, damaged, or of an unsupported format.
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST_FILE);
    let damaged = |why: String| Error::Checkpoint(format!("{} {why}", path.display()));
    let bytes = files::read(&path, MAX_MANIFEST_BYTES).map_err(|e| match e.kind() {
        ErrorKind::NotFound => damaged("is missing: this is not a complete checkpoint".to_string()),
        _ => damaged(format!("cannot be read: {e}")),
    })?;
    Manifest::from_bytes(&bytes).map_err(damaged)
}

/// Checks that `dir` contains every file of the manifest with its size.
pub(super) fn check_files(dir: &Path, manifest: &Manifest) -> std::result::Result<(), String> {
    manifest.files.iter().try_for_each(|record| check_file(&dir.join(&record.name), record.bytes))
}

/// Checks that a file exists with its size.
pub(super) fn check_file(path: &Path, bytes: u64) -> std::result::Result<(), String> {
    // Opened, not just queried: a network file system revalidates on open.
    let file = match files::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(format!("{} is missing", path.display())),
        other => other.map_err(|e| format!("{} cannot be opened: {e}", path.display()))?,
    };
    let metadata = file.metadata().map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    if metadata.len() != bytes {
        return Err(format!(
            "{} has {} bytes, the manifest specifies \
                            {bytes}",
            path.display(),
            metadata.len()
        ));
    }
    Ok(())
}

/// Checks that a step directory is complete: a consistent manifest of the step in the directory's name (if
/// any), and every file with its size.
///
/// # Errors
/// A missing or damaged file, or one of another step, with its path.
pub fn check_complete(dir: &Path) -> Result<Manifest> {
    let manifest = read_manifest(dir)?;
    check_name(dir, &manifest)?;
    check_files(dir, &manifest).map_err(Error::Checkpoint)?;
    Ok(manifest)
}

/// Checks that a directory named after a step contains that step.
pub(super) fn check_name(dir: &Path, manifest: &Manifest) -> Result<()> {
    let named = dir.file_name().and_then(|n| n.to_str()).and_then(Suffix::parse);
    if named.is_some_and(|(step, _)| step != manifest.step) {
        return Err(Error::Checkpoint(format!(
            "{} contains step {}, not the step of its name",
            dir.display(),
            manifest.step
        )));
    }
    Ok(())
}

/// The complete checkpoints of a run directory, oldest first. Damaged ones are omitted: this is for lists and
/// clean-up; a resume uses [`newest`] or [`resolve`], which report them.
///
/// # Errors
/// The directory exists but cannot be listed.
pub fn complete_checkpoints(run_dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    complete_in(&checkpoints_dir(run_dir))
}

fn complete_in(parent: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = committed(parent)?;
    found.retain(|(_, dir)| check_complete(dir).is_ok());
    Ok(found)
}

/// The newest checkpoint of a run directory, None if there is none yet. Fails if the newest one is damaged;
/// the message names the damage and the newest usable one.
pub fn newest(run_dir: &Path) -> Result<Option<(u64, PathBuf)>> {
    newest_in(&checkpoints_dir(run_dir))
}

fn newest_in(parent: &Path) -> Result<Option<(u64, PathBuf)>> {
    let mut tries = 0;
    let (step, dir, why) = loop {
        let Some((step, dir)) = committed(parent)?.pop() else { return Ok(None) };
        let Err(why) = check_complete(&dir) else { return Ok(Some((step, dir))) };
        tries += 1;
        // A run that has saved a newer one in the meantime may have deleted this one.
        if tries == MAX_TRIES || !is_gone(&dir) {
            break (step, dir, why);
        }
    };
    let remedy = instead_of(&dir, step);
    Err(Error::Checkpoint(format!("the newest checkpoint, step {step}, cannot be used: {why}; {remedy}")))
}

/// What to do if the step directory `dir` turns out to be damaged.
pub fn instead_of(dir: &Path, step: u64) -> String {
    let older = dir.parent().and_then(|parent| complete_in(parent).ok()).unwrap_or_default();
    match older.into_iter().rfind(|(s, _)| *s < step) {
        Some((_, older)) => format!(
            "to continue from an older one, resume with --resume \
                                     {}",
            older.display()
        ),
        None => "there is no older complete one; to start over, resume with --resume none".to_string(),
    }
}

/// The complete step directory that PATH refers to: a step directory, or the newest of a checkpoints or run
/// directory.
///
/// # Errors
/// There is no checkpoint, or it is incomplete.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    match meant(path)? {
        Meant::Step(dir) => check_complete(&dir).map(|_| dir),
        Meant::Parent(parent) => {
            newest_in(&parent)?.map(|(_, dir)| dir).ok_or_else(|| none_in(path, &parent))
        }
    }
}

/// The same without validation: the newest by name, even if damaged. For code that checks for damage itself.
///
/// # Errors
/// There is no checkpoint.
pub fn resolve_unchecked(path: &Path) -> Result<PathBuf> {
    match meant(path)? {
        Meant::Step(dir) => Ok(dir),
        Meant::Parent(parent) => {
            committed(&parent)?.pop().map(|(_, dir)| dir).ok_or_else(|| none_in(path, &parent))
        }
    }
}

/// Maximum number of deletions of a checkpoint while it is read.
const MAX_TRIES: usize = 20;

/// Calls `work` with the step directory that `path` refers to (see `resolve`). A run may delete it in the
/// meantime; if `path` is the run, `work` is called again with the new one.
///
/// # Errors
/// Those of `work` and `resolve`; a step directory given as such was deleted in the meantime.
pub fn retrying<T>(
    path: &Path,
    resolve: impl Fn(&Path) -> Result<PathBuf>,
    mut work: impl FnMut(&Path) -> Result<T>,
) -> Result<T> {
    for _ in 0..MAX_TRIES {
        let dir = resolve(path)?;
        match work(&dir) {
            Err(_) if is_gone(&dir) && dir != path => {}
            Err(_) if is_gone(&dir) => return Err(Error::Checkpoint(gone(&dir))),
            outcome => return outcome,
        }
    }
    Err(Error::Checkpoint(format!(
        "{}: {MAX_TRIES} checkpoints were deleted while they were read; name a permanent one, or raise \
         checkpoint.keep_last of the run",
        path.display()
    )))
}

/// Whether a step directory that was found before no longer exists.
pub(super) fn is_gone(dir: &Path) -> bool {
    !dir.exists()
}

/// The message for such a directory.
pub(super) fn gone(dir: &Path) -> String {
    format!(
        "{} was deleted while it was read: a run retains only its newest checkpoints (checkpoint.keep_last); \
         name another one, or the run",
        dir.display()
    )
}

/// The kind of a user's PATH.
enum Meant {
    Step(PathBuf),
    /// A checkpoints directory, or its expected path.
    Parent(PathBuf),
}

const WANTED: &str = "expected a run directory, a checkpoints directory or a step directory";

fn none_in(path: &Path, parent: &Path) -> Error {
    let parent = parent.display();
    Error::Checkpoint(format!(
        "{}: no complete checkpoint (looked for {parent}/step_*); {WANTED}",
        path.display()
    ))
}

fn meant(path: &Path) -> Result<Meant> {
    let no = |why: &str| Err(Error::Checkpoint(format!("{}: {why}", path.display())));
    if !path.exists() {
        return no(&format!("no such directory; {WANTED}"));
    }
    if !path.is_dir() {
        return no(&format!("not a directory; {WANTED}"));
    }
    // The name may be hidden behind `.` or a link.
    let real = path.canonicalize().map_err(|e| Error::io("resolve", path, &e))?;
    match real.file_name().and_then(|n| n.to_str()).and_then(Suffix::parse) {
        Some((_, Suffix::Partial)) => return no("an unfinished save, not a checkpoint"),
        Some((_, Suffix::Doomed)) => return no("a checkpoint that is being deleted"),
        // A link such as `latest` may change its target while its checkpoint is read.
        Some(_) if path.is_symlink() => return Ok(Meant::Step(real)),
        Some(_) => return Ok(Meant::Step(path.to_path_buf())),
        None if path.join(MANIFEST_FILE).exists() => return Ok(Meant::Step(path.to_path_buf())),
        None => {}
    }
    let nested = checkpoints_dir(path);
    Ok(Meant::Parent(if nested.is_dir() { nested } else { path.to_path_buf() }))
}
