//! A run's records on disk: each pass reads what is new.
//!
//! Never writes or locks a file. Must not know: what is shown, and how.

use super::tail::Tail;
use crate::files;
use crate::liveness::heartbeat::{FLIGHT_DIR, Heartbeat};
use crate::records::run_records::{EVENTS_FILE, Line};
use crate::records::step_log::STEPS_FILE;
use crate::records::step_reader::{LoggedStep, StepColumns};
use crate::records::summary::SUMMARY_FILE;
use crate::records::{Summary, timing_file};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of ranks whose heartbeats a pass reads: a file system serves more than one viewer.
const SIGNS_PER_LOOK: usize = 128;

/// The newest heartbeat of a rank.
#[derive(Debug, Clone)]
pub struct Sign {
    /// Its content.
    pub said: Heartbeat,
    /// When it was last seen to change; None if it has not changed since it was first read.
    changed: Option<Instant>,
    /// Whether the rank was alive when it was last read.
    pub is_live: bool,
}

/// Everything known of a run.
#[derive(Debug)]
pub struct RunFiles {
    run_dir: PathBuf,
    steps: Tail,
    columns: Option<StepColumns>,
    /// Rows in the order of the file.
    pub rows: Vec<LoggedStep>,
    events: Tail,
    /// Events other than steps.
    pub happened: Vec<Line>,
    /// By rank.
    pub signs: BTreeMap<usize, Sign>,
    /// The rank whose heartbeat is read next.
    next_sign: usize,
    has_unread_signs: bool,
    timing: Whole<timing_file::Record>,
    summary: Whole<Summary>,
    /// Unreadable files, and why: one line per file.
    pub faults: Vec<String>,
}

impl RunFiles {
    /// For a run directory that need not exist yet.
    pub fn new(run_dir: &Path) -> Self {
        RunFiles {
            run_dir: run_dir.into(),
            steps: Tail::new(run_dir.join(STEPS_FILE)),
            columns: None,
            rows: Vec::new(),
            events: Tail::new(run_dir.join(EVENTS_FILE)),
            happened: Vec::new(),
            signs: BTreeMap::new(),
            next_sign: 0,
            has_unread_signs: false,
            timing: Whole::new(run_dir.join("timing.json")),
            summary: Whole::new(run_dir.join(SUMMARY_FILE)),
            faults: Vec::new(),
        }
    }

    /// Whether there are ranks whose heartbeat has never been read.
    pub fn has_unread_signs(&self) -> bool {
        self.has_unread_signs
    }

    /// Their directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// What a scheduler wants to know, if it is there.
    pub fn timing(&self) -> Option<&timing_file::Record> {
        self.timing.value.as_ref()
    }

    /// The newest summary.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.value.as_ref()
    }

    /// Reads what is new; `now_unix` is the time of this machine.
    pub fn look(&mut self, now_unix: f64) {
        self.faults.clear();
        self.read_steps();
        self.read_events();
        self.read_signs(now_unix);
        let faults = [self.timing.look(), self.summary.look()];
        self.faults.extend(faults.into_iter().flatten());
    }

    fn read_steps(&mut self) {
        let mut n_bad = 0;
        loop {
            let news = match self.steps.read() {
                Ok(news) => news,
                Err(error) => return self.faults.push(format!("{STEPS_FILE}: {error}")),
            };
            if news.anew {
                (self.columns, self.rows) = (None, Vec::new());
            }
            for line in lines(&news.text) {
                match &self.columns {
                    None => self.columns = StepColumns::of_header(&line, &[]).ok(),
                    Some(columns) => match columns.row(&line) {
                        Some(row) => self.rows.push(row),
                        None => n_bad += 1,
                    },
                }
            }
            if !news.more {
                break;
            }
        }
        if n_bad > 0 {
            self.faults.push(format!("{STEPS_FILE}: {n_bad} malformed rows"));
        }
    }

    fn read_events(&mut self) {
        loop {
            let news = match self.events.read() {
                Ok(news) => news,
                Err(error) => return self.faults.push(format!("{EVENTS_FILE}: {error}")),
            };
            if news.anew {
                self.happened.clear();
            }
            // Torn by a killed job, or of a later version.
            self.happened.extend(lines(&news.text).filter_map(|line| serde_json::from_str(&line).ok()));
            if !news.more {
                break;
            }
        }
    }

    /// Reads the heartbeats of some ranks, in turn.
    fn read_signs(&mut self, now_unix: f64) {
        let dir = self.run_dir.join(FLIGHT_DIR);
        let mut ranks: Vec<usize> = std::fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                entry.file_name().to_str()?.strip_prefix("rank_")?.strip_suffix(".progress")?.parse().ok()
            })
            .collect();
        ranks.sort_unstable();
        self.signs.retain(|rank, _| ranks.binary_search(rank).is_ok());
        let first = ranks.partition_point(|&rank| rank < self.next_sign);
        ranks.rotate_left(first);
        // Ranks never read come first.
        ranks.sort_by_key(|rank| self.signs.contains_key(rank));
        let n_unread = ranks.iter().filter(|rank| !self.signs.contains_key(rank)).count();
        self.has_unread_signs = n_unread > SIGNS_PER_LOOK;
        for &rank in ranks.iter().take(SIGNS_PER_LOOK) {
            self.next_sign = rank + 1;
            let Some(said) = Heartbeat::read(&dir, rank) else { continue };
            let before = self.signs.get(&rank);
            let changed = match before {
                Some(sign) if (sign.said.pid, sign.said.beat) != (said.pid, said.beat) => {
                    Some(Instant::now())
                }
                other => other.and_then(|sign| sign.changed),
            };
            // Clocks of two nodes may differ: a rank whose file changes is alive, whatever its clock.
            let patience = said.patience_seconds();
            let seen = changed.is_some_and(|at| at.elapsed() < Duration::from_secs_f64(patience));
            let is_live = seen || now_unix - said.updated_unix <= patience;
            self.signs.insert(rank, Sign { said, changed, is_live });
        }
        if ranks.len() <= SIGNS_PER_LOOK {
            self.next_sign = 0;
        }
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = String> + '_ {
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| String::from_utf8_lossy(line).into_owned())
}

/// A JSON file that is replaced atomically.
#[derive(Debug)]
struct Whole<T> {
    path: PathBuf,
    /// Device, inode, time of change in seconds and ns, length.
    seen: Option<(u64, u64, i64, i64, u64)>,
    value: Option<T>,
    fault: Option<String>,
}

impl<T: DeserializeOwned> Whole<T> {
    fn new(path: PathBuf) -> Self {
        Whole { path, seen: None, value: None, fault: None }
    }

    /// Reads the file if it has changed; records an error, if any.
    fn look(&mut self) -> Option<String> {
        let meta = std::fs::metadata(&self.path).ok();
        let seen = meta.map(|m| (m.dev(), m.ino(), m.mtime(), m.mtime_nsec(), m.len()));
        if seen != self.seen {
            self.seen = seen;
            (self.value, self.fault) = (None, None);
            if seen.is_some() {
                let name = self.path.file_name().unwrap_or_default().display();
                match files::read(&self.path, files::MAX_RECORD_BYTES)
                    .map(|text| serde_json::from_slice(&text))
                {
                    Ok(Ok(value)) => self.value = Some(value),
                    Ok(Err(error)) => {
                        self.fault = Some(format!("{name}: not of this version, or damaged: {error}"))
                    }
                    Err(error) => self.fault = Some(format!("{name}: {error}")),
                }
            }
        }
        self.fault.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::unix_now;

    fn sign(dir: &Path, rank: usize, beat: u64, updated_unix: f64) {
        let flight = dir.join(FLIGHT_DIR);
        std::fs::create_dir_all(&flight).unwrap();
        Heartbeat { rank, beat, updated_unix, beat_seconds: 1.0, ..Heartbeat::default() }
            .write(&flight)
            .unwrap();
    }

    #[test]
    fn rows_come_as_they_are_written_and_torn_or_odd_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.csv");
        let mut records = RunFiles::new(dir.path());
        records.look(0.0);
        assert!(records.rows.is_empty() && records.faults.is_empty(), "{:?}", records.faults);
        std::fs::write(&path, "step,loss,val_loss,step_ms_max\n1,5.5,,20\n2,NaN,4.5,30\nthree,1,,1\n4,5")
            .unwrap();
        records.look(0.0);
        let found: Vec<(u64, bool, Option<f64>, f64)> =
            records.rows.iter().map(|r| (r.step, r.loss.is_nan(), r.val_loss, r.step_ms_max)).collect();
        assert_eq!(found, [(1, false, None, 20.0), (2, true, Some(4.5), 30.0)]);
        assert_eq!(records.faults, ["steps.csv: 1 malformed rows"]);
        // A resumed job leaves another file, with fewer rows.
        std::fs::write(dir.path().join("new"), "step,loss,val_loss,step_ms_max\n1,5.5,,20\n").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        records.look(0.0);
        assert_eq!((records.rows.len(), records.faults.len()), (1, 0));
    }

    #[test]
    fn a_rank_lives_by_its_clock_or_by_being_seen_to_change() {
        let dir = tempfile::tempdir().unwrap();
        let now = unix_now();
        sign(dir.path(), 0, 1, now - 1.0);
        sign(dir.path(), 1, 1, now - 60.0);
        let mut records = RunFiles::new(dir.path());
        let live = |records: &RunFiles| records.signs.values().map(|s| s.is_live).collect::<Vec<_>>();
        records.look(now);
        assert_eq!(live(&records), [true, false]);
        // A clock that is a minute behind, of a rank that lives.
        sign(dir.path(), 1, 2, now - 59.0);
        records.look(now);
        assert_eq!(live(&records), [true, true]);
        std::fs::remove_dir_all(dir.path().join(FLIGHT_DIR)).unwrap();
        records.look(now);
        assert!(records.signs.is_empty());
    }

    #[test]
    fn the_signs_of_many_ranks_are_read_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let n_ranks = 3 * SIGNS_PER_LOOK + 5;
        (0..n_ranks).for_each(|rank| sign(dir.path(), rank, 1, 0.0));
        let mut records = RunFiles::new(dir.path());
        let mut n_seen = Vec::new();
        for _ in 0..4 {
            records.look(0.0);
            n_seen.push(records.signs.len());
        }
        assert_eq!(n_seen, [SIGNS_PER_LOOK, 2 * SIGNS_PER_LOOK, 3 * SIGNS_PER_LOOK, n_ranks]);
        (0..n_ranks).for_each(|rank| sign(dir.path(), rank, 2, 0.0));
        (0..4).for_each(|_| records.look(0.0));
        assert!(records.signs.values().all(|sign| sign.said.beat == 2), "each is read again");
    }

    #[test]
    fn a_damaged_file_is_a_fault_until_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timing.json");
        std::fs::write(&path, "{\"step\": 12").unwrap();
        let mut records = RunFiles::new(dir.path());
        for _ in 0..2 {
            records.look(0.0);
            assert_eq!(records.faults.len(), 1);
            assert!(
                records.faults[0].starts_with("timing.json: not of this version"),
                "{:?}",
                records.faults
            );
        }
        std::fs::write(&path, "{\"step\": 12}\n").unwrap();
        records.look(0.0);
        assert_eq!((records.faults.len(), records.timing().unwrap().step), (0, 12));
    }
}
