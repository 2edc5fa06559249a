//! `RUN/events.jsonl`: what happens to a run besides its steps, one line each: a start, a restore, a skipped step, a straggler,
//! the end.
//!
//! Rank 0 appends; a resume goes on behind what is there, so that the file tells the history of all jobs of a run. Must not know:
//! how the numbers came about.

use super::stragglers::Straggler;
use super::time_limit::unix_now;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Name of the file under the run directory.
pub const EVENTS_FILE: &str = "events.jsonl";

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process begins to train.
    Started {
        /// Ranks.
        world_size: u64,
        /// Steps of the whole run.
        total_steps: u64,
        /// The checkpoint it goes on from, if one.
        restored_from: Option<String>,
        /// Model state that the plan keeps on one rank between steps.
        resident_bytes: u64,
        /// Most bytes that the plan holds on one rank.
        peak_bytes: u64,
    },
    /// An attempt was not finite: weights and step stand.
    Skipped {
        /// Attempts of the run so far, skipped ones included.
        attempt: u64,
        /// Not a number, or infinite, is null.
        loss: Option<f64>,
        /// The same.
        grad_norm: Option<f64>,
        /// Attempts skipped one after another, this one included.
        in_a_row: u64,
    },
    /// A rank held the others up.
    Straggler(Straggler),
    /// The process ends.
    Ended {
        /// Its exit code.
        exit_code: i32,
        /// Why, in words.
        reason: String,
    },
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub unix: f64,
    /// The step that was reached.
    pub at_step: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// The writer; rank 0 has one. A run does not end for want of it: the first fault is a warning and the end of the file.
#[derive(Debug, Default)]
pub struct EventLog {
    open: Option<(PathBuf, File)>,
}

impl EventLog {
    /// Opens the file of `run_dir`, to go on behind what is there where the run is `resumed`.
    pub fn open(run_dir: &Path, resumed: bool) -> Self {
        let path = run_dir.join(EVENTS_FILE);
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| if resumed { end_torn_line(&mut file) } else { file.set_len(0) }.map(|()| file));
        match opened {
            Ok(file) => EventLog { open: Some((path, file)) },
            Err(error) => {
                log::warn!("{}: {error}; what happens to this run is in its log alone", path.display());
                EventLog::default()
            }
        }
    }

    /// Appends what has just happened.
    pub fn add(&mut self, at_step: u64, event: Event) {
        let Some((path, file)) = &mut self.open else { return };
        let line = Line { unix: unix_now(), at_step, event };
        let text = serde_json::to_string(&line).expect("plain data") + "\n";
        if let Err(error) = file.write_all(text.as_bytes()) {
            log::warn!("{}: {error}; what happens from now on is in the run's log alone", path.display());
            self.open = None;
        }
    }
}

/// A killed job may have torn its last line; the next one begins on a line of its own.
fn end_torn_line(file: &mut File) -> std::io::Result<()> {
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::stragglers::Class;

    fn lines(dir: &Path) -> Vec<Option<Line>> {
        let text = std::fs::read_to_string(dir.join(EVENTS_FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[test]
    fn a_resume_goes_on_behind_a_torn_line_and_a_fresh_run_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let skipped = |attempt| Event::Skipped { attempt, loss: None, grad_norm: Some(1.5), in_a_row: 1 };
        let straggler = Straggler {
            class: Class::OneOff,
            step: 7,
            rank: 2,
            host: "n2".into(),
            n_slow: 1,
            n_steps: 1,
            compute_ms: 900.0,
            wait_ms: 0.0,
            others_compute_ms: 50.0,
            others_wait_ms: 850.0,
        };
        let mut log = EventLog::open(dir.path(), false);
        log.add(3, skipped(4));
        log.add(7, Event::Straggler(straggler.clone()));
        drop(log);
        let path = dir.path().join(EVENTS_FILE);
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"{\"unix\": 17").unwrap();
        EventLog::open(dir.path(), true).add(9, skipped(10));
        let found = lines(dir.path());
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0].as_ref().unwrap().event, skipped(4));
        assert_eq!(found[1].as_ref().unwrap().event, Event::Straggler(straggler));
        assert!(found[2].is_none());
        assert_eq!((found[3].as_ref().unwrap().at_step, &found[3].as_ref().unwrap().event), (9, &skipped(10)));
        EventLog::open(dir.path(), false).add(0, skipped(1));
        assert_eq!(lines(dir.path()).len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_opened_ends_no_run() {
        let mut log = EventLog::open(Path::new("/nowhere/at/all"), false);
        log.add(1, Event::Ended { exit_code: 0, reason: String::new() });
        assert!(log.open.is_none());
    }
}
