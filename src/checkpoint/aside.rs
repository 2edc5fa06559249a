//! Makes room in a run directory without losing anything: files of an earlier run are moved, never deleted.

use super::commit::point_latest;
use super::find::{self, Suffix};
use super::{CHECKPOINTS_DIR, checkpoints_dir};
use crate::error::{Error, Result};
use crate::files::rename;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Files of a run other than its checkpoints.
const LOGS: [&str; 7] =
    ["steps.csv", "steps.jsonl", "summary.json", "timing.json", "trace.json", "deck.toml", "events.jsonl"];

/// Moves checkpoints later than step `after` (None: all of them, and the logs) to `RUN/previous_K`, K the
/// first free number. Returns that directory, or None if there was nothing to move.
pub fn set_aside(run_dir: &Path, after: Option<u64>) -> Result<Option<PathBuf>> {
    let checkpoints = checkpoints_dir(run_dir);
    let mut moves: Vec<PathBuf> = Vec::new();
    if checkpoints.is_dir() {
        // The next save removes unfinished saves and deletions.
        let counts = |suffix: &Suffix| matches!(suffix, Suffix::Final | Suffix::Replaced);
        let later = |step: u64| after.is_none_or(|after| step > after);
        let entries = find::step_entries(&checkpoints)?.into_iter();
        moves.extend(
            entries.filter(|(step, suffix, _)| counts(suffix) && later(*step)).map(|(_, _, path)| path),
        );
    }
    let n_checkpoints = moves.len();
    if after.is_none() {
        moves.extend(LOGS.iter().map(|name| run_dir.join(name)).filter(|path| path.exists()));
    }
    if moves.is_empty() {
        return Ok(None);
    }
    let place = new_place(run_dir)?;
    let kept = place.join(CHECKPOINTS_DIR);
    fs::create_dir_all(&kept).map_err(|e| Error::io("mkdir", &kept, &e))?;
    // Newest first: if this is interrupted, the rest is still the beginning of a run.
    for (i, from) in moves.iter().enumerate().rev() {
        let name = from.file_name().expect("entries of a directory have names");
        let to = if i < n_checkpoints { kept.join(name) } else { place.join(name) };
        rename(from, &to)?;
    }
    // The link is reset to a remaining checkpoint.
    if n_checkpoints > 0 {
        point_latest(&checkpoints, find::complete_checkpoints(run_dir)?.pop().map(|(step, _)| step));
    }
    Ok(Some(place))
}

/// Makes `previous_K`, K the first free number.
fn new_place(run_dir: &Path) -> Result<PathBuf> {
    for k in 1.. {
        let place = run_dir.join(format!("previous_{k}"));
        match fs::create_dir(&place) {
            Ok(()) => return Ok(place),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("mkdir", &place, &e)),
        }
    }
    unreachable!("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_checkpoints_and_logs_are_moved_and_nothing_is_lost() {
        let run = tempfile::tempdir().unwrap();
        let dirs =
            [100, 200, 300].map(|step| checkpoints_dir(run.path()).join(super::super::step_dir_name(step)));
        for dir in &dirs {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(run.path().join("steps.csv"), "rows").unwrap();
        let place = set_aside(run.path(), Some(100)).unwrap().unwrap();
        assert!(dirs[0].is_dir() && !dirs[1].exists() && place.join("checkpoints/step_00000300").is_dir());
        assert!(run.path().join("steps.csv").exists(), "a resume cuts the log itself");
        assert_eq!(set_aside(run.path(), Some(100)).unwrap(), None);
        let second = set_aside(run.path(), None).unwrap().unwrap();
        assert_ne!(second, place);
        assert_eq!(fs::read_to_string(second.join("steps.csv")).unwrap(), "rows");
    }
}
